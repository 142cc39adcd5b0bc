"""History in SQLite: the contract, a file that only its owner reads, and a database that fails for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.controllers.planning.history import recorder, store
from shoal.controllers.planning.history.recorder import GangHistory
from shoal.controllers.planning.history.records import GangFacts, advanced
from shoal.controllers.planning.history.store import HistoryQuery, HistoryStore, HistoryTrouble, check_url
from shoal.engine.model import Gang, PodSet
from shoal.errors import BadInput
from shoal.kube.clock import SystemClock
from tests.faults import proven
from tests.patience import PATIENCE, patiently
from tests.unit.history import contract


@pytest.mark.parametrize("promise", contract.ALL, ids=lambda one: one.__name__)
@pytest.mark.parametrize("where", ["memory", "file"])
def test_sqlite_keeps_the_contract(promise: Callable[[HistoryStore], None], where: str, tmp_path: Path) -> None:
    url = "memory" if where == "memory" else f"sqlite:///{tmp_path}/below/history.db"
    promise(HistoryStore(url, most_rows=10, kept_days=1))
    if where == "file":
        assert (tmp_path / "below" / "history.db").stat().st_mode & 0o077 == 0


def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    first = HistoryStore(url)
    first.write([contract.look("a", "waiting", 0), contract.look("a", "running", 5)])
    first.close()
    again = HistoryStore(url)
    again.write([contract.look("a", "ended", 9, outcome="Succeeded")])
    (found,) = again.runs(HistoryQuery())
    assert (found.round, found.outcome) == (1, "Succeeded")


@pytest.mark.parametrize("url", ["", "mysql://u:secret@host/db", "sqlite://history.db"])
def test_an_address_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(BadInput) as refusal:
        check_url(url)
    assert "secret" not in str(refusal.value)


def gang(state: str, **more: object) -> Gang:
    sets = (PodSet(name="all", count=2, requests={"cpu": 1000, "nvidia.com/gpu": 1}),)
    return Gang(key="RayJob/default/a", uid="a", namespace="default", name="a", state=state, pod_sets=sets, **more)  # type: ignore[arg-type]


def facts(outcome: str = "") -> GangFacts:
    return GangFacts(kind="RayJob", name="a", user="ann", outcome=outcome)


def gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = GangHistory.in_thread

    async def once(self: GangHistory, work: Callable[[], object]) -> object:
        try:
            return await kept(self, work)
        except HistoryTrouble:
            self._looks.clear()
            raise

    monkeypatch.setattr(GangHistory, "in_thread", once)


@proven(without=gives_up)
async def test_f300_a_database_that_fails_for_a_while_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F300: the database of the history does not answer while gangs come and go. Holds: plans go on, and once it
    answers again every wait and run is in it."""
    monkeypatch.setattr(recorder, "RETRY_FIRST", 0.01)
    blocked = tmp_path / "below"
    blocked.write_text("a file where the folder should be")
    history = GangHistory(HistoryStore(f"sqlite:///{blocked}/history.db"), SystemClock())
    running = asyncio.ensure_future(history.run())
    try:
        for state in ("waiting", "admitted"):
            history.seen(gang(state), facts)
        with pytest.raises(HistoryTrouble):
            await history.runs(HistoryQuery())
        history.seen(gang("finished"), lambda: facts("Succeeded"))
        blocked.unlink()
        async with patiently(PATIENCE):
            await history.written()
        (found,) = await history.runs(HistoryQuery())
        assert (found.outcome, found.pods, found.gpus) == ("Succeeded", 2, 2) and found.started_at
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await history.close()


async def test_only_what_changes_a_row_is_looked_up() -> None:
    history, asked = GangHistory(HistoryStore(), SystemClock()), []

    def told() -> GangFacts:
        asked.append(1)
        return facts()

    for _ in range(3):
        history.seen(gang("waiting"), told)
    history.seen(gang("admitted", admitted_at=5), told)
    assert len(asked) == 2


def test_a_gang_that_was_never_seen_and_is_gone_leaves_no_row() -> None:
    assert advanced(None, contract.Sighting(uid="a", stage="ended", at=1)) == ()


def quotes_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_without_secrets", lambda text, url: text)


@proven(without=quotes_the_driver)
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shoal:s3cr3t@[::1/db",  # the driver quotes what it cannot read
        "postgresql://shoal:s3%63r3t%zz@127.0.0.1/db",
    ],
)
def test_f305_the_password_of_the_database_is_in_no_message(url: str) -> None:
    """F305: the address of the history's database is wrong, or the database refuses, and the driver quotes the address.
    Holds: the password is in no error, log or answer."""
    with pytest.raises(HistoryTrouble) as trouble:
        HistoryStore(url).runs(HistoryQuery())
    said = f"{trouble.value}{trouble.value.__cause__ or ''}"
    assert "s3cr3t" not in said and "s3%63r3t" not in said and "cannot be kept" in said
