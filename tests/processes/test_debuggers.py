"""Containers that are added to a running pod to look into it: `kubectl debug`."""

from __future__ import annotations

import asyncio
from typing import Any

from shoal.api.meta import Json
from shoal.local.nodes.runtime.pod import PodRun
from shoal.local.nodes.runtime.program import AttachedContainer
from tests.patience import PATIENCE
from tests.processes.conftest import Machine, pod, text
from tests.processes.test_attach import shown
from tests.processes.test_pods import until


def looked_into(run: PodRun, name: str, *command: str, **more: Any) -> None:
    """The pod's object with one more container."""
    known = run.pod["spec"].get("ephemeralContainers") or []
    added = {"name": name, "image": "busybox", "command": list(command), **more}
    run.pod = {**run.pod, "spec": {**run.pod["spec"], "ephemeralContainers": [*known, added]}}
    run.update(run.pod)


def debugger(run: PodRun, name: str) -> Json:
    return next(one for one in run.status()["ephemeralContainerStatuses"] if one["name"] == name)


async def running(machine: Machine, *command: str) -> PodRun:
    run = machine.start(pod("watched", *command))
    await until(lambda: run.status()["phase"] == "Running")
    return run


async def test_it_shares_the_pods_network_and_is_never_restarted(one_machine: Machine) -> None:
    run = await running(one_machine, "sleep", "1000")
    looked_into(run, "look", "sh", "-c", "echo at $HOSTNAME; exit 4", env=[{"name": "A", "value": "b"}])
    await until(lambda: "terminated" in debugger(run, "look")["state"])
    found = debugger(run, "look")
    assert (found["state"]["terminated"]["exitCode"], found["restartCount"], found["ready"]) == (4, 0, False)
    assert await text(run, "look") == "at watched\n"
    assert run.status()["phase"] == "Running"


async def test_it_sees_the_processes_of_its_target_and_ends_with_it(isolated: Machine) -> None:
    run = await running(isolated, "sh", "-c", "sleep 4711; true")
    target = "grep -laP '^sleep\\x004711' /proc/[0-9]*/cmdline"  # the very process: shells carry its name, too
    script = f'read word; until [ "$({target})" ]; do sleep 0.05; done; echo seen and $word; cat'
    looked_into(run, "look", "sh", "-c", script, targetContainerName="main", stdin=True, tty=True)
    await until(lambda: "running" in debugger(run, "look")["state"])
    found = run.container("look")
    assert found is not None and found.process is not None
    program = await AttachedContainer.start(found.process, stdin=True)
    await program.write(b"typed\n")
    assert "seen and typed" in await shown(program, "seen and typed")
    kill = f"kill $({target} | cut -d/ -f3)"
    code, _ = await found.process.enter(["sh", "-c", f"(sleep 999 &); (sleep 999 &); {kill}"], PATIENCE)
    assert code in (0, 137)  # it may be taken along
    await asyncio.wait_for(run.finished.wait(), PATIENCE)
    assert run.status()["phase"] == "Succeeded"
    assert debugger(run, "look")["state"]["terminated"]["exitCode"] == 137


async def test_it_goes_with_its_pod(one_machine: Machine) -> None:
    run = await running(one_machine, "sleep", "1000")
    looked_into(run, "look", "sh", "-c", "trap '' TERM; sleep 1000; sleep 1000")
    looked_into(run, "second", "sleep", "1000", targetContainerName="main")
    await until(lambda: all("running" in debugger(run, name)["state"] for name in ("look", "second")))
    run.stop(0.2)
    await asyncio.wait_for(run.finished.wait(), PATIENCE)


async def test_an_unknown_image_is_said_and_a_later_agent_finds_the_debugger(plain: Machine) -> None:
    run = await running(plain, "sleep", "1000")
    looked_into(run, "unknown", "true", image="strange")
    looked_into(run, "look", "sleep", "1000")
    await until(lambda: "running" in debugger(run, "look")["state"])
    assert debugger(run, "unknown")["state"]["waiting"]["reason"] == "ErrImageNeverPull"
    before = debugger(run, "look")["containerID"]
    manifest = run.pod
    await run.detach()
    plain.pods.remove(run)
    again = plain.start(manifest)
    await until(lambda: again.status()["phase"] == "Running")
    again.update(manifest)
    await until(lambda: "running" in debugger(again, "look")["state"])
    assert debugger(again, "look")["containerID"] == before
