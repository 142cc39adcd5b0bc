"""The tests about the tests: each one judges something where a reader sees it, and the page of faults is theirs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests import faults_table

TESTS = Path(__file__).parents[1]
JUDGES = ("assert", "raises", "warns", "fail", "until", "see", "waits")
"""How calls begin that fail by themselves: `until`, `see` and `waits` await a state, and fail when it never comes."""


def judges(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", "") or getattr(node.func, "id", "")
        return name.lstrip("_").startswith(JUDGES)
    return isinstance(node, ast.Assert)


def functions_in(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def silent(source: str) -> list[str]:
    return [test.name for test in functions_in(source) if not any(map(judges, ast.walk(test)))]


def test_a_test_without_a_judgement_is_found() -> None:
    assert silent("def test_a():\n    assert 1\nasync def test_b():\n    await c.until(1)\n") == []
    assert silent("def test_c():\n    compare_all()\n") == ["test_c"]


def test_every_test_judges_something_where_it_can_be_read() -> None:
    found = {str(path.relative_to(TESTS)): silent(path.read_text()) for path in sorted(TESTS.rglob("test_*.py"))}
    assert {path: names for path, names in found.items() if names} == {}


def test_the_page_of_faults_is_up_to_date_and_every_row_says_what_holds() -> None:
    found = faults_table.rows()
    assert [row.test for row in found if not (row.trigger and row.holds)] == []
    assert faults_table.PAGE.read_text() == faults_table.page(found), (
        "docs/internals/faults.md is stale: run make faults"
    )
