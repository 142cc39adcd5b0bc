"""A cluster of one machine in a file, and back: whole while it is written to, refused where it cannot be read."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import tarfile
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from shoal.cli import snapshot as commands
from shoal.errors import ShoalError
from shoal.local import snapshot
from shoal.local.apiserver.storage import store
from shoal.local.apiserver.storage.state_file import FILE
from shoal.local.home import Home
from tests.faults import proven
from tests.unit.apiserver.test_storage import names, opened, write

WHEN = "2026-01-02T03:04:05Z"


def home_in(folder: Path, name: str = "lab") -> Home:
    home = Home(name, folder)
    home.create()
    (home.api / "pki").mkdir(parents=True)
    (home.api / "pki" / "ca.key").write_text("a key")
    home.remember(port=4711)
    return home


def _forgets_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_copy_database", lambda source, target: shutil.copyfile(source, target))


@proven(without=_forgets_the_log)
async def test_f275_a_snapshot_of_a_busy_cluster_has_all_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F275: a cluster is saved while objects are written and the database moves its log. Holds: the snapshot is whole,
    and has every object that was acknowledged before it began."""
    home = home_in(tmp_path)
    storage = opened(home.api)
    await write(storage, "in-the-log")
    snapshot.save(home, tmp_path / "first.snapshot", created=WHEN)
    snapshot.restore(tmp_path / "first.snapshot", Home("first", tmp_path))
    copy = opened(tmp_path / "first" / "api")
    assert names(copy) == ["in-the-log"]
    await copy.close()
    monkeypatch.setattr(store, "CHECKPOINT_BYTES", 20_000)
    stop = asyncio.Event()

    async def keep_writing() -> None:
        number = 0
        while not stop.is_set():
            await write(storage, f"more-{number}", b'{"x":"' + b"y" * 2000 + b'"}')
            number += 1

    writing = asyncio.ensure_future(keep_writing())
    try:
        for round in range(8):
            await write(storage, f"kept-{round}")
            target = tmp_path / f"{round}.snapshot"
            await asyncio.to_thread(snapshot.save, home, target, created=WHEN)
            snapshot.restore(target, Home(f"copy-{round}", tmp_path))
            copy = opened(tmp_path / f"copy-{round}" / "api")
            assert {f"kept-{one}" for one in range(round + 1)} <= set(names(copy))
            await copy.close()
    finally:
        stop.set()
        await writing
        await storage.close()


async def test_restoring_brings_objects_keys_and_memory_back_and_revisions_go_on(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    storage = opened(home.api)
    await write(storage, "early")
    made = snapshot.save(home, tmp_path / "a.snapshot", created=WHEN)
    assert (made.objects, made.cluster, made.volumes) == (1, "lab", False)
    assert (tmp_path / "a.snapshot").stat().st_mode & 0o777 == 0o600
    later = [await write(storage, f"later-{number}") for number in range(5)][-1]
    await storage.close()
    (home.api / "pki" / "ca.key").write_text("another key")
    with pytest.raises(ShoalError, match="--replace replaces it"):
        snapshot.restore(tmp_path / "a.snapshot", home)
    snapshot.restore(tmp_path / "a.snapshot", home, replace=True)
    assert (home.api / "pki" / "ca.key").read_text() == "a key"
    assert home.last_port() == 4711
    assert home.directory.stat().st_mode & 0o777 == 0o700
    again = opened(home.api)
    assert names(again) == ["early"]
    assert again.revision > later  # no client is given a revision twice
    await again.close()


async def test_volumes_are_taken_where_they_are_asked_for(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    await opened(home.api).close()
    (home.directory / snapshot.CLAIMS / "data").mkdir(parents=True)
    (home.directory / snapshot.CLAIMS / "data" / "model").write_text("weights")
    for volumes in (False, True):
        target = tmp_path / f"{volumes}.snapshot"
        snapshot.save(home, target, created=WHEN, volumes=volumes)
        snapshot.restore(target, Home(f"with-{volumes}".lower(), tmp_path))
        kept = tmp_path / f"with-{volumes}".lower() / snapshot.CLAIMS / "data" / "model"
        assert kept.exists() == volumes


def _reads_any_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "FORMAT", 99)


@proven(without=_reads_any_format)
async def test_f276_a_snapshot_that_cannot_be_read_replaces_nothing(tmp_path: Path) -> None:
    """F276: a snapshot of a later format, a part of one, or another file is restored over a cluster. Holds: it is
    refused with the release that wrote it, and the cluster's state is as it was."""
    home = home_in(tmp_path)
    storage = opened(home.api)
    await write(storage, "mine")
    snapshot.save(home, tmp_path / "good.snapshot", created=WHEN)
    await storage.close()
    before = (home.api / FILE).read_bytes()
    whole = (tmp_path / "good.snapshot").read_bytes()
    (tmp_path / "part.snapshot").write_bytes(whole[: len(whole) * 2 // 3])
    (tmp_path / "other.snapshot").write_text("not an archive")
    manifest = snapshot.read_manifest(tmp_path / "good.snapshot")
    newer = msgspec.structs.replace(manifest, format=snapshot.FORMAT + 1 if snapshot.FORMAT < 99 else 2, shoal="9.9.9")
    _with_manifest(tmp_path / "good.snapshot", tmp_path / "newer.snapshot", newer)
    for name, said in (("newer", "9.9.9"), ("part", "cannot be read|no snapshot"), ("other", "no snapshot")):
        with pytest.raises(ShoalError, match=said):
            snapshot.restore(tmp_path / f"{name}.snapshot", home, replace=True)
        assert (home.api / FILE).read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["good.snapshot", "lab", "newer.snapshot", "other.snapshot", "part.snapshot"]


def _with_manifest(source: Path, target: Path, manifest: snapshot.SnapshotManifest) -> None:
    content = msgspec.json.encode(manifest)
    with tarfile.open(source, "r:gz") as old, tarfile.open(target, "w:gz") as new:
        for member in old.getmembers():
            held = old.extractfile(member)
            if member.name == snapshot.MANIFEST:
                member.size, held = len(content), io.BytesIO(content)  # type: ignore[assignment]  # both are read from
            new.addfile(member, held)


async def test_a_path_that_leads_out_of_the_state_is_refused(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    await opened(home.api).close()
    snapshot.save(home, tmp_path / "good.snapshot", created=WHEN)
    good, bad = tmp_path / "good.snapshot", tmp_path / "bad.snapshot"
    with tarfile.open(good, "r:gz") as old, tarfile.open(bad, "w:gz") as new:
        for member in old.getmembers():
            new.addfile(member, old.extractfile(member))
        about = tarfile.TarInfo("../../stolen")
        about.size = 4
        new.addfile(about, io.BytesIO(b"loot"))
    with pytest.raises(ShoalError, match="cannot be read to its end"):
        snapshot.restore(tmp_path / "bad.snapshot", Home("copy", tmp_path))
    assert not (tmp_path / "stolen").exists() and not Home("copy", tmp_path).exists()


async def test_the_command_saves_and_restores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    home = home_in(tmp_path)
    storage = opened(home.api)
    await write(storage, "one")
    await storage.close()
    file = str(tmp_path / "lab.snapshot")
    told = CliRunner().invoke(commands.command, ["save", file, "--name", "lab"])
    assert told.exit_code == 0 and f"{file}: 1 objects of cluster lab" in told.output
    told = CliRunner().invoke(commands.command, ["restore", file, "--name", "copy"])
    assert told.exit_code == 0 and "start it: shoal up --name copy" in told.output
    home.write_running()
    told = CliRunner().invoke(commands.command, ["restore", file, "--replace"])
    assert isinstance(told.exception, ShoalError) and "stop it first: shoal down --name lab" in str(told.exception)
