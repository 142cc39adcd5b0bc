"""A class name of ours stands for one thing: a reader who finds it does not have to ask which one is meant."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "shoal"
OLDER = "_v1beta1.py"
"""Modules of older API versions: their classes are the same kinds once more."""
ONE_THING_IN_TWO_FORMS = frozenset(
    (
        *("ClusterQueue", "Cohort", "LocalQueue", "Namespace", "NewNodes", "PodSet", "PodSetAssignment", "Preemption"),
        *("QuotaSubtree", "ResourceGroup", "Taint", "Together", "Toleration"),
    )
)
"""Once in `api` as it is stored, once in `engine` as decisions are made from it."""


def used_twice(modules: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Names with more than one meaning, and where; `modules` are paths below `shoal` and their texts."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path, text in modules:
        if path.endswith(OLDER):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    return {name: found for name, found in places.items() if len(found) > 1 and not _is_one_thing(name, found)}


def _is_one_thing(name: str, found: list[str]) -> bool:
    return name in ONE_THING_IN_TWO_FORMS and sorted(path.partition("/")[0] for path in found) == ["api", "engine"]


def test_a_name_that_is_used_twice_is_found() -> None:
    one, other = "class Room: ...\n", "def f():\n    class Room: ...\n"
    assert used_twice([("engine/room.py", one), ("local/agent.py", other)]) == {
        "Room": ["engine/room.py", "local/agent.py"]
    }
    assert used_twice([("api/queues.py", one), ("api/queues_v1beta1.py", one)]) == {}
    taint = "class Taint: ...\n"
    assert used_twice([("api/core.py", taint), ("engine/model.py", taint)]) == {}
    assert used_twice([("api/core.py", taint), ("local/nodes.py", taint)]) == {
        "Taint": ["api/core.py", "local/nodes.py"]
    }


def test_no_class_name_of_ours_is_used_for_two_things() -> None:
    modules = ((str(path.relative_to(SOURCE)), path.read_text()) for path in sorted(SOURCE.rglob("*.py")))
    assert used_twice(modules) == {}
