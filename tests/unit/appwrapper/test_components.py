"""v1beta2 AppWrappers: suspended, resumed, watched, reset and ended; with our queue in the queue's role."""

from __future__ import annotations

from contextlib import aclosing
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper.v1beta2.limits import Patience, is_final, parse_duration
from shoal.sdk import gangs
from shoal.sdk.explaining import explain_to
from tests.cluster import Cluster
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, pod, set_pod, waits

AW: Kind = kinds.APP_WRAPPER_V1BETA2
HASTE = Patience(retry_pause=0.05, failure=0.1, retry_limit=1, forced_deletion=0.1)


def wrapper(name: str, *templates: Json, notes: dict[str, str] | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": name, "namespace": "default", "annotations": notes or {}},
        "spec": {"components": [{"template": template} for template in templates], **spec},
    }


def brief_pod(name: str, cpu: str = "1") -> Json:
    made = pod(name, cpu=cpu)
    made["spec"].update(terminationGracePeriodSeconds=0, restartPolicy="Never")
    return made


def phase(name: str) -> Any:
    return lambda obj: obj.get("status", {}).get("phase") == name


def conditions(obj: Json) -> dict[str, tuple[str, str]]:
    told = obj.get("status", {}).get("conditions") or ()
    return {one["type"]: (one["status"], one.get("reason", "")) for one in told}


@pytest.fixture
async def hasty(quiet: Cluster) -> Cluster:
    quiet.start(planned(quiet.client, AppWrapperSettings(patience=HASTE)).run())
    return quiet


async def test_from_creation_to_success(cluster: Cluster) -> None:
    await cluster.create(AW, wrapper("gang", brief_pod("one"), config_map("settings")))
    running = await cluster.until(AW, "gang", phase("Running"))
    assert running["metadata"]["finalizers"] == ["workload.codeflare.dev/finalizer"]
    assert conditions(running)["QuotaReserved"] == ("True", "Resuming")
    parts = {one["name"]: one for one in running["status"]["componentStatus"]}
    assert parts["one"]["podSets"] == [{"path": "template", "replicas": 1}]
    assert conditions({"status": parts["one"]})["ResourcesDeployed"] == ("True", "ComponentCreatedSuccessfully")
    made = await cluster.get(kinds.POD, "one")
    assert made["metadata"]["labels"] == {"workload.codeflare.dev/appwrapper": "gang"}
    await set_pod(cluster, "one", "Running")
    ready = await cluster.until(AW, "gang", lambda one: conditions(one).get("PodsReady", ("",))[0] == "True")
    assert conditions(ready)["PodsReady"] == ("True", "SufficientPodsReady")
    await set_pod(cluster, "one", "Succeeded")
    done = await cluster.until(AW, "gang", phase("Succeeded"))
    assert conditions(done)["QuotaReserved"] == ("False", "Succeeded")
    assert conditions(done)["ResourcesDeployed"] == ("True", "Succeeded")
    await cluster.client.delete(AW, "gang", "default")
    await cluster.until_gone(AW, "gang")
    await cluster.until_gone(kinds.POD, "one")


async def test_a_gang_with_room_is_written_once_for_each_step(cluster: Cluster) -> None:
    """What is true for a moment only is not stored: that it waits, that its pods are not up yet, that it ends."""
    told: list[Json] = []

    async def follow() -> None:
        async with aclosing(cluster.client.watch(AW, "default")) as events:
            async for event in events:
                told.append(msgspec.json.decode(event.object))

    cluster.start(follow())
    await cluster.create(AW, wrapper("gang", brief_pod("one")))
    await cluster.until(AW, "gang", phase("Running"))
    await set_pod(cluster, "one", "Running")
    await cluster.until(AW, "gang", lambda one: conditions(one).get("PodsReady", ("",))[0] == "True")
    await set_pod(cluster, "one", "Succeeded")
    await cluster.until(AW, "gang", phase("Succeeded"))
    await cluster.client.delete(AW, "gang", "default", propagation="Background")
    await cluster.until_gone(AW, "gang")
    await cluster.settled()
    steps = [(one.get("status", {}).get("phase"), conditions(one).get("PodsReady")) for one in told]
    assert [step for step, following in pairwise([*steps, None]) if step != following] == [
        (None, None),
        ("Resuming", ("False", "Resuming")),
        ("Running", ("False", "Resuming")),
        ("Running", ("True", "SufficientPodsReady")),
        ("Succeeded", ("True", "SufficientPodsReady")),
    ]


async def test_why_tells_of_failed_pods_before_the_gang_is_given_up(cluster: Cluster) -> None:
    await cluster.create(AW, wrapper("gang", brief_pod("one")))
    await cluster.until(AW, "gang", phase("Running"))
    await set_pod(cluster, "one", "Failed")
    await cluster.until(AW, "gang", lambda one: conditions(one).get("Unhealthy") == ("True", "FoundFailedPods"))
    told = await explain_to(cluster.client, gangs.KINDS, "gang", "default")
    assert (told["state"], told["message"]) == (
        "running",
        "pods of it failed; after a grace period it is started again, or fails for good",
    )


async def test_pods_that_do_not_come_up_are_told_of_after_a_moment(cluster: Cluster) -> None:
    await cluster.create(AW, wrapper("gang", brief_pod("one")))
    late = await cluster.until(
        AW, "gang", lambda one: conditions(one).get("PodsReady") == ("False", "InsufficientPodsReady")
    )
    assert late["status"]["phase"] == "Running"


async def test_one_that_others_keep_after_its_end_tells_that_nothing_is_left(cluster: Cluster) -> None:
    kept = wrapper("gang", brief_pod("one"))
    kept["metadata"]["finalizers"] = ["example.com/later"]
    await cluster.create(AW, kept)
    await cluster.until(AW, "gang", phase("Running"))
    await cluster.client.delete(AW, "gang", "default", propagation="Background")
    left = await cluster.until(AW, "gang", lambda obj: obj["metadata"].get("finalizers") == ["example.com/later"])
    assert left["status"]["phase"] == "Terminating"
    assert conditions(left)["ResourcesDeployed"] == conditions(left)["QuotaReserved"] == ("False", "Terminating")
    assert await cluster.names(kinds.POD) == []


async def test_suspend_takes_everything_back_and_resume_brings_it_again(cluster: Cluster) -> None:
    await cluster.create(AW, wrapper("gang", brief_pod("one"), suspend=True))
    await cluster.until(AW, "gang", phase("Suspended"))
    await cluster.settled()
    assert await cluster.names(kinds.POD) == []
    await cluster.client.patch(AW, "gang", "default", {"spec": {"suspend": False}})
    await cluster.until(AW, "gang", phase("Running"))
    await cluster.client.patch(AW, "gang", "default", {"spec": {"suspend": True}})
    stopped = await cluster.until(AW, "gang", phase("Suspended"))
    assert conditions(stopped)["ResourcesDeployed"] == ("False", "Suspended")
    assert await cluster.names(kinds.POD) == []
    await cluster.client.patch(AW, "gang", "default", {"spec": {"suspend": False}})
    await cluster.until(AW, "gang", phase("Running"))


async def test_our_queue_holds_it_until_there_is_room(cluster: Cluster) -> None:
    for name in ("first", "second"):
        await cluster.create(AW, wrapper(name, brief_pod(name, cpu="3")))
    await cluster.until(AW, "first", phase("Running"))
    waiting = await cluster.until(
        AW,
        "second",
        lambda one: conditions(one).get("QuotaReserved") == ("False", "Waiting") if "status" in one else False,
    )
    assert "cpu" in waiting["status"]["message"]
    assert await cluster.names(kinds.POD) == ["first"]
    await cluster.client.delete(AW, "first", "default")
    await cluster.until(AW, "second", phase("Running"))


async def test_a_missing_component_fails_it(cluster: Cluster) -> None:
    await cluster.create(AW, wrapper("gang", config_map("a"), brief_pod("one")))
    await cluster.until(AW, "gang", phase("Running"))
    await cluster.client.delete(kinds.CONFIG_MAP, "a", "default")
    await set_pod(cluster, "one", "Running")
    failed = await cluster.until(AW, "gang", phase("Failed"))
    assert conditions(failed)["Unhealthy"] == ("True", "MissingComponent")
    await cluster.until_gone(kinds.POD, "one")


async def test_failed_pods_reset_it_until_the_retries_are_used_up(hasty: Cluster) -> None:
    await hasty.create(AW, wrapper("gang", brief_pod("one")))
    await hasty.until(AW, "gang", phase("Running"))
    await set_pod(hasty, "one", "Failed")
    again = await hasty.until(
        AW, "gang", lambda one: phase("Running")(one) and one["status"].get("resettingCount") == 1
    )
    assert conditions(again)["QuotaReserved"][0] == "True", "quota is kept while it is reset"
    await set_pod(hasty, "one", "Failed")
    failed = await hasty.until(AW, "gang", phase("Failed"))
    assert conditions(failed)["Unhealthy"] == ("True", "FoundFailedPods")
    ended = await hasty.until(AW, "gang", lambda one: conditions(one).get("QuotaReserved") == ("False", "Failed"))
    assert conditions(ended)["ResourcesDeployed"] == ("False", "Failed")
    assert await hasty.names(kinds.POD) == []


async def test_a_final_exit_code_ends_it_without_another_try(hasty: Cluster) -> None:
    notes = {"workload.codeflare.dev.appwrapper/terminalExitCodes": "3"}
    await hasty.create(AW, wrapper("gang", brief_pod("one"), notes=notes))
    await hasty.until(AW, "gang", phase("Running"))
    ended = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    ended["state"] = {"terminated": {"exitCode": 3}}
    await set_pod(hasty, "one", "Running")
    change = {"status": {"phase": "Failed", "containerStatuses": [ended]}}
    await hasty.client.patch(kinds.POD, "one", "default", change, subresource="status")
    failed = await hasty.until(AW, "gang", phase("Failed"))
    assert "resettingCount" not in failed["status"]


async def test_a_pod_that_does_not_end_is_ended_by_force(hasty: Cluster) -> None:
    slow = brief_pod("slow")
    slow["spec"]["terminationGracePeriodSeconds"] = 3600
    await hasty.create(AW, wrapper("gang", slow))
    await hasty.until(AW, "gang", phase("Running"))
    await set_pod(hasty, "slow", "Running")
    await hasty.client.patch(AW, "gang", "default", {"spec": {"suspend": True}})
    await hasty.until(AW, "gang", phase("Suspended"))
    assert await hasty.names(kinds.POD) == []


async def test_a_bad_component_fails_it_at_once(cluster: Cluster) -> None:
    bad = brief_pod("bad")
    bad["spec"]["restartPolicy"] = "Sometimes"
    await cluster.create(AW, wrapper("gang", config_map("a"), bad))
    failed = await cluster.until(AW, "gang", phase("Failed"))
    assert conditions(failed)["Unhealthy"] == ("True", "CreateFailed")
    await cluster.until_gone(kinds.CONFIG_MAP, "a")


async def test_what_a_queue_injects_reaches_the_pods_and_a_conflict_fails(cluster: Cluster) -> None:
    made = wrapper("gang", brief_pod("one"))
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    made["spec"]["components"][0]["podSetInfos"] = [
        {
            "labels": {"flavor": "spot"},
            "nodeSelector": {"pool": "spot"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
        }
    ]
    await cluster.create(AW, made)
    await cluster.until(AW, "gang", phase("Running"))
    there = await cluster.get(kinds.POD, "one")
    assert there["metadata"]["labels"]["flavor"] == "spot"
    assert there["spec"]["nodeSelector"] == {"pool": "spot"}
    assert {"key": "spot", "operator": "Exists"} in there["spec"]["tolerations"]
    clash = wrapper("clash", brief_pod("two"))
    clash["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    clash["spec"]["components"][0]["template"]["metadata"]["labels"] = {"flavor": "on-demand"}
    clash["spec"]["components"][0]["podSetInfos"] = [{"labels": {"flavor": "spot"}}]
    await cluster.create(AW, clash)
    failed = await cluster.until(AW, "clash", phase("Failed"))
    assert "conflict: label flavor" in failed["status"]["message"]


async def test_someone_elses_is_left_alone(cluster: Cluster) -> None:
    await cluster.create(AW, wrapper("theirs", brief_pod("one"), managedBy="example.com/other"))
    await cluster.settled()
    assert "status" not in await cluster.get(AW, "theirs")


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("1h30m", 5400.0),
        ("90s", 90.0),
        ("1.5m", 90.0),
        ("250ms", 0.25),
        ("-5s", -5.0),
        ("0", 0.0),
        ("5", None),
        ("", None),
        ("x", None),
    ],
)
def test_durations_are_read_as_go_writes_them(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


def test_exit_codes_decide_whether_another_try_makes_sense() -> None:
    assert is_final([3], Patience(terminal_exit_codes=frozenset({3})))
    assert not is_final([4], Patience(terminal_exit_codes=frozenset({3})))
    assert is_final([4], Patience(retryable_exit_codes=frozenset({10})))
    assert not is_final([0, 10], Patience(retryable_exit_codes=frozenset({10})))


# --- unwell devices


def gpu_pod(name: str) -> Json:
    made = brief_pod(name)
    made["spec"]["containers"][0]["resources"] = {
        "limits": {"nvidia.com/gpu": "1"},
        "requests": {"nvidia.com/gpu": "1"},
    }
    return made


async def mark(cluster: Cluster, node: str, health: str | None) -> None:
    change = {"metadata": {"labels": {"autopilot.ibm.com/gpuhealth": health}}}
    await cluster.client.patch(kinds.NODE, node, None, change)


async def test_pods_that_ask_for_gpus_keep_away_from_unwell_ones(quiet: Cluster) -> None:
    await quiet.add_node("gpu", **{"nvidia.com/gpu": "2"})
    quiet.start(planned(quiet.client, AppWrapperSettings()).run())
    chosen = gpu_pod("asks")
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    term = {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
    chosen["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}
    await mark(quiet, "gpu", None)
    await quiet.client.patch(kinds.NODE, "gpu", None, {"metadata": {"labels": {"zone": "a"}}})
    await quiet.create(AW, wrapper("gang", chosen, brief_pod("plain")))
    await quiet.until(AW, "gang", phase("Running"))
    affinity = (await quiet.get(kinds.POD, "asks"))["spec"]["affinity"]["nodeAffinity"]
    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    unwell = {"key": "autopilot.ibm.com/gpuhealth", "operator": "NotIn"}
    assert required == [{"matchExpressions": [zone, {**unwell, "values": ["TESTING", "EVICT"]}]}]
    (wish,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wish == {"weight": 50, "preference": {"matchExpressions": [{**unwell, "values": ["WARN"]}]}}
    assert "affinity" not in (await quiet.get(kinds.POD, "plain"))["spec"]


async def test_a_gang_leaves_devices_that_are_to_be_vacated_and_spends_no_retry(quiet: Cluster) -> None:
    await quiet.add_node("gpu", **{"nvidia.com/gpu": "1"})
    quiet.start(planned(quiet.client, AppWrapperSettings(patience=HASTE)).run())
    await quiet.create(AW, wrapper("gang", gpu_pod("asks")))
    await quiet.until(AW, "gang", phase("Running"))
    await set_pod(quiet, "asks", "Running", node="gpu")
    first = await quiet.get(kinds.POD, "asks")
    await quiet.until(AW, "gang", lambda one: conditions(one).get("PodsReady", ("",))[0] == "True")
    await mark(quiet, "gpu", "EVICT")
    reset = await quiet.until(
        AW, "gang", lambda one: conditions(one).get("Unhealthy") == ("True", "AutopilotNoExecute")
    )
    assert reset["status"].get("resettingCount", 0) == 0
    await quiet.until(kinds.POD, "asks", lambda one: one["metadata"]["uid"] != first["metadata"]["uid"])


async def test_unwell_devices_are_no_supply(quiet: Cluster) -> None:
    """A gang that waits for a GPU goes on waiting while the only one is tested, in either dialect."""
    await quiet.add_node("gpu", **{"nvidia.com/gpu": "1"})
    await mark(quiet, "gpu", "TESTING")
    quiet.start(planned(quiet.client, AppWrapperSettings()).run())
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", gpu_pod("asks")))
    held = await quiet.until(kinds.APP_WRAPPER, "gang", waits)
    assert "1 nvidia.com/gpu needed, 0 free" in held["status"]["message"]
    await mark(quiet, "gpu", "PASS")
    await quiet.until(kinds.APP_WRAPPER, "gang", dispatched)
