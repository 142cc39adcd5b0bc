"""Faults of pods on one machine: what must hold when agents die, pids return, pods misbehave."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shoal.api.times import parse_time
from shoal.kube.clock import SystemClock
from shoal.local.images import ImageTable
from shoal.local.nodes.runtime import memorywatch, podstatus, process, raylife
from shoal.local.nodes.runtime.container import ContainerRun
from shoal.local.nodes.runtime.gate import StartGate
from shoal.local.nodes.runtime.gpus import GpuLedger, NoDevice
from shoal.local.nodes.runtime.limits import CgroupLimits, NoLimits
from shoal.local.nodes.runtime.memorywatch import MemoryWatch
from shoal.local.nodes.runtime.pod import PodRun
from shoal.local.nodes.runtime.process import ContainerProcess
from shoal.local.nodes.runtime.processes import ProcessRuntime
from shoal.local.nodes.runtime.records import stop_stray
from shoal.local.nodes.runtime.shim import kernel
from shoal.local.nodes.sandbox import SandboxAddress
from shoal.local.nodes.sandbox import loopback as loopback_sandbox
from shoal.local.nodes.sandbox.loopback import BLOCK, LoopbackSandbox
from tests.faults import proven
from tests.patience import PATIENCE
from tests.processes.conftest import Machine, change_shim, forget_changed_shim, pod, state
from tests.processes.test_pods import command, until


def marked(mark: str) -> list[int]:
    """Living processes below this test whose command line holds the mark."""
    found = []
    for pid in kernel.descendants(os.getpid()):
        try:
            if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def never_attaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ContainerProcess, "attach", lambda self: False)


@proven(without=never_attaches)
async def test_f097_a_restarted_agent_finds_its_pods_again(one_machine: Machine) -> None:
    """F97: the agent dies while pods run. Holds: the next one re-attaches, nothing is restarted or left over."""
    manifest = pod("steady", "sleep", "5097")
    first = one_machine.start(manifest)
    await until(lambda: "running" in state(first))
    shims = marked("5097")
    await first.detach()
    one_machine.pods.clear()
    second = PodRun(one_machine.host, manifest, lambda: None)
    second.start()
    try:
        await until(
            lambda: (
                second.status()["containerStatuses"][0]["state"] != {"waiting": {"reason": "ContainerCreating"}}
                and "PodInitializing" not in str(second.status())
            )
        )
        status = second.status()["containerStatuses"][0]
        assert "running" in status["state"] and status["restartCount"] == 0
        assert marked("5097") == shims
        second.stop(0)
        await second.finished.wait()
        assert marked("5097") == []
    finally:
        for pid in marked("5097"):
            os.kill(pid, signal.SIGKILL)


@proven(without=never_attaches)
async def test_f097_what_is_left_of_a_deleted_pod_is_removed(one_machine: Machine) -> None:
    """F97: the pod was deleted while the agent was down. Holds: its processes end, its files go."""
    run = one_machine.start(pod("orphan", "sleep", "5197"))
    await until(lambda: "running" in state(run))
    await run.detach()
    one_machine.pods.clear()
    try:
        await ProcessRuntime(one_machine.host).sweep(known=set())
        assert marked("5197") == []
        assert not run.directory.exists()
    finally:
        for pid in marked("5197"):
            os.kill(pid, signal.SIGKILL)


def believes_the_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    def hold(identity: object) -> int:
        return os.pidfd_open(identity.pid)  # type: ignore[attr-defined]

    def send(identity: object, number: signal.Signals) -> bool:
        os.kill(identity.pid, number)  # type: ignore[attr-defined]
        return True

    monkeypatch.setattr(process, "hold", hold)
    monkeypatch.setattr(process, "signal_exactly", send)


@proven(without=believes_the_pid)
async def test_f098_a_reused_pid_is_a_stranger(tmp_path: Path) -> None:
    """F98: the shim's pid now belongs to another process. Holds: it gets no signal from us."""
    stranger = subprocess.Popen(["sleep", "5098"])  # noqa: ASYNC220 - it must not be a child that asyncio reaps
    try:
        run = tmp_path / "containers" / "main" / "0"
        run.mkdir(parents=True)
        (run / "shim.json").write_text(json.dumps({"pid": stranger.pid, "start": 1}))
        async with asyncio.timeout(PATIENCE):
            await stop_stray(tmp_path)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


class SteppingClock(SystemClock):
    """Wall time that falls back by a day while the machine runs on."""

    def __init__(self) -> None:
        self.offset = 0

    def now(self) -> int:
        return super().now() + self.offset


def waits_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    async def back_off(self: ContainerRun) -> None:
        self.restart_count += 1
        deadline = int(parse_time(self.state["terminated"]["finishedAt"])) + 50_000
        while self.host.clock.now() < deadline:  # noqa: ASYNC110 - what the protection avoids
            await asyncio.sleep(0.02)

    monkeypatch.setattr(ContainerRun, "_back_off", back_off)


@proven(without=waits_by_the_wall_clock)
async def test_f103_restarts_go_on_when_the_clock_falls_back(one_machine: Machine) -> None:
    """F103: the wall clock steps back by a day. Holds: back-off counts elapsed time, containers restart as before."""
    clock = SteppingClock()
    one_machine.host.clock = clock
    run = one_machine.start(pod("dizzy", "false", policy="Always"))
    await until(lambda: run.status()["containerStatuses"][0]["restartCount"] >= 1)
    clock.offset = -86_400_000_000
    before = run.status()["containerStatuses"][0]["restartCount"]
    await until(lambda: run.status()["containerStatuses"][0]["restartCount"] >= before + 2)


def trusts_every_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback_sandbox, "_bindable", lambda port, address="": True)


@proven(without=trusts_every_port)
async def test_f105_blocks_of_ports_are_free_and_disjoint() -> None:
    """F105: a port of the next block is taken by someone else. Holds: it is skipped; no two pods share anything."""
    sandbox = LoopbackSandbox(f"ports@{os.getpid()}")
    first = await sandbox.open("a")
    with socket.socket() as stranger:
        with suppress(OSError):  # it is taken by someone else already
            stranger.bind(("", first.port_base + BLOCK + 3))
            stranger.listen()
        others = [await sandbox.open(name) for name in "bcd"]
    everyone = [first, *others]
    assert len({address.ip for address in everyone}) == 4
    ports = [port for address in everyone for port in range(address.port_base, address.port_base + BLOCK)]
    assert len(set(ports)) == len(ports)
    assert first.port_base + BLOCK + 3 not in ports


def holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback_sandbox, "mark", lambda name: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))


@proven(without=holds_nothing)
async def test_f105_two_clusters_never_share_loopback_addresses() -> None:
    """F105: two clusters' names lead to the same addresses and ports. Holds: the second one takes others."""
    one, other = LoopbackSandbox("twin"), LoopbackSandbox("twin")
    try:
        first, second = await one.open("a"), await other.open("b")
        assert first.ip != second.ip and one.host_ip() != other.host_ip()
        assert first.port_base != second.port_base  # although no process has bound anything yet
    finally:
        await one.stop()
        await other.stop()


def open_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    async def enter(self: StartGate, weight: int) -> None:
        return None

    monkeypatch.setattr(StartGate, "enter", enter)
    monkeypatch.setattr(StartGate, "leave", lambda self, weight: None)


@proven(without=open_gate)
async def test_f106_ray_nodes_start_a_few_at_a_time(one_machine: Machine, tmp_path: Path) -> None:
    """F106: many Ray nodes are bound at once. Holds: no more than the gate's width start together, and all do start."""
    environment, record = tmp_path / "env", tmp_path / "record"
    (environment / "bin").mkdir(parents=True)
    fake = environment / "bin" / "ray"
    fake.write_text(f"#!/bin/sh\necho + >> {record}/log\nsleep 0.3\necho - >> {record}/log\n")
    fake.chmod(0o755)
    record.mkdir()
    one_machine.host.images = ImageTable({"ray": str(environment)})
    mounts = {"volumeMounts": [{"name": "record", "mountPath": str(record)}]}
    runs = [
        one_machine.start(
            pod(
                f"node-{n}",
                "sh",
                "-c",
                "ray start --address=10.0.0.1:1",
                image="ray",
                container=mounts,
                volumes=[{"name": "record", "hostPath": {"path": str(record)}}],
            )
        )
        for n in range(6)
    ]
    await asyncio.gather(*(run.finished.wait() for run in runs))
    starting, most = 0, 0
    for mark in (record / "log").read_text().split():
        starting += 1 if mark == "+" else -1
        most = max(most, starting)
    assert (record / "log").read_text().count("+") == 6
    assert most <= one_machine.host.gate.width


def leaves_only_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ContainerRun, "leave_gate", lambda self: None)


@proven(without=leaves_only_by_itself)
async def test_f106_ray_nodes_that_end_at_once_leave_the_gate(plain: Machine) -> None:
    """F106: Ray nodes fail the moment they start. Holds: none keeps its place; the ones behind them start, too."""
    runs = [plain.start(pod(f"n{n}", "sh", "-c", "false # ray start --head", image="ray")) for n in range(6)]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(run.finished.wait() for run in runs))
    assert plain.host.gate.starting == 0


def without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CgroupLimits, "open", lambda self, group, memory: [])


@proven(without=without_limits)
async def test_f107_the_pod_over_its_limit_is_the_one_that_dies(isolated: Machine) -> None:
    """F107: a pod takes more memory than its limit. Holds: it is OOMKilled and says so; its neighbour goes on."""
    if isinstance(isolated.host.limits, NoLimits):
        pytest.skip("no memory control group is available on this machine")
    neighbour = isolated.start(pod("neighbour", "sleep", "1000"))
    hog = await isolated.ended(
        pod(
            "hog",
            "python3",
            "-c",
            "x = bytearray(256 << 20)",
            image="python",
            container={"resources": {"limits": {"memory": "64Mi"}}},
        )
    )
    ended = state(hog)["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    assert "running" in state(neighbour)


def sees_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memorywatch, "private_memory", lambda roots: {})


@proven(without=sees_no_memory)
async def test_f107_memory_is_watched_where_no_group_holds_it(plain: Machine) -> None:
    """F107: a pod takes more than its limit and there are no control groups. Holds: it is OOMKilled, and it alone."""
    plain.host.limits, plain.host.memory_watch = NoLimits(), MemoryWatch(period=0.1)
    limits = {"resources": {"limits": {"memory": "64Mi"}}}
    neighbour = plain.start(pod("small", "sleep", "100", container=limits))
    hog = "x = bytearray(200 << 20); import time; time.sleep(30)"
    run = await plain.ended(pod("hog", "python3", "-c", hog, image="python", container=limits))
    ended = state(run)["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    assert "running" in state(neighbour)


def never_looks_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ContainerRun, "_resumed", lambda self: False)


@proven(without=never_looks_back)
async def test_f108_a_pod_that_ended_while_no_agent_lived_is_not_run_again(plain: Machine) -> None:
    """F108: the agent dies, the pod ends, another agent comes. Holds: the end is reported, the work not repeated."""
    notes = plain.host.directory / "notes"
    notes.mkdir()
    manifest = pod(
        "once",
        "sh",
        "-c",
        "echo ran >> /notes/log; until test -e /notes/end; do sleep 0.05; done; exit 3",
        container={"volumeMounts": [{"name": "notes", "mountPath": "/notes"}]},
        volumes=[{"name": "notes", "hostPath": {"path": str(notes)}}],
    )
    first = plain.start(manifest)
    await until(lambda: "running" in state(first))
    await first.detach()
    (notes / "end").touch()
    await until((first.directory / "containers" / "main" / "0" / "exit.json").exists)
    second = await plain.ended(manifest)
    assert state(second)["terminated"]["exitCode"] == 3
    assert (notes / "log").read_text() == "ran\n"


def leaves_descendants(monkeypatch: pytest.MonkeyPatch) -> None:
    change_shim(monkeypatch, "kernel", "def kill_descendants(first):\n", "def kill_descendants(first):\n    return\n")


@proven(without=leaves_descendants)
async def test_f109_a_pod_that_misbehaves_in_every_way_still_ends(plain: Machine) -> None:
    """F109: a pod floods its output, ignores SIGTERM and double-forks. Holds: output is capped, nothing outlives it."""
    script = (
        'trap "" TERM; (setsid sh -c "trap \\"\\" TERM; sleep 5109; :" &); '
        "yes 5109-flood-of-output & while true; do sleep 5109; done"
    )
    run = plain.start(pod("wild", "sh", "-c", script))
    try:
        await until(lambda: len(marked("5109")) >= 3)
        log = run.directory / "containers" / "main" / "0"
        await until(lambda: (log / "log.1").exists(), 60)
        run.stop(0.2)
        async with asyncio.timeout(PATIENCE):
            await run.finished.wait()
        assert marked("5109") == []
        assert sum(path.stat().st_size for path in log.glob("log*")) <= 2 * process.LOG_CAP + (1 << 20)
        assert state(run)["terminated"]["exitCode"] == 137
    finally:
        for pid in [*marked("5109"), *marked("uid-wild")]:
            os.kill(pid, signal.SIGKILL)
        forget_changed_shim()


def never_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    async def blind(identity: object) -> None:
        await asyncio.sleep(30)

    monkeypatch.setattr(process, "_gone", blind)


@proven(without=never_notices)
async def test_f110_a_process_killed_from_outside_is_noticed_and_shown(one_machine: Machine) -> None:
    """F110: someone kills a pod's processes by name. Holds: the loss is in the pod's status within 10 s."""
    run = one_machine.start(pod("victim", "sleep", "5110", policy="Always"))
    await until(lambda: "running" in state(run) and bool(marked("5110")))
    main = next(pid for pid in marked("5110") if b"shim" not in command(pid))
    os.kill(main, signal.SIGKILL)
    await until(lambda: run.status()["containerStatuses"][0]["restartCount"] == 1)
    assert run.status()["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137


def believes_ray_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*arguments: object) -> None:
        await asyncio.sleep(30)

    monkeypatch.setattr(raylife, "until_gone", never)


FAKE_RAY = """#!{python}
import http.server, os, signal, threading, time
class Agent(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"success")
agent = http.server.HTTPServer(("", 52365), Agent)
def raylet_ends(*_):
    threading.Thread(target=lambda: (agent.shutdown(), agent.server_close())).start()
signal.signal(signal.SIGUSR1, raylet_ends)
threading.Thread(target=agent.serve_forever, daemon=True).start()
print("Ray runtime started.", flush=True)
while True: time.sleep(1000)
"""


async def fake_ray(isolated: Machine, tmp_path: Path, **lifecycle: Any) -> tuple[Any, Any]:
    """A pod and its container, in which `ray start` has come up."""
    fake = tmp_path / "env" / "bin" / "ray"
    fake.parent.mkdir(parents=True)
    fake.write_text(FAKE_RAY.format(python=sys.executable))
    fake.chmod(0o755)
    isolated.host.images = ImageTable({"ray": str(tmp_path / "env")})
    isolated.host.ray_period = 0.1
    made = pod("head", "sh", "-c", "exec ray start --head --block", image="ray", policy="Always")
    made["spec"]["containers"][0]["lifecycle"] = lifecycle
    run = isolated.start(made)

    def up() -> bool:
        container = run.container("main")
        return container is not None and container.ray_was_up

    await until(up)
    return run, run.container("main")


@proven(without=believes_ray_start)
async def test_f110_a_ray_node_that_ended_behind_its_ray_start_is_noticed(isolated: Machine, tmp_path: Path) -> None:
    """F110: someone ends a raylet by SIGTERM; `ray start` stays. Holds: shown and restarted within seconds."""
    run, container = await fake_ray(isolated, tmp_path)
    assert container.process is not None
    code, _ = await container.process.enter(["sh", "-c", "kill -USR1 2"])  # what runs as the container's first process
    assert code == 0
    await until(lambda: run.status()["containerStatuses"][0]["restartCount"] == 1)
    assert any("Ray is gone" in message for _, _, message in isolated.events)


async def test_a_ray_node_that_its_own_hook_stops_is_not_missed(isolated: Machine, tmp_path: Path) -> None:
    hook = {"exec": {"command": ["sh", "-c", "kill -USR1 2; sleep 0.5"]}}
    run, _ = await fake_ray(isolated, tmp_path, preStop=hook)
    run.stop(5.0)
    await asyncio.wait_for(run.finished.wait(), PATIENCE)
    assert not any("Ray is gone" in message for _, _, message in isolated.events)


def forgets_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuLedger, "note", lambda self, node, uid, environment: None)


@proven(without=forgets_devices)
async def test_f111_a_gpu_is_not_handed_out_twice_across_a_restart(one_machine: Machine) -> None:
    """F111: the agent restarts while a pod holds the only GPU. Holds: a second pod does not get it."""
    wants = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    before = ProcessRuntime(one_machine.host)
    before.gpus.add_node("node-0", {"nvidia.com/gpu": "1"})
    holder = before.create(pod("holder", "sleep", "1000", container=wants, nodeName="node-0"), lambda: None)
    holder.start()
    one_machine.pods.append(holder)
    await until(lambda: "running" in state(holder))
    after = ProcessRuntime(one_machine.host)
    await after.start()
    after.gpus.add_node("node-0", {"nvidia.com/gpu": "1"})
    with pytest.raises(NoDevice):
        after.create(pod("second", "sleep", "1000", container=wants, nodeName="node-0"), lambda: None)


def forgets_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuLedger, "_read", lambda self: None)


@proven(without=forgets_ranges)
def test_f111_nodes_keep_their_gpus_in_whatever_order_they_return(tmp_path: Path) -> None:
    """F111: after a restart the nodes are seen in another order. Holds: each owns the numbers that it had before."""
    wants = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    before = GpuLedger(tmp_path / "gpus.json")
    for node in ("a", "b"):
        before.add_node(node, {"nvidia.com/gpu": "1"})
    held = before.take("a", "one", pod("one", "true", container=wants))
    after = GpuLedger(tmp_path / "gpus.json")
    after.note("a", "one", held)
    for node in ("b", "a"):
        after.add_node(node, {"nvidia.com/gpu": "1"})
    given = after.take("b", "two", pod("two", "true", container=wants))
    assert (held["main"], given["main"]) == ({"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"})
    after.give_back("a", "one")
    assert after.take("a", "next", pod("next", "true", container=wants)) == held


def test_devices_of_a_node_that_is_gone_or_shrank_are_there_for_others(tmp_path: Path) -> None:
    """Real devices have only so many numbers."""
    wants = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    ledger = GpuLedger(tmp_path / "gpus.json")
    for node in ("a", "b"):
        ledger.add_node(node, {"nvidia.com/gpu": "2"})
    first, held = (ledger.take("b", name, pod(name, "true", container=wants)) for name in ("first", "held"))
    assert (first["main"], held["main"]) == ({"CUDA_VISIBLE_DEVICES": "2"}, {"CUDA_VISIBLE_DEVICES": "3"})
    ledger.give_back("b", "first")
    ledger.add_node("b", {"nvidia.com/gpu": "1"})  # it keeps the one that is in use
    ledger.keep_nodes(["b"])
    again = GpuLedger(tmp_path / "gpus.json")
    again.note("b", "held", held)
    again.add_node("c", {"nvidia.com/gpu": "3"})
    given = again.take("c", "all", pod("all", "true", container={"resources": {"limits": {"nvidia.com/gpu": "3"}}}))
    assert given["main"] == {"CUDA_VISIBLE_DEVICES": "0,1,2"}


def runs_with_its_first_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        podstatus, "_never_started", lambda container: container.name == "main" and "waiting" in container.state
    )


@proven(without=runs_with_its_first_container)
async def test_f782_a_pod_is_running_once_each_of_its_containers_was_started(plain: Machine) -> None:
    """F782: one container of a pod runs, another waits for its first start. Holds: the pod is Pending until then, as a
    kubelet says; a client that waits for Running can enter every container."""
    wants = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "late", "key": "key"}}}
    manifest = pod("two", "sleep", "5782")
    main = manifest["spec"]["containers"][0]
    manifest["spec"]["containers"].append({**main, "name": "second", "env": [wants]})
    run = plain.start(manifest)
    await until(lambda: "running" in state(run) and "CreateContainerConfigError" in str(state(run, "second")))
    assert run.status()["phase"] == "Pending"
    plain.things.secrets["late"] = {"data": {"key": "eA=="}}
    await until(lambda: "running" in state(run, "second"))
    assert run.status()["phase"] == "Running"
    await run.detach()
    plain.pods.clear()
    again = plain.start({**manifest, "status": run.status()})
    assert again.status()["phase"] == "Running"  # never back to Pending, while its containers are found again


def keeps_any_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback_sandbox, "_is_ours", lambda address: True)


@proven(without=keeps_any_address)
async def test_f784_a_pod_keeps_no_address_of_another_sandbox(tmp_path: Path) -> None:
    """F784: a cluster that ran with networks of its own is started again in loopback. Holds: its pods get an address
    and ports of this sandbox; with the old ones Ray would end again and again. One of this sandbox is kept."""
    sandbox = LoopbackSandbox("moved", None, tmp_path)
    moved = await sandbox.open("moved", SandboxAddress("moved", "10.174.1.1", "/run/netns/gone"))
    assert moved.ip.startswith("127.") and moved.port_base and not moved.namespace
    await sandbox.close(moved)
    assert await sandbox.open("moved", moved) == moved
    await sandbox.close(moved)
