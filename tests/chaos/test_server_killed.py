"""Every moment at which a server can die: the files as they are then, opened again."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from shoal.api.kinds import EVENT, LEASE
from shoal.kube.client import Client
from shoal.local.apiserver import Server
from shoal.local.apiserver.storage.state_file import FILE
from shoal.local.apiserver.storage.store import Storage
from tests.faults import proven
from tests.unit.apiserver.conftest import ManualClock
from tests.unit.apiserver.test_storage import _acknowledge_early, crash_image, names, opened, write


class Snapshots:
    """The database's connection, with an image of the files before and after each statement."""

    def __init__(self, storage: Storage, to: Path, acknowledged: dict[str, int]) -> None:
        assert storage._db is not None and storage.directory is not None
        self._db, self._from, self._to = storage._db, storage.directory, to
        self._acknowledged = acknowledged
        self.taken: list[tuple[Path, str, dict[str, int]]] = []

    def _take(self, moment: str) -> None:
        image = crash_image(self._from, self._to / f"{len(self.taken)}")
        self.taken.append((image, moment, dict(self._acknowledged)))

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        self._take(f"before {statement[:20]}")
        found = self._db.execute(statement, *values)
        self._take(f"after {statement[:20]}")
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


@proven(without=_acknowledge_early)
async def test_f099_no_kill_point_loses_what_was_acknowledged(tmp_path: Path) -> None:
    """F99: killed before or after any statement of any write. Holds: what was acknowledged by then is there, nothing
    is half there, and no revision is given out again (I27, I28)."""
    storage = opened(tmp_path / "state")
    acknowledged: dict[str, int] = {}
    watching = Snapshots(storage, tmp_path, acknowledged)
    storage._db = watching  # type: ignore[assignment]
    storage._commit_seconds = 0.0  # on the loop, so that every point is between two statements of ours
    things = storage.collection("things")
    for index in range(5):
        acknowledged[f"n{index}"] = await write(storage, f"n{index}")
    acknowledged["n0"] = await write(storage, "n0", b'{"again":1}')
    old = things.head("ns", "n1")
    assert old is not None
    del acknowledged["n1"]  # it may be gone from here on
    await storage.remove(things, old, storage.next_revision(), b"{}")
    watching._take("at the end")
    highest = storage.revision
    assert len(watching.taken) > 40
    for image, moment, promised in watching.taken:
        after = opened(image)
        kept = {name: found.revision for name in names(after) if (found := after.collection("things").get("ns", name))}
        for name, revision in promised.items():
            assert kept.get(name, 0) >= revision, (moment, name)
        assert after.revision > highest, moment
        assert "n1" not in kept or moment != "at the end"
        await after.close()
    await storage.close()


@proven(without=lambda patch: patch.setattr("shoal.local.apiserver.storage.store.UNCLEAN_STEP", 0))
async def test_f099_a_log_that_was_cut_anywhere_leaves_a_beginning_of_the_writes(tmp_path: Path) -> None:
    """F99: power failed and the disk had dropped its last syncs. Holds: it starts, with the first writes and none after
    a gap, and no revision is given out again (I28)."""
    storage = opened(tmp_path / "state")
    order = [f"n{index:02}" for index in range(20)]
    for name in order:
        await write(storage, name, b'{"x":"' + b"y" * 3000 + b'"}')
    highest = storage.revision
    image = crash_image(tmp_path / "state", tmp_path / "image")
    await storage.close()
    log = (image / f"{FILE}-wal").read_bytes()
    seen = set()
    for cut in range(0, len(log), 17_000):
        at = crash_image(image, tmp_path / f"cut{cut}")
        (at / f"{FILE}-wal").write_bytes(log[:cut])
        after = opened(at, durability="normal")
        assert names(after) == order[: len(names(after))], cut
        seen.add(len(names(after)))
        assert await write(after, "next") > highest, cut
        await after.close()
    assert len(seen) > 5  # cuts in between left some of the writes


@proven(without=lambda patch: patch.setattr(Storage, "_checkpoint", _forgets))
async def test_f100_a_log_that_could_not_be_moved_is_reported_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F100: moving the log into the file fails once. Holds: it is said, tried with the next writes, and the log stays
    bounded."""
    monkeypatch.setattr("shoal.local.apiserver.storage.store.CHECKPOINT_BYTES", 200_000)
    storage = opened(tmp_path, durability="normal")
    assert storage._db is not None
    failing = _FailsOnce(storage._db)
    storage._db = failing  # type: ignore[assignment]
    value = b'{"x":"' + b"y" * 10_000 + b'"}'
    with caplog.at_level(logging.WARNING):
        for index in range(200):
            await write(storage, f"n{index % 10}", value)
    assert failing.failed == 1 and failing.moved > 3
    assert any("could not be moved into its file" in record.message for record in caplog.records)
    assert (tmp_path / f"{FILE}-wal").stat().st_size < 2 << 20  # 2 MB of values and as much of pages went through
    await storage.close()


def size_of(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob(f"{FILE}*"))


def _forgets(self: Storage) -> None:
    self._log_bytes = -(1 << 40)


class _FailsOnce:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.failed = self.moved = 0

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if "wal_checkpoint(PASSIVE)" in statement:
            if not self.failed:
                self.failed += 1
                raise sqlite3.OperationalError("disk I/O error")
            self.moved += 1
        return self._db.execute(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


@proven(without=lambda patch: patch.setattr(Storage, "_checkpoint", _forgets))
async def test_f100_a_day_of_churn_leaves_files_as_small_as_an_hour_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F100: leases are renewed and events told for 24 hours. Holds: the log and the file do not grow with the hours."""
    clock = ManualClock()
    monkeypatch.setattr("shoal.local.apiserver.storage.store.CHECKPOINT_BYTES", 1 << 20)
    monkeypatch.setattr("shoal.local.apiserver.storage.store.INLINE_SECONDS", 0.0)
    server = Server(tmp_path, clock=clock, durability="normal")
    await server.start()
    client = Client(server.transport())
    for number in range(3):
        await client.create(LEASE, {"metadata": {"name": f"l{number}"}, "spec": {"holderIdentity": "me"}}, "default")
    sizes = []
    for hour in range(24):
        for minute in range(0, 60, 2):
            for number in range(3):
                turn = {"spec": {"leaseTransitions": hour * 60 + minute}}
                await client.patch(LEASE, f"l{number}", "default", turn)
            about = {"kind": "Pod", "name": "p", "namespace": "default"}
            event = {"metadata": {"name": f"e{hour}-{minute}"}, "reason": "Churn", "involvedObject": about}
            await client.create(EVENT, event, "default")
        await clock.advance(3600)
        sizes.append(size_of(tmp_path))
    assert max(sizes[12:]) <= max(sizes[:12]) * 1.5, sizes
    assert max(sizes) < 16 << 20
    await server.stop()
