"""One RayJob after the other with real Ray on one cluster, and what the machine holds for it between two of them.

Each job has a cluster of its own, which goes with it; what is measured is what stays: processes, mounts, namespaces,
control groups, sockets and files of the machine, and memory and database of the process that runs the cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

import msgspec

from shoal.local.home import Home
from shoal.local.nodes.runtime.limits import CgroupLimits, find_limits
from shoal.local.nodes.runtime.shim import kernel
from shoal.local.nodes.sandbox.loopback import LoopbackSandbox
from shoal.local.nodes.sandbox.netns import NETNS_DIRECTORY, NetnsSandbox
from tests.e2e.machine import Machine
from tests.e2e.test_shapes import cluster, ray_job
from tests.patience import PATIENCE

COUNT = "python -c 'import ray; ray.init(); print(sum(ray.get([ray.remote(lambda: 1).remote() for _ in range(20)])))'"


class Kept(msgspec.Struct, frozen=True):
    """What is there between two jobs. All but the last four are counts of things that a job had of its own."""

    processes: int
    mounts: int
    namespaces: int
    groups: int
    scratch: int
    """Directories for Ray's sockets."""
    pods: int
    """Directories of pods."""
    shared: int
    """Bytes of shared memory files in use on the whole machine; not judged, other programs have some."""
    files: int
    """Descriptors of the process that runs the cluster."""
    memory: int
    database: int

    def own(self) -> tuple[int, ...]:
        return self.processes, self.mounts, self.namespaces, self.groups, self.scratch, self.pods


def kept(machine: Machine) -> Kept:
    home, pid = Home(machine.name, machine.home / "shoal"), machine.pid()
    limits = find_limits(home.identity)
    groups = limits.root if isinstance(limits, CgroupLimits) else None
    names = f"shoal-{NetnsSandbox(home.identity).mark}-"
    own = (names, str(machine.home), str(LoopbackSandbox(home.identity).scratch_root))  # others mount things, too
    return Kept(
        processes=len(kernel.descendants(pid)),
        mounts=sum(any(one in line for one in own) for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()),
        namespaces=sum(name.startswith(names) for name in _names(Path(NETNS_DIRECTORY))),
        groups=sum(entry.is_dir() for entry in groups.iterdir()) if groups is not None and groups.exists() else 0,
        scratch=len(_names(LoopbackSandbox(home.identity).scratch_root)),
        pods=len(_names(home.runtime / "pods")),
        shared=sum(path.stat().st_size for path in Path("/dev/shm").glob("*") if path.is_file()),
        files=len(os.listdir(f"/proc/{pid}/fd")),
        memory=int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        database=sum(path.stat().st_size for path in home.api.iterdir() if path.is_file()),
    )


def _names(directory: Path) -> list[str]:
    return os.listdir(directory) if directory.is_dir() else []


def wait_long(machine: Machine, what: str, condition: str) -> None:
    """Beside other work Ray may take longer than one wait."""
    with contextlib.suppress(AssertionError):
        machine.wait(what, condition, seconds=290)
    machine.wait(what, condition, seconds=290)


def run_job(machine: Machine, name: str) -> None:
    """From its creation until nothing of it is left."""
    spec = {"entrypoint": COUNT, "rayClusterSpec": cluster()}
    machine.kubectl("create", "-f", "-", stdin=json.dumps(ray_job(name, spec)))
    wait_long(machine, f"rayjob/{name}", "jsonpath={.status.endTime}")
    status = machine.get("rayjob", name)["status"]
    assert status["jobStatus"] == "SUCCEEDED", status
    machine.kubectl("delete", "rayjob", name, "--wait=true")
    machine.kubectl("wait", "pods", "--all", "--for=delete", "--timeout=120s")


def live(machine: Machine, seconds: float, least: int) -> list[Kept]:
    """Jobs for so long, and at least so many; what is kept after each."""
    machine.wait("nodes", "condition=Ready", "--all")
    before, found, ends = kept(machine), [], time.monotonic() + seconds
    while len(found) < least or time.monotonic() < ends:
        run_job(machine, f"life-{len(found)}")
        found.append(_once_gone(machine, before))
        print(found[-1], flush=True)
    return found


def _once_gone(machine: Machine, before: Kept) -> Kept:
    """What a deleted pod had goes a moment after it; what is still there after a while is left behind."""
    until = time.monotonic() + PATIENCE
    while True:
        now = kept(machine)
        if now.own() == before.own():
            return now
        assert time.monotonic() < until, f"left behind: {now.own()} after, {before.own()} before"
        time.sleep(0.5)
