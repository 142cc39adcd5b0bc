"""Every pod finds token, CA and namespace where in-cluster clients look, unless it is told not to."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from shoal.api.meta import Json
from shoal.local.nodes.runtime.access import PATH
from shoal.local.nodes.runtime.sources import ConfigError
from tests.processes.conftest import Machine, pod, state, text
from tests.processes.test_pods import until

READ = f"cat {PATH}/token; echo; cat {PATH}/ca.crt; echo; cat {PATH}/namespace; echo"
FILES = ["token-of-robot", "certificate", "default"]


def of_robot(name: str, *command: str, **more: Any) -> Json:
    """A pod as the API server stores it: with the name of its account."""
    return pod(name, *command, serviceAccountName="robot", **more)


@pytest.fixture(autouse=True)
def robot(request: pytest.FixtureRequest) -> None:
    for name in ("one_machine", "plain", "isolated"):
        if name in request.fixturenames:
            request.getfixturevalue(name).things.accounts["robot"] = {}


async def test_every_container_has_it_and_the_pod_stays_as_stored(one_machine: Machine) -> None:
    first = {"name": "first", "image": "busybox", "command": ["sh", "-c", READ]}
    manifest = of_robot("client", "sh", "-c", READ, initContainers=[first])
    stored = copy.deepcopy(manifest)
    run = await one_machine.ended(manifest)
    assert (await text(run)).split() == (await text(run, "first")).split() == FILES
    assert one_machine.things.tokens == [("robot", "", 3607)]
    assert manifest == stored and run.pod["spec"] == stored["spec"]


async def test_it_cannot_be_written_to(isolated: Machine) -> None:
    refused = f"{{ echo x > {PATH}/token; }} 2>/dev/null"  # two streams have no order between them
    run = await isolated.ended(of_robot("writer", "sh", "-c", f"{refused} || {READ}"))
    assert (await text(run)).split() == FILES


@pytest.mark.parametrize(
    ("said", "account", "present"),
    [(None, {}, True), (False, {}, False), (None, False, False), (True, False, True), (False, True, False)],
    ids=["neither", "pod", "account", "pod over account", "pod against account"],
)
async def test_pod_and_account_say_whether_it_is_there(
    plain: Machine, said: bool | None, account: Any, present: bool
) -> None:
    plain.things.accounts["robot"] = {} if account == {} else {"automountServiceAccountToken": account}
    spec = {} if said is None else {"automountServiceAccountToken": said}
    run = await plain.ended(of_robot("asked", "echo", PATH, **spec))
    seen = (await text(run)).strip()  # in this sandbox a mount path is replaced by what is behind it
    assert (seen != PATH, bool(plain.things.tokens)) == (present, present)


async def test_a_mount_of_its_own_wins(one_machine: Machine) -> None:
    """Even one whose volume has the name that ours would have; other containers of the pod still get theirs."""
    own = {"name": "kube-api-access", "configMap": {"name": "own"}}
    one_machine.things.config_maps["own"] = {"data": {"token": "mine"}}
    mount = {"name": "kube-api-access", "mountPath": f"{PATH}/"}
    first = {"name": "first", "image": "busybox", "command": ["sh", "-c", READ]}
    manifest = of_robot(
        "own",
        "sh",
        "-c",
        f"cd {PATH} && ls && cat token",
        container={"volumeMounts": [mount]},
        initContainers=[first],
        volumes=[own],
    )
    run = await one_machine.ended(manifest)
    assert (await text(run)).split() == ["token", "mine"]
    assert (await text(run, "first")).split() == FILES


async def test_nothing_is_asked_for_a_pod_that_needs_none(plain: Machine) -> None:
    """All containers have mounts of their own, or no account was given to the pod."""
    mount = {"volumeMounts": [{"name": "own", "mountPath": PATH}]}
    empty = [{"name": "own", "emptyDir": {}}]
    assert (await plain.ended(of_robot("own", "true", container=mount, volumes=empty))).status()["phase"] == "Succeeded"
    assert (await plain.ended(pod("nobody", "true"))).status()["phase"] == "Succeeded"
    assert plain.things.tokens == []


async def test_a_pod_waits_for_its_account_and_keeps_what_it_was_given(
    plain: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a token it does not start; once it has one, a restarted agent goes on though the account is gone."""

    async def refuse(*asked: Any) -> str:
        raise ConfigError("no such account")

    manifest = of_robot("patient", "sleep", "5098")
    del plain.things.accounts["robot"]
    with monkeypatch.context() as gone:
        gone.setattr(plain.things, "token", refuse)
        first = plain.start(manifest)
        await until(lambda: plain.events)
        message = 'MountVolume.SetUp failed for volume "kube-api-access" : no such account'
        assert plain.events == [("patient", "FailedMount", message)]
    await until(lambda: "running" in state(first))
    process = first.container("main").process.identity
    await first.detach()
    monkeypatch.setattr(plain.things, "token", refuse)
    second = plain.start(manifest)
    await until(lambda: second.container("main") and "running" in state(second))
    assert second.container("main").process.identity == process
    plain.pods.remove(first)


async def test_the_certificate_is_followed_and_the_token_renewed(
    plain: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token is asked for again when most of its life is over, not when another of the files changes."""
    slept: list[float] = []
    sleep = plain.host.clock.sleep

    async def quick(seconds: float) -> None:
        slept.append(seconds)
        await sleep(seconds if len(slept) != 1 else 0.0)

    monkeypatch.setattr(plain.host.clock, "sleep", quick)
    run = plain.start(
        of_robot("reader", "sh", "-c", f'until [ "$(cat {PATH}/ca.crt)" = new ]; do sleep 0.05; done; {READ}')
    )
    await until(lambda: "running" in state(run))
    await until(lambda: len(plain.things.tokens) == 2)
    assert slept[0] == pytest.approx(0.8 * 3607)
    plain.things.config_maps["kube-root-ca.crt"] = {"data": {"ca.crt": "new"}}
    assert run.refers("ConfigMap", "kube-root-ca.crt")
    await run.refresh("ConfigMap", "kube-root-ca.crt")
    await run.finished.wait()
    assert (await text(run)).split() == ["token-of-robot", "new", "default"]
    assert plain.things.tokens == [("robot", "", 3607)] * 2
