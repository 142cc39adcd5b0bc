"""The storage: what is acknowledged is on the disk, what is not was never seen."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from shoal.api.kinds import CONFIG_MAP
from shoal.kube.client import Client
from shoal.kube.errors import NotFound
from shoal.local.apiserver import Server
from shoal.local.apiserver.storage import collection as collections
from shoal.local.apiserver.storage.lock import StateBusy, StateLock
from shoal.local.apiserver.storage.repair import repair
from shoal.local.apiserver.storage.state_file import FILE, StateDamaged
from shoal.local.apiserver.storage.store import Storage, WriteFailed
from tests.faults import proven


def opened(directory: Path | None, **options: object) -> Storage:
    storage = Storage(directory, **options)  # type: ignore[arg-type]
    storage.open()
    return storage


async def write(storage: Storage, name: str, value: bytes = b"{}") -> int:
    revision = storage.next_revision()
    await storage.put(storage.collection("things"), "ns", name, revision, value)
    return revision


def names(storage: Storage) -> list[str]:
    return [record.name for record in storage.collection("things").records("ns")]


def crash_image(directory: Path, to: Path) -> Path:
    """The files as a kill would leave them at this moment."""
    shutil.copytree(directory, to)
    (to / "apiserver.lock").unlink(missing_ok=True)
    return to


async def test_what_was_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    await write(storage, "a", b'{"x":1}')
    await write(storage, "b")
    await storage.remove(
        storage.collection("things"), storage.collection("things").get("ns", "b"), storage.next_revision(), b"{}"
    )  # type: ignore[arg-type]
    last = storage.revision
    await storage.close()
    again = opened(tmp_path)
    assert names(again) == ["a"] and again.revision == last
    assert again.collection("things").get("ns", "a").raw == b'{"x":1}'  # type: ignore[union-attr]
    await again.close()


async def test_writes_of_one_turn_share_a_commit_and_become_visible_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = opened(tmp_path)
    batches: list[int] = []
    commit = storage._commit
    monkeypatch.setattr(storage, "_commit", lambda batch: batches.append(len(batch)) or commit(batch))
    await asyncio.gather(*(write(storage, f"n{index:03}") for index in range(100)))
    assert sum(batches) == 100 and len(batches) <= 3
    events = storage.collection("things").events
    assert [event.record.revision for event in events] == sorted(event.record.revision for event in events)
    await storage.close()


async def test_readers_see_only_what_is_durable_writers_see_all(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    things = storage.collection("things")
    pending = asyncio.ensure_future(write(storage, "a"))
    await asyncio.sleep(0)
    assert things.get("ns", "a") is None and things.head("ns", "a") is not None
    await pending
    assert things.get("ns", "a") is things.head("ns", "a")
    await storage.close()


async def test_a_removed_and_recreated_name_is_followed_while_nothing_is_durable_yet(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    things = storage.collection("things")
    await write(storage, "a")

    async def remove() -> None:
        head = things.head("ns", "a")
        assert head is not None
        await storage.remove(things, head, storage.next_revision(), b"{}")

    await asyncio.gather(remove(), write(storage, "a", b'{"second":1}'))
    assert things.get("ns", "a").raw == b'{"second":1}'  # type: ignore[union-attr]
    assert [event.type for event in things.events] == ["ADDED", "DELETED", "ADDED"] and not things.pending
    await storage.close()


def _acknowledge_early(patch: pytest.MonkeyPatch) -> None:
    def unwaited(self: Storage, collection: collections.Collection, record: collections.StoredObject) -> None:
        real(self, collection, record)

    real = Storage._begin
    patch.setattr(Storage, "_begin", unwaited)


@proven(without=_acknowledge_early)
async def test_f099_what_was_acknowledged_survives_a_kill_at_any_moment(tmp_path: Path) -> None:
    """F99: killed right after a write was acknowledged. Holds: the write is there after the restart (I27)."""
    storage = opened(tmp_path / "state")
    acknowledged: dict[str, int] = {}
    for index in range(12):
        acknowledged[f"n{index}"] = await write(storage, f"n{index}")
        after = opened(crash_image(tmp_path / "state", tmp_path / f"crash{index}"))
        assert {name: after.collection("things").get("ns", name).revision for name in acknowledged} == acknowledged  # type: ignore[union-attr]
        assert after.revision > max(acknowledged.values())
        await after.close()
    await storage.close()


async def test_full_durability_waits_for_the_disk(tmp_path: Path) -> None:
    storage, quick = opened(tmp_path / "full"), opened(tmp_path / "normal", durability="normal")
    assert storage._db is not None and quick._db is not None
    assert storage._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert quick._db.execute("PRAGMA synchronous").fetchone() == (1,)
    await storage.close()
    await quick.close()


@proven(without=lambda patch: patch.setattr("shoal.local.apiserver.storage.store.UNCLEAN_STEP", 0))
async def test_f099_a_disk_that_lost_the_last_writes_never_makes_a_revision_repeat(tmp_path: Path) -> None:
    """F99: the disk dropped what it had promised to keep. Holds: no revision that was seen is given out again (I28)."""
    storage = opened(tmp_path / "state", durability="normal")
    await write(storage, "a")
    old = crash_image(tmp_path / "state", tmp_path / "old")
    seen = [await write(storage, f"lost{index}") for index in range(5)]
    await storage.close()
    after = opened(old)
    assert await write(after, "next") > max(seen)
    assert after.collection("things").floor > max(seen)  # so a watch from a lost revision is told to start again
    await after.close()


@proven(without=lambda patch: patch.setattr(collections.Collection, "compact", lambda self, count: None))
async def test_f100_history_and_files_stay_small_under_churn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F100: one object is written over and over. Holds: the history, the log and the file stay bounded."""
    monkeypatch.setattr(collections, "HISTORY_EVENTS", 100)
    monkeypatch.setattr("shoal.local.apiserver.storage.store.WAL_LIMIT", 1 << 20)
    storage = opened(tmp_path, durability="normal")
    value = b'{"x":"' + b"y" * 10_000 + b'"}'
    for _ in range(40):
        await asyncio.gather(*(write(storage, f"n{index}", value) for index in range(25)))
    things = storage.collection("things")
    assert len(things.events) <= 100 and things.floor > 1
    sizes = [os.stat(tmp_path / name).st_size for name in (FILE, f"{FILE}-wal")]
    assert sizes[0] < 2 << 20 and sizes[1] < 12 << 20  # 10 MB went through
    await storage.close()


async def test_large_histories_are_bounded_by_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collections, "HISTORY_BYTES", 50_000)
    storage = opened(None)
    for index in range(20):
        await write(storage, f"n{index}", b'"' + b"x" * 9000 + b'"')
    assert sum(len(event.record.raw) for event in storage.collection("things").events) <= 50_000


async def damage(directory: Path) -> None:
    """A server was killed, and then the file was damaged in the middle."""
    storage = opened(directory)
    await asyncio.gather(*(write(storage, f"n{index:03}", b'{"x":"' + b"y" * 2000 + b'"}') for index in range(100)))
    await storage.close()
    db = sqlite3.connect(directory / FILE)
    db.execute("UPDATE meta SET clean = 0")
    db.commit()
    db.close()
    data = bytearray((directory / FILE).read_bytes())
    middle = len(data) // 2 // 8192 * 8192
    assert data[middle] == 0x0D  # a page of rows
    data[middle + 3 : middle + 5] = (
        b"\0\1"  # which now says that it holds one row: the others would be gone without a word
    )
    (directory / FILE).write_bytes(data)


@proven(without=lambda patch: patch.setattr("shoal.local.apiserver.storage.store.quick_check", lambda db, path: None))
async def test_f101_a_damaged_file_is_found_at_the_start_and_repaired_on_request(tmp_path: Path) -> None:
    """F101: an unclean stop left a damaged file. Holds: one clear line at the start; repair keeps what can be read."""
    await damage(tmp_path)
    with pytest.raises(StateDamaged, match=r"objects\.db is damaged .* --repair"):
        opened(tmp_path)
    report = repair(tmp_path)
    assert report.kept >= 80 and report.aside.exists()
    storage = opened(tmp_path)
    assert len(names(storage)) == report.kept
    await write(storage, "after")
    await storage.close()


async def test_a_file_that_is_no_database_is_said_so(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"not a database at all" * 1000)
    with pytest.raises(StateDamaged, match="--repair"):
        opened(tmp_path)
    assert (tmp_path / FILE).read_bytes().startswith(b"not a database")


def _never_recovers(patch: pytest.MonkeyPatch) -> None:
    real = WriteFailed.__init__
    patch.setattr(WriteFailed, "__init__", lambda self, message, *, full: real(self, message, full=False))


@proven(without=_never_recovers)
async def test_f102_a_full_disk_refuses_writes_and_recovers(tmp_path: Path) -> None:
    """F102: the disk is full. Holds: writes are refused clearly, nothing half-written, reads go on, and it recovers."""
    storage = opened(tmp_path)
    await write(storage, "before")
    assert storage._db is not None
    pages = storage._db.execute("PRAGMA page_count").fetchone()[0]
    storage._db.execute(f"PRAGMA max_page_count = {pages + 1}")
    large = b'{"x":"' + b"y" * 100_000 + b'"}'
    results = await asyncio.gather(
        *(write(storage, f"large{index}", large) for index in range(3)), return_exceptions=True
    )
    assert all(isinstance(result, WriteFailed) and result.full for result in results)
    assert "free some space" in str(results[0])
    assert names(storage) == ["before"] and not storage.collection("things").pending
    storage._db.execute("PRAGMA max_page_count = 1000000")
    await write(storage, "after", large)
    assert names(storage) == ["after", "before"]
    await storage.close()
    again = opened(tmp_path)
    assert names(again) == ["after", "before"]
    await again.close()


async def test_a_write_error_that_may_have_lost_data_stops_all_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = opened(tmp_path)

    def fails(db: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(storage, "_make_durable", fails)
    with pytest.raises(WriteFailed, match="disk I/O error"):
        await write(storage, "a")
    with pytest.raises(WriteFailed, match="restart"):
        await write(storage, "b")
    assert names(storage) == []
    await storage.close()


@proven(without=lambda patch: patch.setattr(StateLock, "take", lambda self: None))
async def test_f104_a_second_server_on_the_same_state_is_refused(tmp_path: Path) -> None:
    """F104: a second server is started on the same directory. Holds: it is refused, with the pid of the first."""
    first = opened(tmp_path)
    with pytest.raises(StateBusy, match=rf"in use by process {os.getpid()}; stop it first"):
        opened(tmp_path)
    await first.close()
    await opened(tmp_path).close()


async def test_network_file_systems_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.local.apiserver.storage.lock.file_system_of", lambda directory: "nfs4")
    with pytest.raises(StateBusy, match="network file system"):
        opened(tmp_path)


async def test_objects_of_an_unclean_stop_are_all_there_and_not_yet_decoded(tmp_path: Path) -> None:
    storage = opened(tmp_path, durability="normal")
    value = b'{"metadata":{"labels":{"a":"b"}},"x":"' + b"y" * 3000 + b'"}'
    await asyncio.gather(*(write(storage, f"n{index}", value) for index in range(2_000)))
    crash_image(tmp_path, tmp_path.with_name("crashed"))
    await storage.close()
    again = opened(tmp_path.with_name("crashed"))
    records = again.collection("things").records()
    assert len(records) == 2_000
    assert all(record._labels is None for record in records)  # what no caller asked for was not decoded
    assert records[0].labels == {"a": "b"}
    await again.close()


async def test_stopping_serves_who_waits_and_refuses_who_comes_later(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    waiting = [asyncio.ensure_future(write(storage, f"n{index}")) for index in range(20)]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(storage.close())
    await asyncio.sleep(0)
    with pytest.raises(WriteFailed, match="stopping"):
        await write(storage, "late")
    await closing
    await asyncio.gather(*waiting)
    again = opened(tmp_path)
    assert len(names(again)) == 20
    await again.close()


async def test_who_is_refused_because_of_a_write_can_read_that_write(tmp_path: Path) -> None:
    """The deletion is on its way to the disk when the patch is refused for it: no read after that finds the object."""
    server = Server(tmp_path)
    await server.start()
    try:
        client = Client(server.transport())
        server.storage._commit_seconds = 1.0  # as on a slow disk: commits take the thread
        thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}}
        await client.create(CONFIG_MAP, thing, "default")
        deletion = asyncio.ensure_future(client.delete(CONFIG_MAP, "a", "default"))
        await asyncio.sleep(0)
        with pytest.raises(NotFound):
            await client.patch(CONFIG_MAP, "a", "default", {"data": {"b": "c"}})
        with pytest.raises(NotFound):
            await client.get(CONFIG_MAP, "a", "default")
        await deletion
    finally:
        await server.stop()
