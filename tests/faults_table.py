"""Writes docs/internals/faults.md: what Shoal survives, from the fault tests' own names and docstrings.

A row is listed as proven when its test declares the switch that removes its protection; `make faults-proof` runs
them all that way and fails if one of them still passes. Run with --check to fail when the page is stale.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "internals" / "faults.md"
NAME = re.compile(r"test_f(\d{3})_")
HEADING = """# Faults that Shoal survives

Each row is a failure that happened to systems like this one, and the test that holds it off. The table is written by
`make faults` from the tests themselves. *Proven* means that the test declares the switch that takes its protection
away;
`make faults-proof` runs every such test without its protection and expects it to fail.

"""


class Row(NamedTuple):
    number: int
    test: str
    trigger: str
    holds: str
    proven: bool


def rows() -> list[Row]:
    return sorted(row for path in sorted((ROOT / "tests").rglob("test_*.py")) for row in _in_file(path))


def _in_file(path: Path) -> Iterator[Row]:
    text = path.read_text()
    if not NAME.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (match := NAME.match(node.name)):
            said = " ".join((ast.get_docstring(node) or "").split())
            said = re.sub(r"^F\d+[:.]?\s*", "", said)
            trigger, _, holds = said.partition("Holds:")
            proven = any(
                isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "proven" for mark in node.decorator_list
            )
            name = f"{path.relative_to(ROOT)}::{node.name}"
            yield Row(int(match[1]), name, trigger.strip(), holds.strip(), proven)


def page(found: list[Row]) -> str:
    numbers = {row.number for row in found}
    proven = {row.number for row in found if row.proven}
    lines = [HEADING, f"{len(numbers)} faults have a test; {len(proven)} of them are proven.\n\n"]
    lines.append("| fault | trigger | what holds | proven | test |\n|---|---|---|---|---|\n")
    for row in found:
        cells = [f"F{row.number:02d}", row.trigger, row.holds, "yes" if row.proven else "not yet", f"`{row.test}`"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(lines)


if __name__ == "__main__":
    text = page(rows())
    if "--check" in sys.argv:
        sys.exit(
            0 if PAGE.exists() and PAGE.read_text() == text else "docs/internals/faults.md is stale: run make faults"
        )
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text)
    print(text.splitlines()[7])
