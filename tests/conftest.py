"""Shared by all tests: the fault-proof mode, the garbage collector's pace, and a fresh clone's first run. Fixtures live
beside their suites."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import sys
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests import patience, resting

MANY = 200
MOST_UNDECIDED = 0.01
"""Of so many gangs judged at rest, so few may be left undecided."""
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
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        _rewrite_for_all(config)


def _rewrite_for_all(config: pytest.Config) -> None:
    """Once, before the workers begin: in a fresh clone each of them would rewrite the assertions of every module."""
    if sys.dont_write_bytecode or "fork" not in multiprocessing.get_all_start_methods():
        return
    folders = [Path(argument.partition("::")[0]) for argument in config.args]
    modules = [path for folder in folders for name in ("test_*.py", "conftest.py") for path in folder.rglob(name)]
    stale = [path.absolute() for path in modules if not _is_rewritten(path)]
    fork, hands = multiprocessing.get_context("fork"), os.cpu_count() or 1
    working = [fork.Process(target=_rewrite, args=(config, stale[number::hands])) for number in range(hands)]
    for one in working if stale else ():
        one.start()
    for one in working if stale else ():
        one.join()


def _rewritten(path: Path) -> Path:
    return rewrite.get_cache_dir(path) / (path.name.removesuffix(".py") + rewrite.PYC_TAIL)


def _is_rewritten(path: Path) -> bool:
    found = _rewritten(path.absolute())
    return found.exists() and found.stat().st_mtime >= path.stat().st_mtime


def _rewrite(config: pytest.Config, modules: Sequence[Path]) -> None:
    for path in modules:
        target = _rewritten(path)
        try:
            stat, code = rewrite._rewrite_test(path, config)
            if rewrite.try_makedirs(target.parent):
                rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stat, target)
        except (OSError, SyntaxError):
            continue  # the import will say so


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--faults-proof"):
        return
    kept = [item for item in items if _switch(item) is not None]
    config.hook.pytest_deselected(items=[item for item in items if _switch(item) is None])
    items[:] = kept
    for item in kept:
        item.add_marker(pytest.mark.xfail(strict=True, reason="its protection is removed"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Workers hand over what they judged at rest; a run that left too much undecided has not judged."""
    tally = resting.TALLY
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["at_rest"] = tally.handed_over()
    elif tally.judged >= MANY and tally.share > MOST_UNDECIDED:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """A worker of this run has ended."""
    resting.TALLY.take(getattr(node, "workeroutput", {}).get("at_rest"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tally = resting.TALLY
    if tally.worlds:
        terminalreporter.write_line(str(tally))
        for why, count in Counter(one.partition(": ")[2] for one in tally.undecided).most_common():
            terminalreporter.write_line(f"  undecided {count} times: {why}")
        for one in tally.undecided[:10]:
            terminalreporter.write_line(f"  undecided: {one}")


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
    if report.when == "call":
        item.stash[resting.PASSED] = report.passed and not hasattr(report, "wasxfail")
    if item.config.getoption("--faults-proof") and report.when == "setup" and hasattr(report, "wasxfail"):
        del report.wasxfail
        report.outcome = "failed"
    return report


def _switch(item: pytest.Item) -> object:
    return getattr(getattr(item, "function", None), "shoal_without", None) if FAULT_NAME.match(item.name) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """A cluster of `shoal up` is judged at rest before anything that the test made is removed."""
    result = yield
    machine = getattr(item, "funcargs", {}).get("machine")
    if hasattr(machine, "hold_at_rest") and item.get_closest_marker("not_at_rest") is None:
        machine.hold_at_rest()
    return result
