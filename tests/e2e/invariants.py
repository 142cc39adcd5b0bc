"""What must be true of processes, addresses and files whenever a one-machine cluster runs, and after it went down.

Called after every end-to-end test, from facts that the machine itself tells: pids with start times, records on disk,
interfaces, control groups. I6 and I42: a live process belongs to a live pod. I9: no node is given more pods than it has
room for. I44: what pods hold is disjoint. I48, I51: the cluster listens and talks on loopback and with its own pods.
I45: nothing is written outside the cluster's own places. I43 (signals) is watched by `only_own_processes_signalled`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from shoal.api.meta import Json
from shoal.api.quantity import amounts
from shoal.engine.facts import pod_requests
from shoal.local.apiserver.kinds.strategy import SERVICE_NETWORK
from shoal.local.home import Home
from shoal.local.nodes.runtime.gpus import numbers
from shoal.local.nodes.runtime.identity import ProcessIdentity, alive, start_time
from shoal.local.nodes.runtime.limits import CgroupLimits, find_limits
from shoal.local.nodes.runtime.ownership import memory_directory
from shoal.local.nodes.runtime.process import recorded_identity
from shoal.local.nodes.runtime.records import PodRecord, read_record
from shoal.local.nodes.runtime.shim import kernel
from shoal.local.nodes.sandbox.loopback import BLOCK, LoopbackSandbox
from shoal.local.nodes.sandbox.netns import NETNS_DIRECTORY, NetnsSandbox
from tests.checker.safety import strange_sockets

TERMINAL = ("Succeeded", "Failed")
GRACE_SECONDS = 30.0
"""How long a process may outlive its pod, and a pod its last look."""


def live_shims(home: Home) -> dict[str, list[ProcessIdentity]]:
    """Pod UID to the shims of its containers that live."""
    found: dict[str, list[ProcessIdentity]] = {}
    for directory in sorted((home.runtime / "pods").glob("*/")):
        record = read_record(directory)
        if record is not None:
            runs = [recorded_identity(run) for run in directory.glob("containers/*/*")]
            if living := [one for one in runs if one is not None and alive(one)]:
                found[record.uid] = living
    return found


def whole_tree(home: Home) -> list[ProcessIdentity]:
    """Every process that any pod of the cluster runs."""
    found = []
    for shims in live_shims(home).values():
        for one in shims:
            for pid in [one.pid, *kernel.descendants(one.pid)]:
                began = start_time(pid)
                if began is not None:
                    found.append(ProcessIdentity(pid, began))
    return found


def hold_while_running(home: Home, look: Callable[[], tuple[list[Json], list[Json]]]) -> None:
    """I6, I9, I42, I44, I48, I51 over a cluster and its pods and nodes as the API server knows them.

    Processes and objects are looked at one after the other, and either may change in between: what breaks a rule is
    looked at again for a while, as long as things may be on their way.
    """
    until = monotonic() + GRACE_SECONDS
    while True:
        try:
            return judge_running(home, *look())
        except AssertionError:
            if monotonic() > until:
                raise
            sleep(0.5)


async def hold_in_process(home: Home, look: Callable[[], Awaitable[tuple[list[Json], list[Json]]]]) -> None:
    """The same for a cluster that runs in this very loop."""
    until = monotonic() + GRACE_SECONDS
    while True:
        try:
            return judge_running(home, *await look())
        except AssertionError:
            if monotonic() > until:
                raise
            await asyncio.sleep(0.5)


def judge_running(home: Home, pods: list[Json], nodes: list[Json]) -> None:
    """One look at processes and sockets beside these objects."""
    within_room(pods, nodes)
    keeps_to_itself(home, pods, nodes)
    by_uid = {pod["metadata"]["uid"]: pod for pod in pods}
    shims_by_pod = live_shims(home)
    for uid, shims in shims_by_pod.items():
        assert uid in by_uid, f"I6: processes {shims} belong to a pod that is gone"
        phase = (by_uid[uid].get("status") or {}).get("phase")
        assert phase not in TERMINAL, f"I42: processes {shims} belong to a pod that is {phase}"
    records = [record for record in map(read_record, (home.runtime / "pods").glob("*/")) if record is not None]
    held = [record for record in records if record.uid in shims_by_pod]
    disjoint(held)
    for record in held:
        told = by_uid[record.uid]["status"].get("podIP")
        assert record.address is None or told in (None, record.address.ip), "I44: the pod's address is not its own"


class _Known(set[str]):
    """Addresses, and all that Services may have: the agent relays there, on the cluster's own bridge."""

    def __contains__(self, address: object) -> bool:
        return super().__contains__(address) or ipaddress.ip_address(str(address)) in SERVICE_NETWORK


def keeps_to_itself(home: Home, pods: list[Json], nodes: list[Json]) -> None:
    """I48 and I51 of the process that runs the cluster."""
    running = home.running()
    known = _Known((pod.get("status") or {}).get("podIP") or "" for pod in pods)
    known |= {one["address"] for node in nodes for one in node["status"].get("addresses") or ()}
    found = strange_sockets(running[0].pid, known) if running is not None else []
    assert found == [], found


def within_room(pods: list[Json], nodes: list[Json]) -> None:
    """I9: requests of bound pods that have not ended stay within what their node offers."""
    used: dict[str, Counter[str]] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and (pod.get("status") or {}).get("phase") not in TERMINAL:
            used.setdefault(node, Counter()).update({"pods": 1, **pod_requests(pod["spec"])})
    for one in nodes:
        offered = amounts(one["status"]["allocatable"])
        taken = used.get(one["metadata"]["name"], Counter())
        over = {resource: taken[resource] for resource in taken if taken[resource] > offered.get(resource, 0)}
        assert not over, f"I9: node {one['metadata']['name']} offers {offered} and is asked for {over}"


def disjoint(records: list[PodRecord]) -> None:
    """I44 over what pods were given."""
    addresses = [record.address for record in records if record.address is not None]
    own = [address.ip for address in addresses if address.namespace or address.port_base]
    assert len(own) == len(set(own)), f"I44: an address is held twice: {sorted(own)}"
    ports = [address.port_base + n for address in addresses if address.port_base for n in range(BLOCK)]
    assert len(ports) == len(set(ports)), "I44: a port is held twice"
    devices = [number for record in records for number in numbers(record.environment)]
    assert len(devices) == len(set(devices)), f"I44: a device is held twice: {devices}"


def hold_afterwards(home: Home, before: list[ProcessIdentity]) -> None:
    """I42 and I45 after `shoal down`: no process, no interface, no group, nothing in places that all share."""
    left = [one for one in before if alive(one)]
    assert left == [], f"I42: these outlived `shoal down`: {[_command(one.pid) for one in left]}"
    assert live_shims(home) == {}, "I42: shims outlived `shoal down`"
    mark = NetnsSandbox(home.identity).mark
    spaces = os.listdir(NETNS_DIRECTORY) if os.path.isdir(NETNS_DIRECTORY) else []
    assert not [name for name in spaces if name.startswith(f"shoal-{mark}-")], "I45: network namespaces are left"
    assert f"shoal{mark}" not in os.listdir("/sys/class/net"), "I45: the bridge is left"
    scratch = LoopbackSandbox(home.identity).scratch_root
    assert not scratch.exists(), f"I45: {scratch} is left: {sorted(scratch.rglob('*'))[:5]}"
    memory = memory_directory(home.identity)
    assert not memory.exists() or read_any(home), f"I45: {memory} is left"
    limits = find_limits(home.identity)
    if isinstance(limits, CgroupLimits):
        groups = [entry for entry in limits.root.iterdir() if entry.is_dir()] if limits.root.exists() else []
        limits.release()
        assert groups == [], f"I45: control groups are left: {groups}"


def read_any(home: Home) -> bool:
    """Whether pods are kept for the next start, and their volumes with them."""
    return any(read_record(directory) for directory in (home.runtime / "pods").glob("*/"))


@contextmanager
def only_own_processes_signalled() -> Iterator[None]:
    """I43, for a cluster that runs in this process: what it signals descends from it."""
    strangers: list[int] = []
    real_kill, real_pidfd = os.kill, signal.pidfd_send_signal

    def kill(pid: int, number: int) -> None:
        if number and pid != os.getpid() and not _descends(pid):
            strangers.append(pid)
        real_kill(pid, number)

    def pidfd(descriptor: int, number: int, *more: int) -> None:
        text = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        pid = int(text.split("Pid:")[1].split()[0])
        if pid > 0 and not _descends(pid):
            strangers.append(pid)
        real_pidfd(descriptor, number, *more)

    os.kill, signal.pidfd_send_signal = kill, pidfd  # type: ignore[assignment]
    try:
        yield
    finally:
        os.kill, signal.pidfd_send_signal = real_kill, real_pidfd
    assert strangers == [], f"I43: processes that we did not start were signalled: {strangers}"


def _descends(pid: int) -> bool:
    """Or is gone. The tree is read process by process while others end: one look may miss a branch."""
    return any(start_time(pid) is None or pid in kernel.descendants(os.getpid()) for _ in range(5))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "?"


def hold_in_order(home: Home) -> None:
    """It has ended in order: no task was left behind and no exception went unseen."""
    for name in ("shoal.out", "shoal.log"):
        file = home.directory / name
        said = file.read_text(errors="replace") if file.exists() else ""
        assert "Task was destroyed" not in said and "never retrieved" not in said, said[-3000:]
