"""The audit log: who did what, readable by the checker, with no secret in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.api.kinds import CONFIG_MAP, SECRET, SERVICE_ACCOUNT
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExists, NotFound
from shoal.kube.kubeconfig import load
from shoal.local.apiserver import Server
from tests.checker import check, from_audit


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


def text(path: Path) -> str:
    return path.read_text()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_every_request_is_one_line_with_its_answer(log: Path, tmp_path: Path) -> None:
    server = Server(None, audit_log=log)
    await server.start()
    await server.serve()
    server.write_kubeconfig(tmp_path / "kubeconfig")
    inside, outside = Client(server.transport("ann", ("system:masters",))), load(tmp_path / "kubeconfig")
    made = await inside.create(CONFIG_MAP, {"metadata": {"name": "a"}, "data": {"n": "1"}}, "default")
    with pytest.raises(AlreadyExists):
        await Client(outside).create(CONFIG_MAP, {"metadata": {"name": "a"}}, "default")
    await inside.patch(CONFIG_MAP, "a", "default", {"data": {"n": "2"}})
    await inside.delete(CONFIG_MAP, "a", "default", uid=made["metadata"]["uid"])
    with pytest.raises(NotFound):
        await Client(outside).get(CONFIG_MAP, "a", "default")
    await outside.close()
    await server.stop()

    assert mode(log) == 0o600
    records = from_audit(log, agents=("shoal (in process)",))
    assert [(record.verb, record.code, record.is_foreign) for record in records] == [
        ("create", 201, False),
        ("create", 409, True),
        ("patch", 200, False),
        ("delete", 200, False),
        ("get", 404, True),
    ]
    assert records[2].old == made and records[2].body == {"data": {"n": "2"}}
    events = [json.loads(line) for line in text(log).splitlines() if '"RequestReceived"' not in line]
    assert {event["user"]["username"] for event in events} == {"ann", "system:admin"}
    assert events[1]["userAgent"].startswith("shoal/") and events[1]["responseStatus"]["reason"] == "AlreadyExists"
    assert check(records) == []


async def test_what_is_secret_is_left_out(log: Path) -> None:
    server = Server(None, audit_log=log)
    await server.start()
    client = Client(server.transport())
    await client.create(SECRET, {"metadata": {"name": "s"}, "stringData": {"key": "planted"}}, "default")
    await client.create(SERVICE_ACCOUNT, {"metadata": {"name": "robot"}}, "default")
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = (await client.create(SERVICE_ACCOUNT, asked, "default", name="robot", subresource="token"))["status"]
    await client.list(SECRET)
    await server.stop()
    told = text(log)
    assert told.count('"ResponseComplete"') == 4
    assert "planted" not in told and "cGxhbnRlZA" not in told and token["token"] not in told


async def test_a_write_that_was_never_answered_counts_as_unknown(log: Path) -> None:
    server = Server(None, audit_log=log)
    await server.start()
    await Client(server.transport()).create(CONFIG_MAP, {"metadata": {"name": "a"}}, "default")
    await Client(server.transport()).delete(CONFIG_MAP, "a", "default")
    await server.stop()
    cut(log, lines=1)
    assert [(record.verb, record.name, record.outcome) for record in from_audit(log)] == [
        ("create", "a", "done"),
        ("delete", "a", "unknown"),
    ]


def cut(path: Path, lines: int) -> None:
    """As a kill leaves it."""
    path.write_text("\n".join(path.read_text().splitlines()[:-lines]) + '\n{"kind": "Ev')


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match=r"nowhere/audit.log cannot be written: No such file or directory"):
        Server(None, audit_log=tmp_path / "nowhere" / "audit.log")
