"""What MCAD's own end-to-end suites do, with manifests of the same shapes: sleeping Deployments, StatefulSets, Jobs and
Pods on two small nodes, admitted by cluster-wide sums.

One cluster serves all walks; pods are plain processes. Every walk removes what it made and finds the cluster empty.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.gang import SUPPLY
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import Invalid, NotFound
from shoal.kube.kubeconfig import load
from tests.cluster import RemoteCluster
from tests.e2e.machine import Machine
from tests.patience import PATIENCE
from tests.unit.appwrapper.build import app_wrapper, dispatched, has_state, needs, trail, waits

SHORTAGE = ("Backoff", "AppWrapperNotRunnable.", "Insufficient resources to dispatch AppWrapper.")
NODE = "cpu=1,memory=4Gi,nvidia.com/gpu=4,count=2"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("walks")
    started = Machine(f"walks-{folder.parent.name[-3:]}", folder)
    started.up("--node", NODE, "--supply", "aggregate", "--preemption")
    yield started
    started.down("--purge")


@pytest.fixture
async def cluster(machine: Machine) -> AsyncIterator[RemoteCluster]:
    transport = load(machine.home / "kubeconfig")
    found = RemoteCluster(Client(transport))
    yield found
    for kind in (kinds.APP_WRAPPER, kinds.APP_WRAPPER_LEGACY, kinds.QUOTA_SUBTREE_LEGACY):
        for obj in await found.client.list(kind):
            with suppress(NotFound):
                await found.client.delete(kind, obj["metadata"]["name"], obj["metadata"]["namespace"])
    for there in await found.client.list(kinds.POD, "default"):
        await found.until_gone(kinds.POD, there["metadata"]["name"])
    await transport.close()


# --- shapes


def sleeps(seconds: str = "infinity", cpu: str = "", **more: Any) -> Json:
    """A pod spec of one container that sleeps."""
    resources = {"resources": {"requests": {"cpu": cpu}}} if cpu else {}
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", f"sleep {seconds}"], **resources}
    return {"terminationGracePeriodSeconds": 0, "containers": [container], **more}


def template(wrapper: str, app: str, spec: Json) -> Json:
    """Labelled and annotated by hand, as published manifests are."""
    labels = {"app": app, "appwrapper.mcad.ibm.com": wrapper}
    return {"metadata": {"labels": labels, "annotations": {f"{ANNOTATION}": wrapper}}, "spec": spec}


ANNOTATION = "appwrapper.mcad.ibm.com/appwrapper-name"


def replicated(kind: str, name: str, replicas: int, cpu: str = "", wrapper: str = "") -> Json:
    """A Deployment or a StatefulSet."""
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}}
    spec["template"] = template(wrapper or name, name, sleeps(cpu=cpu))
    labelled = {"name": name, "namespace": "default", "labels": {"app": name}}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": labelled, "spec": spec}


def job(name: str, seconds: str = "0.5", count: int = 1, cpu: str = "100m", **spec: Any) -> Json:
    pod = sleeps(seconds, cpu, restartPolicy="Never", **spec)
    inner = {"parallelism": count, "completions": count, "template": template(name, name, pod)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "default"}, "spec": inner}


def pod(name: str, cpu: str = "") -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": sleeps(cpu=cpu),
    }


def deployment_of(cpu: str, replicas: int = 2, **spec: Any) -> Json:
    """The workhorse of the suites: a Deployment that asks for so much, and all of its pods at least."""
    name = f"aw-{replicas}-{cpu}"
    return wrapped(name, replicated("Deployment", name, replicas, cpu), minimum=replicas, **spec)


def wrapped(
    name: str, *objects: Json, minimum: int = 0, done: str = "", requeuing: Json | None = None, **more: Any
) -> Json:
    scheduling: Json = {"minAvailable": minimum} if minimum else {}
    if requeuing:
        scheduling["requeuing"] = requeuing
    made = app_wrapper(name, *objects, schedulingSpec=scheduling, **more)
    for item in made["spec"]["resources"]["GenericItems"]:
        item.update({"completionstatus": done} if done else {})
    return made


# --- what the suites look at


async def until_pods_run(cluster: RemoteCluster, name: str, count: int) -> None:
    phases: dict[str, str] = {}
    selector = f"appwrapper.mcad.ibm.com={name}"
    async with asyncio.timeout(PATIENCE):
        async for event in cluster.client.watch(
            kinds.POD, "default", label_selector=selector, send_initial_events=True
        ):
            if event.type in ("ADDED", "MODIFIED", "DELETED"):
                seen = msgspec.json.decode(event.object)
                phase = seen.get("status", {}).get("phase", "") if event.type != "DELETED" else ""
                phases[seen["metadata"]["name"]] = phase
                if list(phases.values()).count("Running") == count:
                    return


async def submit(cluster: RemoteCluster, wrapper: Json, kind: Kind = kinds.APP_WRAPPER) -> str:
    await cluster.create(kind, wrapper)
    return str(wrapper["metadata"]["name"])


async def until_it_runs(cluster: RemoteCluster, wrapper: Json, count: int) -> None:
    """Submitted, dispatched, and that many pods run."""
    name = await submit(cluster, wrapper)
    await until_pods_run(cluster, name, count)


async def pods_of(cluster: RemoteCluster, name: str) -> list[Json]:
    return await cluster.client.list(kinds.POD, "default", label_selector=f"appwrapper.mcad.ibm.com={name}")


async def until_pods(cluster: RemoteCluster, name: str, count: int) -> None:
    """Their controller makes and ends them in its own time."""
    async with asyncio.timeout(PATIENCE):
        while len(await pods_of(cluster, name)) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


# --- walks


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
async def test_a_set_of_pods_runs(cluster: RemoteCluster, kind: str) -> None:
    name = f"aw-{kind.lower()}"
    await until_it_runs(cluster, wrapped(name, replicated(kind, name, 3), minimum=3), 3)
    found = await pods_of(cluster, name)
    assert {one["metadata"]["annotations"][ANNOTATION] for one in found} == {name}
    assert {one["metadata"]["labels"]["resourceName"] for one in found} == {name}


async def test_one_pod_and_several_pods_run(cluster: RemoteCluster) -> None:
    await until_it_runs(cluster, wrapped("aw-pod", pod("aw-pod"), minimum=1), 1)
    await until_it_runs(cluster, wrapped("aw-pods", pod("one"), pod("two"), minimum=2), 2)


async def test_half_and_a_third_of_the_cluster_run_side_by_side(cluster: RemoteCluster) -> None:
    await until_it_runs(cluster, deployment_of("550m"), 2)
    await until_it_runs(cluster, deployment_of("350m"), 2)


async def test_what_does_not_fit_waits_while_a_smaller_one_passes(cluster: RemoteCluster) -> None:
    await until_it_runs(cluster, deployment_of("550m"), 2)
    big = await submit(cluster, deployment_of("500m"))
    assert trail(await cluster.until(kinds.APP_WRAPPER, big, waits))[-1] == SHORTAGE
    await until_it_runs(cluster, deployment_of("300m"), 2)
    assert await pods_of(cluster, big) == []
    await cluster.client.delete(kinds.APP_WRAPPER, "aw-2-550m", "default", propagation="Foreground")
    await until_pods_run(cluster, big, 2)


async def test_a_pod_that_no_node_can_ever_hold_is_never_made(cluster: RemoteCluster) -> None:
    greedy = job("greedy", cpu="100")
    greedy["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "10"}  # less than it requests
    for made in (wrapped("giant", pod("giant", cpu="100"), minimum=1), wrapped("greedy", greedy)):
        name = await submit(cluster, made)
        await cluster.until(kinds.APP_WRAPPER, name, waits)
        assert await pods_of(cluster, name) == []


async def test_declared_amounts_count_even_where_they_contradict_the_template(cluster: RemoteCluster) -> None:
    """Declared as in the template it runs; declared too low it is dispatched and stays pending; too high, it waits."""

    def declared(name: str, wanted: str, real: str) -> Json:
        return wrapped(name, replicated("Deployment", name, 2, real), needs=[needs(2, cpu=wanted)], minimum=2)

    await until_it_runs(cluster, declared("equal", "550m", "550m"), 2)
    await submit(cluster, declared("low", "425m", "460m"))
    await cluster.until(kinds.APP_WRAPPER, "low", dispatched)
    await submit(cluster, declared("high", "470m", "10m"))
    await cluster.until(kinds.APP_WRAPPER, "high", waits)
    await until_pods(cluster, "low", 2)
    assert [one["status"]["phase"] for one in await pods_of(cluster, "low")] == ["Pending", "Pending"]
    assert await pods_of(cluster, "high") == []


async def test_a_gang_that_sums_up_and_finds_no_node_gives_its_room_back(cluster: RemoteCluster) -> None:
    """Two nodes have 450m each: one pod of 700m is dispatched by the sums, stays pending and is requeued after its
    grace, as often as it likes; two of 340m run in that room all the same, although they came later."""
    await until_it_runs(cluster, deployment_of("550m"), 2)
    wide = await submit(cluster, deployment_of("700m", 1, requeuing={"timeInSeconds": 1, "growthType": "none"}))
    await cluster.until(kinds.APP_WRAPPER, wide, dispatched)
    small = await submit(cluster, deployment_of("340m"))
    await until_pods_run(cluster, small, 2)
    back = await cluster.until(kinds.APP_WRAPPER, wide, waits)
    reasons = [reason for _, reason, _ in trail(back)]
    assert "MinPodsNotRunning" in reasons and "PreemptionTriggered" in reasons
    await until_pods(cluster, wide, 0)


async def test_the_budget_of_requeues_ends_in_deleted(cluster: RemoteCluster) -> None:
    """An init container that takes for ever: requeued twice, then given up, and no object is left."""
    stuck = job("stuck", initContainers=[{"name": "first", "image": "busybox", "command": ["sleep", "infinity"]}])
    budget = {"timeInSeconds": 1, "growthType": "none", "maxNumRequeuings": 2}
    name = await submit(cluster, wrapped("stuck", stuck, minimum=1, done="Complete", requeuing=budget))
    ended = await cluster.until(kinds.APP_WRAPPER, name, has_state("Deleted"))
    assert ended["status"]["numberOfRequeueings"] == 2
    await cluster.until_gone(kinds.JOB, "stuck")


async def test_jobs_complete_alone_and_together(cluster: RemoteCluster) -> None:
    await submit(cluster, wrapped("alone", job("alone"), done="Complete"))
    await submit(cluster, wrapped("both", job("both-1"), job("both-2", "1"), done="Complete"))
    await submit(cluster, wrapped("quiet", job("quiet", count=2), minimum=2, requeuing={"timeInSeconds": 15}))
    for name in ("alone", "both"):
        ended = await cluster.until(kinds.APP_WRAPPER, name, has_state("Completed"))
        assert trail(ended)[-1][:2] == ("Completed", "PodsCompleted")
    # its spec does not ask for completion: it stays, and pods that succeeded are not missing
    found = await cluster.until(kinds.APP_WRAPPER, "quiet", lambda one: one.get("status", {}).get("Succeeded") == 2)
    assert (found["status"]["state"], found["status"].get("numberOfRequeueings", 0)) == ("Running", 0)


async def test_pods_that_remain_hold_completion(cluster: RemoteCluster) -> None:
    """One item is done (a Deployment by `Progressing`, a Job by `Complete`) and another one's pods go on, or find no
    node: where sums admit, pods do not wait for each other."""
    both = [replicated("Deployment", f"held-{number}", 1, wrapper="held") for number in (1, 2)]
    deployments = wrapped("held", *both, minimum=1)  # done before it has made a pod, and yet not completed
    deployments["spec"]["resources"]["GenericItems"][0]["completionstatus"] = "Progressing"
    jobs = wrapped("held-jobs", job("ends"), job("never-fits", "infinity", cpu="5"), needs=[needs(1, cpu="100m")])
    jobs["spec"]["resources"]["GenericItems"][0]["completionstatus"] = "Complete"
    jobs["spec"]["resources"]["GenericItems"][1]["custompodresources"] = [needs(1, cpu="200m")]
    for made in (deployments, jobs):
        name = await submit(cluster, made)
        await cluster.until(kinds.APP_WRAPPER, name, has_state("RunningHoldCompletion"))


async def test_a_service_with_a_completion_status_goes_on_running(cluster: RemoteCluster) -> None:
    ports = [{"name": "client", "port": 10001, "protocol": "TCP", "targetPort": 10001}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "door"}}
    service["spec"] = {"ports": ports, "selector": {"component": "door"}, "type": "ClusterIP"}
    name = await submit(cluster, wrapped("door", service, done="Complete"))
    found = await cluster.until(kinds.APP_WRAPPER, name, dispatched)
    assert found["status"]["state"] == "Running"


async def test_past_its_run_time_it_fails_and_leaves_nothing(cluster: RemoteCluster) -> None:
    made = wrapped("late", job("late", "infinity"), done="Complete")
    made["spec"]["schedulingSpec"]["dispatchDuration"] = {"limit": 1}
    await submit(cluster, made)
    await cluster.until(kinds.APP_WRAPPER, "late", has_state("Failed"))
    await cluster.until_gone(kinds.JOB, "late")


async def test_what_can_never_be_made_fails_or_is_refused(cluster: RemoteCluster, machine: Machine) -> None:
    """As in MCAD, a Pod without a name, one for another namespace, or an item without an object fails at its creation,
    and what has no kind is refused. Where every pod must have a node, so is what would be made in another namespace."""
    nameless, elsewhere = pod("x"), pod("x")
    del nameless["metadata"]["name"]
    elsewhere["metadata"]["namespace"] = "kube-system"
    empty = wrapped("empty", {}, minimum=1)
    del empty["spec"]["resources"]["GenericItems"][0]["generictemplate"]
    outside = wrapped("elsewhere", elsewhere, minimum=1)
    for name, made in (
        ("nameless", wrapped("nameless", nameless, minimum=1)),
        ("empty", empty),
        ("elsewhere", outside),
    ):
        await submit(cluster, made)
        failed = await cluster.until(kinds.APP_WRAPPER, name, has_state("Failed"))
        assert trail(failed)[-1][:2] == ("Failed", "ItemCreationFailure.")
    with pytest.raises(Invalid, match=r"generictemplate\.kind"):
        await submit(cluster, wrapped("formless", {"metadata": {"name": "x"}}))
    outside["metadata"] |= {"name": "strict", "annotations": {SUPPLY: "fit"}}
    said = await asyncio.to_thread(machine.kubectl, "create", "-f", "-", stdin=json.dumps(outside), fails=True)
    place = "spec.resources.GenericItems[0].generictemplate.metadata.namespace"
    assert f"AppWrapper 'strict' is invalid: {place}: AppWrappers can not create objects in other" in said


async def test_many_at_once(cluster: RemoteCluster) -> None:
    names = [
        await submit(cluster, wrapped(f"many-{n:02}", replicated("Deployment", f"many-{n:02}", 2, "5m"), minimum=2))
        for n in range(12)
    ]
    for name in names:
        await until_pods_run(cluster, name, 2)


async def test_a_borrower_of_quota_makes_way(cluster: RemoteCluster) -> None:
    """Two legacy trees. `silver` borrows every GPU; the gang within `gold`'s quota gets its share back."""

    def tree(name: str, parent: str, **gpus: int) -> Json:
        children = [
            {
                "name": leaf,
                "quotas": {
                    "hardLimit": False,
                    "requests": {"cpu": "2" if many else "0", "memory": "4Gi" if many else "0", "nvidia.com/gpu": many},
                },
            }
            for leaf, many in gpus.items()
        ]
        metadata = {"name": f"{name}{'-leaves' if parent else ''}", "namespace": "default", "labels": {"tree": name}}
        return {
            "apiVersion": "ibm.com/v1",
            "kind": "QuotaSubtree",
            "metadata": metadata,
            "spec": {"parent": parent, "children": children},
        }

    for made in (
        tree("context", "", top=8),
        tree("service", "", root=8),
        tree("context", "top", gold=4, silver=4, default=0),
        tree("service", "root", gold=8, default=0),
    ):
        await cluster.create(kinds.QUOTA_SUBTREE_LEGACY, made)

    def asks(name: str, leaf: str, count: int) -> Json:
        declared = needs(count, cpu="100m", memory="100Mi", **{"nvidia.com/gpu": "4"})
        made = wrapped(name, job(name, "infinity", count), needs=[declared], done="Complete")
        made["metadata"]["labels"] = {"context": leaf, "service": "gold"}
        return made

    await submit(cluster, asks("borrows", "silver", 2))
    await cluster.until(kinds.APP_WRAPPER, "borrows", dispatched)
    await submit(cluster, asks("owns", "gold", 1))
    await cluster.until(kinds.APP_WRAPPER, "owns", dispatched)
    taken = await cluster.until(kinds.APP_WRAPPER, "borrows", has_state("Pending"))
    assert ("PreemptCandidate", "Preempted") in [one[:2] for one in trail(taken)]
    lost = asks("lost", "nowhere", 0)
    await submit(cluster, lost)
    assert "has no leaf 'nowhere'" in (await cluster.until(kinds.APP_WRAPPER, "lost", waits))["status"]["message"]
    await cluster.client.patch(kinds.APP_WRAPPER, "lost", "default", {"metadata": {"labels": {"context": "gold"}}})
    await cluster.until(kinds.APP_WRAPPER, "lost", dispatched)
    unlabelled = await submit(cluster, wrapped("unlabelled", job("unlabelled", "infinity")))
    found = await cluster.until(kinds.APP_WRAPPER, unlabelled, lambda one: bool(one["metadata"].get("labels")))
    assert found["metadata"]["labels"] == {"context": "default", "service": "default"}


async def test_the_older_group_with_typed_items(cluster: RemoteCluster) -> None:
    legacy = wrapped("typed")
    legacy["apiVersion"] = "mcad.ibm.com/v1beta1"
    item = {"replicas": 1, "type": "Deployment", "template": replicated("Deployment", "typed", 2)}
    legacy["spec"]["resources"] = {"Items": [item]}
    await submit(cluster, legacy, kinds.APP_WRAPPER_LEGACY)
    await until_pods_run(cluster, "typed", 2)
    await cluster.client.delete(kinds.APP_WRAPPER_LEGACY, "typed", "default")
    await cluster.until_gone(kinds.DEPLOYMENT, "typed")
