"""Shared by all tests: the fault-proof mode and the garbage collector's pace. Fixtures live beside their suites."""

from __future__ import annotations

import gc
import re
from collections.abc import Generator

import pytest

from tests import patience

FAULT_NAME = re.compile(r"test_f(\d{3})_")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--faults-proof",
        action="store_true",
        help="run the fault tests with their protection removed and expect each to fail",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--faults-proof"):
        patience.PATIENCE = patience.IN_VAIN


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--faults-proof"):
        return
    kept = [item for item in items if _switch(item) is not None]
    config.hook.pytest_deselected(items=[item for item in items if _switch(item) is None])
    items[:] = kept
    for item in kept:
        item.add_marker(pytest.mark.xfail(strict=True, reason="its protection is removed"))


def pytest_collection_finish() -> None:
    """All modules and tests are loaded and stay: a collector that walks through them again and again finds nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def _without_protection(request: pytest.FixtureRequest) -> object:
    if not request.config.getoption("--faults-proof"):
        yield
        return
    switch = _switch(request.node)
    with pytest.MonkeyPatch.context() as patch:
        if switch is not None:
            switch(patch)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that could not even begin proves nothing."""
    report = yield
    if item.config.getoption("--faults-proof") and report.when == "setup" and hasattr(report, "wasxfail"):
        del report.wasxfail
        report.outcome = "failed"
    return report


def _switch(item: pytest.Item) -> object:
    return getattr(getattr(item, "function", None), "shoal_without", None) if FAULT_NAME.match(item.name) else None
