"""Controllers write in one way only: through a `Writer`, which takes its turn among all controllers of the process.

Read from the source: a call of a writing verb on anything named a client is a write beside it. So is a `Writes` with a
limit of its own, except for another API server's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal.controllers

ROOM = Path(shoal.controllers.__file__).parent
VERBS = {"create", "patch", "update", "delete", "request"}
QUESTIONS = {"SUBJECT_ACCESS_REVIEW"}
"""Kinds that are asked by a create and never stored."""
OWN_LIMITS = {"multicluster/member.py", "multicluster/fence.py"}
"""Writes to another API server than the process's; a lease there waits for none of the others."""


def writes_beside(source: str) -> Iterator[int]:
    """Lines in which a client is written with."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=receiver, attr=verb)) if verb in VERBS:
                if _last_name(receiver).endswith("client") and not _stores_nothing(node):
                    yield node.lineno


def own_limits(source: str) -> Iterator[int]:
    """Lines in which a `Writes` is made with a limit."""
    for node in ast.walk(ast.parse(source)):
        made = isinstance(node, ast.Call) and _last_name(node.func) == "Writes"
        if made and any(keyword.arg == "in_flight" for keyword in node.keywords):
            yield node.lineno


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=ast.Attribute(attr="impersonating", value=inner)) | ast.Subscript(value=inner):
            return _last_name(inner)
    return ""


def _stores_nothing(call: ast.Call) -> bool:
    dry = any(one.arg == "dry_run" and isinstance(one.value, ast.Constant) and one.value.value for one in call.keywords)
    return dry or (bool(call.args) and _last_name(call.args[0]) in QUESTIONS)


SOURCES = {str(path.relative_to(ROOM)): path.read_text() for path in sorted(ROOM.rglob("*.py"))}


def test_no_controller_writes_beside_the_writer():
    assert len(SOURCES) > 100
    assert {path: lines for path, source in SOURCES.items() if (lines := list(writes_beside(source)))} == {}


def test_the_limit_of_writes_is_in_one_place():
    assert {path for path, source in SOURCES.items() if any(own_limits(source))} == OWN_LIMITS


@pytest.mark.parametrize(
    "source, found",
    [
        ("await self._client.patch(kinds.POD, name, namespace, change)", True),
        ("await self._writes.client.delete(kind, name)", True),
        ("await client.impersonating('a').create(kinds.POD, body)", True),
        ("await self._client.get(kinds.POD, name)", False),
        ("await self._client.create(kinds.SUBJECT_ACCESS_REVIEW, review)", False),
        ("await self.client.create(kind, body, namespace, dry_run=True)", False),
        ("await self._client.create(kind, body, namespace, dry_run=False)", True),
        ("await self._writer.create(kind, body)", False),
        ("clients.update(more)", False),
    ],
)
def test_what_the_check_finds(source, found):
    assert bool(list(writes_beside(f"async def f():\n    {source}"))) == found


def test_the_check_finds_a_limit_of_ones_own():
    assert list(own_limits("writes = Writes(client, in_flight=64)")) == [1]
    assert list(own_limits("writes = given or Writes(client, clock=clock)")) == []
