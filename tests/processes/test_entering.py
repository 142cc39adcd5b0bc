"""Commands inside a running container (probes, hooks, `kubectl exec`): what they leave behind, and who ends it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shoal.local.apiserver.streams import terminals
from shoal.local.nodes.runtime.pod import PodRun
from shoal.local.nodes.runtime.process import ContainerProcess, RunPlan
from shoal.local.nodes.runtime.program import ContainerProgram
from shoal.local.nodes.runtime.shim import kernel
from tests.patience import PATIENCE
from tests.processes.conftest import Machine, change_shim, forget_changed_shim, pod, state
from tests.processes.test_pods import command, until


def living(*words: str) -> list[int]:
    """Processes of this machine with exactly these words as their command: each test has its own."""
    wanted = b"".join(word.encode() + b"\0" for word in words)
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and command(int(name)) == wanted]


async def running(machine: Machine, **container: object) -> tuple[PodRun, ContainerProcess]:
    run = machine.start(pod("entered", "sleep", "1000", container=container))
    await until(lambda: "running" in state(run))
    found = run.container("main")
    assert found is not None and found.process is not None
    return run, found.process


@pytest.fixture
def no_process_reaps() -> Iterator[None]:
    """As where the machine's first process does not look after orphans: they come to us, and we do not either."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    yield
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 0)


async def test_what_a_hook_left_running_goes_with_its_container(one_machine: Machine) -> None:
    script = "setsid sleep 7301 > /dev/null 2>&1 < /dev/null &"
    run, _ = await running(one_machine, lifecycle={"postStart": {"exec": {"command": ["sh", "-c", script]}}})
    await until(lambda: living("sleep", "7301"))
    run.stop(0)
    await asyncio.wait_for(run.finished.wait(), PATIENCE)
    assert living("sleep", "7301") == []


async def test_a_probe_that_takes_too_long_leaves_nothing_and_holds_up_no_end(
    one_machine: Machine, no_process_reaps: None
) -> None:
    probe = {"exec": {"command": ["sh", "-c", "sleep 7302; true"]}, "periodSeconds": 0.1, "timeoutSeconds": 0.5}
    run, _ = await running(one_machine, readinessProbe={**probe, "failureThreshold": 1})
    await until(lambda: any(reason == "Unhealthy" for _, reason, _ in one_machine.events))
    run.stop(0)
    await asyncio.wait_for(run.finished.wait(), PATIENCE)
    assert living("sleep", "7302") == []


async def test_a_command_whose_caller_is_gone_is_ended(one_machine: Machine) -> None:
    run, process = await running(one_machine)
    program = await ContainerProgram.start(process, ["sh", "-c", "sleep 7303; true"], stdin=False, tty=False)
    await until(lambda: living("sleep", "7303"))
    await program.kill()
    await until(lambda: not living("sleep", "7303"))
    assert "running" in state(run)


class Silent:
    """A client that is connected and says nothing."""

    closed = False

    async def send_bytes(self, data: bytes) -> None:
        raise AssertionError(f"{data!r} was told to someone who is gone")

    async def __aiter__(self) -> AsyncIterator[object]:
        await asyncio.Event().wait()
        yield None


@pytest.mark.parametrize("tty", ["true", "false"])
async def test_a_connection_that_breaks_takes_its_command_along(one_machine: Machine, tty: str) -> None:
    run, process = await running(one_machine)

    async def start(_: object, asked: terminals.ExecOptions) -> ContainerProgram:
        return await ContainerProgram.start(process, list(asked.command), asked.stdin, asked.tty)

    query = {"command": terminals.SEPARATOR.join(("sh", "-c", "sleep 7305; true")), "tty": tty}
    serving = asyncio.create_task(terminals.run(start, run.pod, query, Silent()))
    await until(lambda: living("sleep", "7305"))
    serving.cancel()  # as the web server does to the task of a connection that is gone
    with pytest.raises(asyncio.CancelledError):
        await serving
    await until(lambda: not living("sleep", "7305"))


async def test_a_second_stop_of_a_pod_can_only_have_less_patience(one_machine: Machine) -> None:
    """`kubectl delete --force` after a delete that takes too long, and `shoal down` while a pod is being deleted."""
    run, _ = await running(one_machine, lifecycle={"preStop": {"exec": {"command": ["sleep", "7304"]}}})
    run.stop(10 * PATIENCE)
    await until(lambda: living("sleep", "7304"))
    run.stop(20 * PATIENCE)  # at every look at a pod that is being deleted: its hook is left alone
    assert living("sleep", "7304") and "running" in state(run)
    run.stop(PATIENCE)
    await asyncio.wait_for(run.finished.wait(), PATIENCE)
    assert state(run)["terminated"]["exitCode"] == 143
    assert living("sleep", "7304") == []


async def test_pipes_inside_a_command_end_as_they_do_in_a_shell(plain: Machine) -> None:
    _, process = await running(plain)
    assert await process.enter(["sh", "-c", "yes | head -n 1"]) == (0, b"y\n")


async def test_a_container_that_has_ended_is_not_entered(plain: Machine) -> None:
    run, process = await running(plain)
    run.stop(0)
    await asyncio.wait_for(run.finished.wait(), PATIENCE)
    assert await process.enter(["true"]) == (126, b"the container is not running\n")


@pytest.mark.parametrize("place", ["main = os.fork()", "execute(plan["])
async def test_a_stop_in_the_middle_of_a_start_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Before the container's main process is there, or before it has become what it is to be."""
    change_shim(
        monkeypatch, "inner", place, f"open({str(tmp_path / 'here')!r}, 'w'); __import__('time').sleep(0.5); {place}"
    )
    try:
        process = ContainerProcess(tmp_path / "run")
        starting = asyncio.create_task(process.start(RunPlan(argv=["sleep", "1000"], env={"PATH": os.defpath})))
        await until((tmp_path / "here").exists)
        process.stop(10 * PATIENCE)
        ended = await asyncio.wait_for(process.wait(), PATIENCE)
        assert (ended.exit_code, ended.signal) == (143, signal.SIGTERM)
        await starting
    finally:
        process.stop(0)
        forget_changed_shim()


async def test_all_that_is_pasted_into_a_terminal_arrives(plain: Machine) -> None:
    _, process = await running(plain)
    script = "stty raw -echo; echo ready; head -c 200000 | wc -c"
    program = await ContainerProgram.start(process, ["sh", "-c", script], stdin=True, tty=True)
    said, typing = b"", None
    async with asyncio.timeout(PATIENCE):
        async for _, data in program.output():
            said += data
            if b"ready" in said and typing is None:
                typing = asyncio.create_task(program.write(b"x" * 200000))
        assert typing is not None
        await typing
        assert (b"200000" in said, await program.wait()) == (True, 0)
