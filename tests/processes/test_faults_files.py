"""Faults of a pod's files on one machine: disks that are full, links that lead elsewhere, files that go slowly."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.local.nodes.runtime import container as runtime_container
from shoal.local.nodes.runtime import files, logs, loopback
from shoal.local.nodes.runtime.host import PodHost
from shoal.local.nodes.runtime.logs import LogOptions
from shoal.local.nodes.runtime.shim import output
from shoal.local.nodes.runtime.sources import ConfigError
from shoal.local.nodes.sandbox.loopback import LoopbackSandbox
from tests.faults import proven
from tests.processes.conftest import Machine, Things, change_shim, forget_changed_shim, pod, state, text
from tests.processes.test_pods import until


def writes_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: output.Log, stream: str, mark: bytes, lines: list[bytes]) -> None:
        self.size += self.file.write(b"".join(lines))

    monkeypatch.setattr(output.Log, "write", write)


@proven(without=writes_plainly)
def test_f102_a_full_disk_loses_output_and_nothing_else(tmp_path: Path) -> None:
    """F102: the disk is full while a container prints. Holds: output is drained and dropped; with space it resumes."""
    log = output.Log("/dev/full", 1 << 20)
    log.take("stdout", b"lost\n" * 1000)
    log.file = open(tmp_path / "log", "ab", buffering=0)  # noqa: SIM115 - space is back
    log.take("stdout", b"kept\n")
    assert (tmp_path / "log").read_bytes().endswith(b"kept\n")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def keeps_no_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    change_shim(monkeypatch, "outer", 'for given_up in (None, "reserve", "log.1", "log"):', "for given_up in (None,):")


@proven(without=keeps_no_reserve)
async def test_f102_how_a_container_ended_is_known_although_the_disk_is_full(small_disk: Path) -> None:
    """F102: a pod fills the disk with its log. Holds: it runs on and its exit code is kept; what comes later waits."""
    things = Things()
    host = PodHost(directory=small_disk, sandbox=LoopbackSandbox("full", None, small_disk / "pods"), sources=things)
    host.retry_period = 0.05
    await host.sandbox.start()
    found = Machine(host, things)
    script = "head -c 3000000 /dev/zero | tr '\\0' x | fold -w 100; exit 5"
    try:
        flood = await found.ended(pod("flood", "sh", "-c", script))
        assert state(flood)["terminated"]["exitCode"] == 5
        (small_disk / "rest").write_bytes(bytes(1 << 12) * _free_pages(small_disk))
        later = found.start(pod("later", "true"))
        await until(lambda: "No space left" in str(later.status()))
        (small_disk / "rest").unlink()
        await flood.remove()
        await until(later.finished.is_set)
        assert later.status()["phase"] == "Succeeded"
    finally:
        for run in found.pods:
            run.stop(0)
            await run.finished.wait()
        await host.sandbox.stop()
        forget_changed_shim()


def _free_pages(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_bsize >> 12


def follows_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs.os, "O_NOFOLLOW", 0)


@proven(without=follows_links)
async def test_f120_logs_are_read_from_the_run_and_nowhere_else(plain: Machine, tmp_path: Path) -> None:
    """F120: the log file was replaced by a link. Holds: what it points to is not served."""
    run = await plain.ended(pod("curious", "echo", "mine"))
    secret = tmp_path / "secret"
    secret.write_text("2026-01-01T00:00:00.000000000Z stdout F hidden\n")
    log = run.directory / "containers" / "main" / "0" / "log"
    log.unlink()
    log.symlink_to(secret)
    assert "hidden" not in await text(run)


def joins_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(directory: Path, wanted: files.Files) -> None:
        for relative, (value, _) in wanted.items():
            Path(directory, relative).write_bytes(value)

    monkeypatch.setattr(files, "sync", write)


@proven(without=joins_paths)
def test_f121_a_key_cannot_leave_its_volume(tmp_path: Path) -> None:
    """F121: a config map has a key named `../x`. Holds: refused; nothing is written outside the volume."""
    volume = tmp_path / "volume"
    volume.mkdir()
    with pytest.raises(ConfigError, match="inside the volume"):
        files.sync(volume, {"../x": (b"out", 0o644)})
    assert not (tmp_path / "x").exists()


def resolves_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "open_beneath", lambda source, sub: os.open(os.path.join(source, sub), os.O_PATH))


@proven(without=resolves_links)
async def test_f121_a_sub_path_swapped_for_a_link_leads_nowhere(plain: Machine, tmp_path: Path) -> None:
    """F121: a pod replaces its subPath by a link to other files. Holds: the next container does not see them."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "private").write_text("hidden")
    (inside / "sub").symlink_to(outside)
    run = plain.start(
        pod(
            "sly",
            "cat",
            "/data/private",
            container={"volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "sub"}]},
            volumes=[{"name": "data", "hostPath": {"path": str(inside)}}],
        )
    )
    await until(lambda: run.finished.is_set() or ("waiting" in state(run) and "link" in str(state(run))))
    assert "hidden" not in b"".join([chunk async for chunk in run.logs("main", LogOptions())]).decode()


def follows_links_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    change_shim(monkeypatch, "root", "os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held", "os.O_PATH, dir_fd=held")


@proven(without=follows_links_inside)
async def test_f121_a_link_is_not_followed_when_it_is_mounted_either(isolated: Machine, tmp_path: Path) -> None:
    """F121: a subPath is a link by the time it is mounted. Holds: the container does not start, and says why."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "private").write_text("hidden")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "sub").symlink_to(tmp_path / "outside")
    mount = {"name": "data", "mountPath": "/data", "subPath": "sub"}
    volumes = [{"name": "data", "hostPath": {"path": str(tmp_path / "inside")}}]
    try:
        run = await isolated.ended(
            pod("sly", "cat", "/data/private", container={"volumeMounts": [mount]}, volumes=volumes)
        )
        assert "hidden" not in await text(run)
        assert "is a link" in state(run)["terminated"]["message"]
    finally:
        forget_changed_shim()


def removes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def here(work: Any, *arguments: Any) -> Any:
        return work(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", here)


@proven(without=removes_at_once)
async def test_f711_the_files_of_an_ended_container_go_while_everything_else_goes_on(
    one_machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F711: a container ends that has written a hundred thousand files, such as a runtime environment with packages.
    Holds: they are removed beside the event loop: API server and controllers answer meanwhile."""
    answered = threading.Event()
    waited: list[bool] = []
    removal = runtime_container.drop_files

    def slow(run: Path) -> None:
        waited.append(answered.wait(5.0))
        removal(run)

    monkeypatch.setattr(runtime_container, "drop_files", slow)
    run = one_machine.start(pod("heap", "true"))
    await until(lambda: "terminated" in state(run))
    answered.set()
    await until(lambda: run.finished.is_set())
    assert waited == [True]
