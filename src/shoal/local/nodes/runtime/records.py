"""A pod's directory on this machine: whose it is, and what was given to it.

Written before anything of the pod starts, so that a later agent knows what it finds; and how such leavings are ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
from pathlib import Path

import msgspec

from shoal.errors import ShoalError
from shoal.local.nodes.runtime.gpus import Environment
from shoal.local.nodes.runtime.host import PodHost
from shoal.local.nodes.runtime.process import ContainerProcess
from shoal.local.nodes.sandbox import SandboxAddress


class PodRecord(msgspec.Struct):
    """What must survive the agent: who this directory belongs to, and what was given to it."""

    uid: str
    namespace: str
    name: str
    node: str = ""
    address: SandboxAddress | None = None
    environment: Environment = {}


def pod_id(uid: str) -> str:
    """Short, because it names network interfaces; from the UID, because names are reused."""
    return hashlib.sha256(uid.encode()).hexdigest()[:9]


def read_record(directory: Path) -> PodRecord | None:
    try:
        return msgspec.json.decode((directory / "record.json").read_bytes(), type=PodRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def write_record(directory: Path, record: PodRecord) -> None:
    partial = directory / ".record.partial"
    partial.write_bytes(msgspec.json.encode(record))
    partial.rename(directory / "record.json")


def _runs_below(directory: Path) -> list[ContainerProcess]:
    return [ContainerProcess(path) for path in sorted(directory.glob("containers/*/*")) if path.is_dir()]


async def stop_stray(directory: Path, grace: float = 0.0) -> None:
    """End the processes of a pod that an earlier agent started."""
    living = [process for process in _runs_below(directory) if process.attach()]
    for process in living:
        process.stop(grace)
    for process in living:
        await process.wait()


async def remove_stray(host: PodHost, directory: Path, grace: float = 0.0) -> None:
    """End and forget a pod of an earlier agent that no longer exists."""
    await stop_stray(directory, grace)
    record = read_record(directory)
    if record is not None and record.address is not None:
        with contextlib.suppress(ShoalError):
            await host.sandbox.close(record.address)
    await asyncio.to_thread(shutil.rmtree, directory, True)
