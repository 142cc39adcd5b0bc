"""Pods on this machine, for the tests beside this file: a host over a temporary directory, in each sandbox."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.api.meta import Json
from shoal.local import machine
from shoal.local.nodes.runtime import process
from shoal.local.nodes.runtime.gate import StartGate
from shoal.local.nodes.runtime.host import PodHost
from shoal.local.nodes.runtime.limits import find_limits
from shoal.local.nodes.runtime.logs import LogOptions
from shoal.local.nodes.runtime.pod import PodRun
from shoal.local.nodes.runtime.shim import kernel
from shoal.local.nodes.sandbox.loopback import LoopbackSandbox, MountsSandbox
from shoal.local.nodes.sandbox.netns import NetnsSandbox
from tests.patience import PATIENCE

CHANGED_SHIM = Path(os.environ.get("TMPDIR", "/tmp")) / f"changed-shim-{os.getpid()}"


def change_shim(monkeypatch: pytest.MonkeyPatch, part: str, before: str, after: str) -> None:
    """Containers start with a copy of the shim that differs in one place, until `forget_changed_shim`."""
    shutil.copytree(process.SHIM, CHANGED_SHIM / "shim", ignore=shutil.ignore_patterns("__pycache__"))
    changed = CHANGED_SHIM / "shim" / f"{part}.py"
    source = changed.read_text()
    assert before in source
    changed.write_text(source.replace(before, after))
    monkeypatch.setattr(process, "SHIM", CHANGED_SHIM / "shim")


def forget_changed_shim() -> None:
    shutil.rmtree(CHANGED_SHIM, ignore_errors=True)


class Things:
    """What pods refer to, as dictionaries."""

    def __init__(self) -> None:
        self.config_maps: dict[str, Json] = {}
        self.secrets: dict[str, Json] = {}
        self.claims = {"books"}
        self.accounts: dict[str, Json] = {"default": {}}
        self.tokens: list[tuple[str, str, int]] = []
        """The tokens that were asked for: account, audience, seconds."""

    async def config_map(self, namespace: str, name: str) -> Json | None:
        return self.config_maps.get(name)

    async def secret(self, namespace: str, name: str) -> Json | None:
        return self.secrets.get(name)

    async def claim(self, namespace: str, name: str) -> bool:
        return name in self.claims

    async def account(self, namespace: str, name: str) -> Json | None:
        return self.accounts.get(name)

    async def token(self, pod: Json, account: str, audience: str, seconds: int) -> str:
        self.tokens.append((account, audience, seconds))
        return f"token-of-{account}"

    def certificate(self) -> str:
        return "certificate"

    def api_address(self) -> tuple[str, int] | None:
        return ("127.0.0.1", 6443)

    def allocatable(self, node: str) -> dict[str, str]:
        return {"cpu": "4", "memory": "8Gi"}


class Machine:
    """A host with the pods that a test started on it."""

    def __init__(self, host: PodHost, things: Things) -> None:
        self.host = host
        self.things = things
        self.pods: list[PodRun] = []
        self.events: list[tuple[str, str, str]] = []
        host.announce = lambda pod, kind, reason, message: self.events.append(
            (pod["metadata"]["name"], reason, message)
        )

    def start(self, pod: Json, **options: Any) -> PodRun:
        run = PodRun(self.host, pod, lambda: None, **options)
        run.start()
        self.pods.append(run)
        return run

    async def ended(self, pod: Json) -> PodRun:
        run = self.start(pod)
        await finished(run)
        return run


async def finished(run: PodRun) -> None:
    """A pod that does not end says how far it came."""
    try:
        await asyncio.wait_for(run.finished.wait(), 2 * PATIENCE)
    except TimeoutError:
        raise AssertionError(f"pod {run.pod['metadata']['name']} does not end: {run.status()}") from None


@pytest.fixture(params=["netns", "loopback"])
async def one_machine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Machine]:
    async for found in _machine(request.param, tmp_path):
        yield found


@pytest.fixture
async def isolated(tmp_path: Path) -> AsyncIterator[Machine]:
    async for found in _machine("netns", tmp_path):
        yield found


@pytest.fixture
async def rooted(tmp_path: Path) -> AsyncIterator[Machine]:
    async for found in _machine("mounts", tmp_path):
        yield found


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[Machine]:
    async for found in _machine("loopback", tmp_path):
        yield found


async def _machine(kind: str, directory: Path) -> AsyncIterator[Machine]:
    if kind == "netns" and not machine.may_use_namespaces():
        pytest.skip("network namespaces need root")
    if kind == "mounts" and not machine.may_use_mounts():
        pytest.skip("mount namespaces need root")
    things = Things()
    name = f"test@{directory}"
    shared = MountsSandbox if kind == "mounts" else LoopbackSandbox
    sandbox = NetnsSandbox(name) if kind == "netns" else shared(name, None, directory / "pods")
    host = PodHost(
        directory=directory,
        sandbox=sandbox,
        sources=things,
        limits=find_limits(name),
        gate=StartGate(2),
        restart_base=0.05,
        retry_period=0.05,
    )
    await sandbox.start()
    found = Machine(host, things)
    yield found
    for run in found.pods:
        run.stop(0)
        await finished(run)
    await sandbox.stop()
    host.limits.release()
    await _nothing_left(str(directory))


async def _nothing_left(mark: str) -> None:
    """After every test: a live process belongs to a live pod, and there is none."""
    left: list[int] = []
    for _ in range(600):
        left = [pid for pid in kernel.descendants(os.getpid()) if mark.encode() in _command(pid)]
        if not left:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"processes of ended pods are still there: {left}")


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def pod(
    name: str, *command: str, image: str = "busybox", policy: str = "Never", container: Json | None = None, **spec: Any
) -> Json:
    """A pod of one container `main` that runs `command` in a shell's words."""
    main: Json = {
        "name": "main",
        "image": image,
        **({"command": list(command)} if command else {}),
        **(container or {}),
    }
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": {"app": name}}
    return {"metadata": metadata, "spec": {"containers": [main], "restartPolicy": policy, **spec}}


async def text(run: PodRun, container: str = "main", **options: Any) -> str:
    return b"".join([chunk async for chunk in run.logs(container, LogOptions(**options))]).decode()


def state(run: PodRun, container: str = "main") -> Json:
    status = run.status()
    everyone = [*status["containerStatuses"], *status.get("initContainerStatuses", ())]
    return next(entry for entry in everyone if entry["name"] == container)["state"]  # type: ignore[no-any-return]
