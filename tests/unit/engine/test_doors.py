"""Outside the engine only its doors are imported: what stands behind them may move."""

from __future__ import annotations

import ast
from pathlib import Path

import shoal

ROOT = Path(shoal.__file__).parent
DOORS = {
    "shoal.engine",
    "shoal.engine.explain",
    "shoal.engine.facts",
    "shoal.engine.kueue",
    "shoal.engine.kueue.read",
    "shoal.engine.line",
    "shoal.engine.mcad",
    "shoal.engine.model",
    "shoal.engine.nodes",
    "shoal.engine.policies",
    "shoal.engine.settings",
}


def engine_imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module)
    return {name for name in found if name == "shoal.engine" or name.startswith("shoal.engine.")}


def test_only_doors_are_imported_from_outside() -> None:
    outside = [path for path in ROOT.rglob("*.py") if ROOT / "engine" not in path.parents]
    found = {path.relative_to(ROOT).as_posix(): engine_imports(path) - DOORS for path in outside}
    assert len(outside) > 100
    assert {path: names for path, names in found.items() if names} == {}


def test_every_room_names_what_is_public() -> None:
    rooms = list((ROOT / "engine").rglob("__init__.py"))
    assert len(rooms) >= 11
    for path in rooms:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path
        names = [target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]  # type: ignore[attr-defined]
        assert "__all__" in names, path
