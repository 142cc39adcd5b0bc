"""A container that runs already is looked at and typed into: `kubectl attach`, `kubectl run -i` and `-it`."""

from __future__ import annotations

import asyncio

import pytest

from shoal.local.nodes.runtime.pod import PodRun
from shoal.local.nodes.runtime.program import AttachedContainer
from tests.processes.conftest import Machine, change_shim, forget_changed_shim, pod, state, text
from tests.processes.test_pods import until


async def attach(run: PodRun, stdin: bool = True, container: str = "main") -> AttachedContainer:
    await until(lambda: "running" in state(run, container))
    found = run.container(container)
    assert found is not None and found.process is not None
    return await AttachedContainer.start(found.process, stdin)


async def shown(program: AttachedContainer, until_seen: str = "") -> str:
    """What the container prints, up to some words or to its end."""
    found = b""
    async with asyncio.timeout(60):
        async for _, data in program.output():
            found += data
            if until_seen and until_seen.encode() in found:
                break
    return found.decode()


async def test_what_is_typed_is_read_and_its_end_is_the_end(one_machine: Machine) -> None:
    run = one_machine.start(pod("typed", "sort", container={"stdin": True, "stdinOnce": True}))
    program = await attach(run)
    await program.write(b"pears\n")
    await program.write(b"apples\n" + b"zebras\n" * 20000)  # more than any pipe holds
    await program.close_input()
    assert (await shown(program)).startswith("apples\npears\nzebras\n")
    await run.finished.wait()
    assert state(run)["terminated"]["exitCode"] == 0
    assert (await text(run)).count("zebras") == 20000


async def test_input_stays_open_for_others_unless_it_is_for_one(plain: Machine) -> None:
    script = 'read one; echo "first $one"; read two; echo "second $two"'
    run = plain.start(pod("patient", "sh", "-c", script, container={"stdin": True}))
    first, onlooker = await attach(run), await attach(run, stdin=False)
    await first.write(b"a\n")
    assert "first a" in await shown(first, "first a")
    await first.close_input()
    await first.kill()
    second = await attach(run)
    await second.write(b"b\n")
    assert "second b" in await shown(second)
    assert await shown(onlooker) == "first a\nsecond b\n"


async def test_a_client_that_only_looks_ends_nothing(plain: Machine) -> None:
    run = plain.start(pod("looked-at", "cat", container={"stdin": True, "stdinOnce": True}))
    onlooker = await attach(run, stdin=False)
    await onlooker.kill()
    program = await attach(run)
    await program.write(b"still here\n")
    assert "still here" in await shown(program, "still here")
    await program.kill()  # as when kubectl is killed: this one typed
    await run.finished.wait()
    assert state(run)["terminated"]["exitCode"] == 0


async def test_a_terminal_has_a_size_a_prompt_and_control_keys(one_machine: Machine) -> None:
    container = {"stdin": True, "stdinOnce": True, "tty": True, "env": [{"name": "PS1", "value": "ready> "}]}
    run = one_machine.start(pod("terminal", "sh", container=container))
    await until(lambda: "running" in state(run))
    program = await attach(run)
    await program.resize(132, 43)
    await program.write(b"test -t 0 -a -t 1 -a -t 2 && stty size && echo $TERM\n")
    seen = await shown(program, "xterm")
    assert "43 132" in seen
    await program.write(b"""sh -c 'trap "echo ca""ught; exit" INT; echo ar""med; while :; do sleep 0.05; done'\n""")
    await shown(program, "armed")
    await program.write(b"\x03")
    await shown(program, "caught")
    await program.write(b"echo back-$((40 + 2))\n")
    assert "back-42" in await shown(program, "back-42")
    await program.kill()
    again = await attach(run)
    await again.write(b"exit 7\n")
    await shown(again)
    await run.finished.wait()
    assert state(run)["terminated"]["exitCode"] == 7


async def test_a_container_without_input_reads_nothing_and_is_shown_with_both_streams(plain: Machine) -> None:
    script = "cat; trap 'echo out; echo err >&2; exit 0' TERM; echo waiting; while true; do sleep 0.1; done"
    run = plain.start(pod("mute", "sh", "-c", script))
    program = await attach(run)
    await program.write(b"ignored\n")
    await until(lambda: (run.directory / "containers/main/0/log").read_bytes().endswith(b"waiting\n"))
    run.stop(10)
    seen = [message async for message in program.output()]
    assert [(channel, data) for channel, data in seen if data != b"waiting\n"] == [(1, b"out\n"), (2, b"err\n")]


async def test_a_client_that_does_not_read_is_let_go_and_the_container_goes_on(
    plain: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_shim(monkeypatch, "attached", "PATIENCE = 10.0", "PATIENCE = 0.2")
    run = plain.start(pod("flood", "sh", "-c", "read go; seq 600000; exit 3", container={"stdin": True}))
    program = await attach(run)
    await program.write(b"go\n")
    async with asyncio.timeout(60):
        await run.finished.wait()  # no client reads a thing
    assert state(run)["terminated"]["exitCode"] == 3
    await program.kill()
    forget_changed_shim()
