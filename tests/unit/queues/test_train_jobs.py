"""TrainJobs of Kubeflow Trainer in a queue: their pods are those of the runtime that they name."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import yaml

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.cli.cluster import preparers
from shoal.controllers.queues import QueueController, QueueSettings, admission
from shoal.controllers.queues.jobs.train_job import TrainJobs
from shoal.controllers.queues.settings import PodsReady
from shoal.kube.admission_review import AdmissionRequest, GroupVersionKind
from shoal.kube.client import Client
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.queues.build import (
    cluster_queue,
    condition,
    flavor,
    local_queue,
    make,
    name_of,
    replicated_job,
    said,
    train_job,
    training_runtime,
    true,
)
from tests.unit.queues.conftest import decide
from tests.unit.queues.test_job_kinds import definition

TRAIN = kinds.TRAIN_JOB
OURS = "kueue.x-k8s.io/manager"
SPOT = {"key": "spot", "operator": "Exists"}


async def install(cluster: Cluster, *, seen: bool = True) -> None:
    """`seen`: a Trainer tells of every new TrainJob that it has seen it."""
    for kind in (kinds.CLUSTER_TRAINING_RUNTIME, kinds.TRAINING_RUNTIME, TRAIN, kinds.JOB_SET):
        made = definition(kind)
        made["spec"]["scope"] = "Namespaced" if kind.namespaced else "Cluster"
        await cluster.create(kinds.CRD, made)
    if seen:
        cluster.start(see(cluster))


async def see(cluster: Cluster) -> None:
    async for event in cluster.client.watch(TRAIN, "default", send_initial_events=True):
        if event.type == "ADDED":
            await tell(cluster, msgspec.json.decode(event.object)["metadata"]["name"], "Suspended")


@pytest.fixture
async def trainer(quiet: Cluster) -> AsyncIterator[Cluster]:
    """A cluster that knows TrainJobs, with a queue of four cores and no controller that decides."""
    await install(quiet)
    await make(quiet, flavor(), cluster_queue(), local_queue())
    yield quiet


def workload_of(made: Json) -> str:
    return name_of(made, "TrainJob", TRAIN.group)


def shape(workload: Json) -> list[tuple[str, int, Any]]:
    """Pod sets: name, pods, and what the first container of each asks for."""
    return [
        (one["name"], one["count"], one["template"]["spec"]["containers"][0].get("resources", {}).get("requests"))
        for one in workload["spec"]["podSets"]
    ]


def our_patch(job: Json) -> dict[str, Json]:
    """What our patch says of the pods of each replicated job."""
    (ours,) = [one for one in job["spec"].get("runtimePatches") or () if one["manager"] == OURS] or [{}]
    listed = (ours.get("trainingRuntimeSpec") or {}).get("template", {}).get("spec", {}).get("replicatedJobs") or []
    return {one["name"]: one["template"]["spec"]["template"] for one in listed}


async def tell(cluster: Cluster, name: str, *conditions: str, **jobs: Json) -> None:
    """Trainer's status: conditions that hold, and how jobs fare by their names."""
    counted = [{"name": one, "ready": 0, "succeeded": 0, "failed": 0, "active": 0, **jobs[one]} for one in jobs]
    held = [{"type": one, "status": "True", "message": f"it is {one}"} for one in conditions]
    status = {"conditions": held, "jobsStatus": counted}
    await cluster.client.patch(TRAIN, name, "default", {"status": status}, subresource="status")


async def edit(cluster: Cluster, kind: Kind, name: str, nodes: int) -> None:
    where = "default" if kind.namespaced else None
    await cluster.client.patch(kind, name, where, {"spec": {"mlPolicy": {"numNodes": nodes}}})


def started(job: Json) -> bool:
    return job["spec"].get("suspend") is False


# --- what it asks for


def pods(runtime: Json, job: Json) -> list[tuple[str, int, Any]]:
    return shape({"spec": {"podSets": TrainJobs(runtime).pod_sets(job)}})


def test_pods_are_those_of_the_runtime() -> None:
    assert pods(training_runtime("torch", nodes=3, cpu="2"), train_job("train")) == [("node", 3, {"cpu": "2"})]


def test_what_the_train_job_says_is_laid_over_its_runtime() -> None:
    asked = {"requests": {"cpu": "4", "nvidia.com/gpu": "1"}}
    mine = {"name": "MINE", "value": "yes"}
    job = train_job("train", numNodes=2, resourcesPerNode=asked, image="mine:1", args=["--fast"], env=[mine])
    runtime = training_runtime("torch")
    (node,) = TrainJobs(runtime).pod_sets(job)
    (container,) = node["template"]["spec"]["containers"]
    assert (node["count"], container["resources"], container["image"]) == (2, asked, "mine:1")
    assert (container["args"], container["command"], container["env"]) == (["--fast"], ["sleep", "60"], [mine])
    assert runtime == training_runtime("torch"), "the runtime itself stays as it is"


def test_steps_before_the_training_are_pod_sets_of_their_own() -> None:
    runtime = training_runtime("torch")
    step = "dataset-initializer"
    runtime["spec"]["template"]["spec"]["replicatedJobs"].insert(0, replicated_job(step, step=step, container=step))
    job = train_job("train", numNodes=2)
    job["spec"]["initializer"] = {"dataset": {"storageUri": "s3://data", "secretRef": {"name": "key"}}}
    first, second = TrainJobs(runtime).pod_sets(job)
    assert [(one["name"], one["count"]) for one in (first, second)] == [(step, 1), ("node", 2)]
    (container,) = first["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "STORAGE_URI", "value": "s3://data"}]
    assert container["envFrom"] == [{"secretRef": {"name": "key"}}]


@pytest.mark.parametrize(("as_node", "beside_it"), [(True, 3), (False, 4)])
def test_a_launcher_of_mpi_may_be_a_node_itself(as_node: bool, beside_it: int) -> None:
    runtime = training_runtime("mpi")
    runtime["spec"]["mlPolicy"] = {"numNodes": 1, "mpi": {"runLauncherAsNode": as_node}}
    jobs = [replicated_job("launcher", step="trainer"), replicated_job("node")]
    runtime["spec"]["template"]["spec"]["replicatedJobs"] = jobs
    job = train_job("train", numNodes=4, resourcesPerNode={"requests": {"cpu": "8"}})
    found = pods(runtime, job)
    assert [(name, count) for name, count, _ in found] == [("launcher", 1), ("node", beside_it)]
    assert [asked for _, _, asked in found] == [{"cpu": "8"}, {"cpu": "8"} if as_node else {"cpu": "1"}]


def test_jobs_of_a_runtime_without_a_policy_have_the_pods_that_they_say() -> None:
    runtime = training_runtime("plain")
    del runtime["spec"]["mlPolicy"]
    more = replicated_job("cache")
    more["template"]["spec"]["parallelism"], more["replicas"] = 2, 3
    runtime["spec"]["template"]["spec"]["replicatedJobs"].append(more)
    assert [one[:2] for one in pods(runtime, train_job("train"))] == [("node", 1), ("cache", 6)]
    assert [one[:2] for one in pods(runtime, train_job("train", numNodes=5))] == [("node", 5), ("cache", 6)]


def test_patches_of_others_count_and_ours_does_not() -> None:
    def patch(manager: str, **spec: Any) -> Json:
        listed = [{"name": "node", "template": {"spec": {"template": {"spec": spec}}}}]
        return {"manager": manager, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": listed}}}}

    job, runtime = train_job("train"), training_runtime("torch")
    volume, mine = {"name": "data", "emptyDir": {}}, {"name": "node", "env": [{"name": "MINE", "value": "yes"}]}
    job["spec"]["runtimePatches"] = [
        patch("lab.example/me", nodeSelector={"disk": "fast"}, volumes=[volume], containers=[mine]),
        patch(OURS, nodeSelector={"pool": "spot"}),
    ]
    (node,) = TrainJobs(runtime).pod_sets(job)
    spec = node["template"]["spec"]
    assert spec["nodeSelector"] == {"disk": "fast"} and spec["volumes"] == [volume]
    assert spec["containers"][0]["env"] == mine["env"] and spec["containers"][0]["image"] == "busybox"


# --- held, started, stopped


async def test_a_train_job_is_held_started_and_ended(trainer: Cluster) -> None:
    decide(trainer)
    await make(trainer, training_runtime("torch", nodes=3))
    (first,) = await make(trainer, train_job("first"))
    begun = await trainer.until(TRAIN, "first", started)
    (second,) = await make(trainer, train_job("second"))
    workload = await trainer.until(kinds.WORKLOAD, workload_of(first), true("Admitted"))
    assert shape(workload) == [("node", 3, {"cpu": "1"})]
    assert our_patch(begun)["node"]["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "node"
    waiting = workload_of(second)
    await trainer.until(kinds.WORKLOAD, waiting, lambda one: said(one, "QuotaReserved")[1] == "WaitingForQuota")
    assert not started(await trainer.get(TRAIN, "second"))
    await tell(trainer, "first", "Complete", node={"succeeded": 1})
    finished = await trainer.until(kinds.WORKLOAD, workload_of(first), true("Finished"))
    assert said(finished, "Finished") == ("True", "Succeeded", "it is Complete")
    await trainer.until(TRAIN, "second", started)


async def test_flavors_say_where_the_pods_go_and_their_runtime_keeps_its_word(quiet: Cluster) -> None:
    await install(quiet)
    decide(quiet)
    await make(quiet, flavor(nodeLabels={"pool": "spot"}, tolerations=[SPOT]), cluster_queue(), local_queue())
    await quiet.add_node("node-2", cpu="16", memory="64Gi", labels={"pool": "spot"})
    runtime = training_runtime("torch")
    own = {"key": "gpu", "operator": "Exists"}
    node = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    node["tolerations"] = [own]
    await make(quiet, runtime, train_job("train"))
    begun = await quiet.until(TRAIN, "train", started)
    spec = our_patch(begun)["node"]["spec"]
    assert spec == {"nodeSelector": {"pool": "spot"}, "tolerations": [own, SPOT]}, "a patch replaces tolerations"


async def stopped_with_active_pods(trainer: Cluster) -> str:
    """A TrainJob that was started and is taken its quota, while its pods still run; the name of its Workload."""
    await make(trainer, training_runtime("torch", nodes=2), train_job("train"))
    begun = await trainer.until(TRAIN, "train", started)
    await tell(trainer, "train", node={"active": 1, "ready": 1})
    await trainer.settled()  # the controller knows
    name = workload_of(begun)
    await trainer.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": False}})
    return name


def in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainJobs, "stopped", lambda self, job, sets: self.restored(self.suspended(job), sets))


@proven(without=in_one_step)
async def test_f810_a_patch_is_taken_out_once_trainer_stands_still(trainer: Cluster) -> None:
    """F810: a TrainJob is stopped while its pods run, when Trainer refuses every change of patches. Holds: it is
    suspended first, keeps its quota, and the patch is taken out once Trainer says that it stands still."""
    decide(trainer)
    name = await stopped_with_active_pods(trainer)
    held = await trainer.until(TRAIN, "train", lambda one: one["spec"]["suspend"] is True)
    assert our_patch(held), "Trainer would refuse this change now"
    await trainer.settled()
    assert condition(await trainer.get(kinds.WORKLOAD, name), "QuotaReserved")["status"] == "True"
    await tell(trainer, "train", "Suspended", node={"suspended": 1})
    after = await trainer.until(TRAIN, "train", lambda one: not our_patch(one))
    assert [one["manager"] for one in after["spec"]["runtimePatches"]] == [OURS], "as Kueue leaves it"
    freed = await trainer.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")
    assert not (freed.get("status") or {}).get("admission")
    await trainer.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": True}})
    again = await trainer.until(TRAIN, "train", started)
    assert our_patch(again)["node"]["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "node"


async def test_pods_below_its_job_set_keep_its_quota(trainer: Cluster) -> None:
    decide(trainer)
    name = await stopped_with_active_pods(trainer)
    job = await trainer.until(TRAIN, "train", lambda one: one["spec"]["suspend"] is True)

    def below(owner: Json, kind: Kind, made: Json) -> Json:
        reference = {"apiVersion": kind.api_version, "kind": kind.kind, "controller": True}
        reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
        return {**made, "metadata": {"name": made["metadata"]["name"], "ownerReferences": [reference]}}

    job_set = {"apiVersion": kinds.JOB_SET.api_version, "kind": "JobSet", "metadata": {"name": "train"}, "spec": {}}
    above = await trainer.create(kinds.JOB_SET, below(job, TRAIN, job_set))
    spec = {"nodeName": "node-1", "containers": [{"name": "node", "image": "busybox"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-node-0-0"}, "spec": spec}
    await trainer.create(kinds.POD, below(above, kinds.JOB_SET, pod))
    await trainer.client.patch(
        kinds.POD, "train-node-0-0", "default", {"status": {"phase": "Running"}}, subresource="status"
    )
    await tell(trainer, "train", "Suspended", node={"suspended": 1})
    await trainer.until(TRAIN, "train", lambda one: not our_patch(one))
    await trainer.settled()
    assert condition(await trainer.get(kinds.WORKLOAD, name), "QuotaReserved")["status"] == "True"
    await trainer.client.delete(kinds.POD, "train-node-0-0", "default", grace_seconds=0)
    await trainer.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")


async def test_pods_that_are_ready_and_pods_that_are_done_are_told(trainer: Cluster) -> None:
    decide(trainer, QueueSettings(pods_ready=PodsReady()))
    runtime, step = training_runtime("torch", nodes=2), "model-initializer"
    runtime["spec"]["template"]["spec"]["replicatedJobs"].insert(0, replicated_job(step, step=step, container=step))
    await make(trainer, runtime, train_job("train"))
    name = workload_of(await trainer.until(TRAIN, "train", started))
    await tell(trainer, "train", node={"active": 1}, **{step: {"succeeded": 1}})
    done = await trainer.until(kinds.WORKLOAD, name, lambda one: bool((one.get("status") or {}).get("reclaimablePods")))
    assert done["status"]["reclaimablePods"] == [{"name": step, "count": 1}]
    assert condition(done, "PodsReady")["status"] == "False"
    await tell(trainer, "train", node={"active": 1, "ready": 1}, **{step: {"succeeded": 1}})
    await trainer.until(kinds.WORKLOAD, name, true("PodsReady"))


# --- its runtime comes, changes and goes


def asked(queues: QueueController, name: str = "train") -> tuple[str, str]:
    found = queues.subject(TRAIN.group, "TrainJob", Key("default", name))
    assert found is not None
    return found.reason, found.message


def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueController, "_blueprint_changed", lambda self, kind, change: None)


MISSING = "ClusterTrainingRuntime torch does not exist; create it, or correct spec.runtimeRef"


@proven(without=unwatched)
async def test_f811_a_train_job_waits_for_its_runtime_and_goes_on_by_itself(trainer: Cluster) -> None:
    """F811: a TrainJob comes before the runtime that it names. Holds: it says which one is missing, and starts as soon
    as that is there, without another look at the clock."""
    queues = decide(trainer, QueueSettings(check_seconds=86400))
    (made,) = await make(trainer, train_job("train"))
    await told(trainer, "ClusterTrainingRuntimeNotFound", MISSING)
    assert asked(queues) == ("Misconfigured", MISSING)
    assert await trainer.names(kinds.WORKLOAD) == []
    await make(trainer, training_runtime("torch"))
    await trainer.until(TRAIN, "train", started)
    await trainer.until(kinds.WORKLOAD, workload_of(made), true("Admitted"))


async def told(cluster: Cluster, reason: str, message: str) -> None:
    """Until an event says so."""
    watch = cluster.client.watch(kinds.EVENT, "default", send_initial_events=True)
    async for event in watch:
        said_now = msgspec.json.decode(event.object)
        if said_now.get("reason") == reason and message in said_now.get("message", ""):
            return


@proven(without=unwatched)
async def test_f812_a_train_job_that_waits_follows_its_runtime(trainer: Cluster) -> None:
    """F812: a runtime changes while a TrainJob of it waits. Holds: the Workload asks for what would be started now."""
    decide(trainer, QueueSettings(check_seconds=86400))
    await make(trainer, training_runtime("torch", nodes=8))
    (made,) = await make(trainer, train_job("train"))
    name = workload_of(made)
    await trainer.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")
    await edit(trainer, kinds.CLUSTER_TRAINING_RUNTIME, "torch", 4)
    await trainer.until(TRAIN, "train", started)
    workload = await trainer.get(kinds.WORKLOAD, name)
    assert (workload["metadata"]["name"], shape(workload)) == (name, [("node", 4, {"cpu": "1"})])


def by_the_runtime_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainJobs, "knowing", lambda self, blueprint, recorded: TrainJobs(blueprint))


@proven(without=by_the_runtime_of_now)
@pytest.mark.parametrize("kind", [kinds.CLUSTER_TRAINING_RUNTIME, kinds.TRAINING_RUNTIME], ids=lambda one: one.kind)
async def test_f813_a_train_job_that_runs_is_left_alone_when_its_runtime_changes(trainer: Cluster, kind: Kind) -> None:
    """F813: a runtime changes, and is deleted, while a TrainJob of it runs. Holds: the TrainJob runs on, with the quota
    that it has; what the runtime says now counts for its next start."""
    decide(trainer)
    await make(trainer, training_runtime("torch", kind=kind.kind, nodes=2))
    wanted = train_job("train")
    wanted["spec"]["runtimeRef"]["kind"] = kind.kind
    (made,) = await make(trainer, wanted)
    await trainer.until(TRAIN, "train", started)
    await trainer.until(kinds.WORKLOAD, workload_of(made), true("Admitted"))
    await tell(trainer, "train", node={"active": 1, "ready": 1})
    await edit(trainer, kind, "torch", 3)
    await trainer.settled()
    await trainer.client.delete(kind, "torch", "default" if kind.namespaced else None)
    await tell(trainer, "train", node={"active": 1, "ready": 0})
    await trainer.settled()
    workload = await trainer.get(kinds.WORKLOAD, workload_of(made))
    assert started(await trainer.get(TRAIN, "train")) and shape(workload) == [("node", 2, {"cpu": "1"})]
    assert condition(workload, "Admitted")["status"] == "True"


async def test_a_train_job_whose_runtime_is_gone_gets_no_quota(trainer: Cluster) -> None:
    queues = decide(trainer)
    await make(trainer, training_runtime("torch", nodes=3))
    (first,) = await make(trainer, train_job("first"))
    await trainer.until(TRAIN, "first", started)
    await make(trainer, training_runtime("other", nodes=3))
    (second,) = await make(trainer, train_job("second", runtime="other"))
    name = workload_of(second)
    await trainer.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[1] == "WaitingForQuota")
    await trainer.client.delete(kinds.CLUSTER_TRAINING_RUNTIME, "other", None)
    gone = MISSING.replace("torch", "other")
    await told(trainer, "ClusterTrainingRuntimeNotFound", gone)
    assert asked(queues, "second") == ("Misconfigured", gone)
    await tell(trainer, "first", "Complete")
    await trainer.until(kinds.WORKLOAD, workload_of(first), true("Finished"))
    await trainer.settled()
    assert condition(await trainer.get(kinds.WORKLOAD, name), "QuotaReserved")["status"] == "False"
    await make(trainer, training_runtime("other", nodes=2))
    await trainer.until(TRAIN, "second", started)
    assert shape(await trainer.get(kinds.WORKLOAD, name)) == [("node", 2, {"cpu": "1"})]


@pytest.mark.parametrize(
    ("reference", "wrong"),
    [
        ({"name": "torch", "kind": "Other"}, "spec.runtimeRef must name a ClusterTrainingRuntime or a TrainingRuntime"),
        ({"name": "empty"}, "ClusterTrainingRuntime empty: spec.template.spec.replicatedJobs must list the jobs"),
    ],
)
async def test_a_train_job_that_can_never_run_says_why(trainer: Cluster, reference: Json, wrong: str) -> None:
    queues = decide(trainer)
    empty = training_runtime("empty")
    empty["spec"]["template"]["spec"]["replicatedJobs"] = []
    made = train_job("train")
    made["spec"]["runtimeRef"] = reference
    await make(trainer, empty, made)
    await told(trainer, "InvalidJob", wrong)
    assert asked(queues)[0] == "Misconfigured" and wrong in asked(queues)[1]


def by_the_runtime_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainJobs, "from_copy", lambda self, kept, job: None)


def snapshot(job: Json, runtime: Json) -> Json:
    """As Trainer keeps it from 2.3 on."""
    owner = {"apiVersion": TRAIN.api_version, "kind": TRAIN.kind, "name": job["metadata"]["name"], "controller": True}
    metadata = {"name": f"{job['metadata']['name']}-runtime-snapshot", "namespace": "default"}
    metadata["ownerReferences"] = [{**owner, "uid": job["metadata"]["uid"]}]  # type: ignore[assignment]
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"runtime": yaml.safe_dump(runtime)}}


@proven(without=by_the_runtime_alone)
async def test_f814_a_train_job_is_judged_by_the_runtime_that_trainer_has_kept(trainer: Cluster) -> None:
    """F814: a runtime changes after a Trainer of 2.3 or newer has kept a copy of it for a TrainJob that waits. Holds:
    the TrainJob asks for what is started: the copy."""
    decide(trainer)
    await make(trainer, training_runtime("other", nodes=2), train_job("running", runtime="other"))
    await trainer.until(TRAIN, "running", started)
    before = training_runtime("torch", nodes=3)
    await make(trainer, before)
    (made,) = await make(trainer, train_job("train"))
    name = workload_of(made)
    await trainer.until(kinds.WORKLOAD, name, lambda one: said(one, "QuotaReserved")[0] == "False")
    await trainer.create(kinds.CONFIG_MAP, snapshot(made, before))
    await edit(trainer, kinds.CLUSTER_TRAINING_RUNTIME, "torch", 1)
    await trainer.settled()
    assert shape(await trainer.get(kinds.WORKLOAD, name)) == [("node", 3, {"cpu": "1"})]
    assert not started(await trainer.get(TRAIN, "train"))
    await tell(trainer, "running", "Complete")
    await trainer.until(TRAIN, "train", started)
    assert shape(await trainer.get(kinds.WORKLOAD, name)) == [("node", 3, {"cpu": "1"})]


async def test_what_trainer_has_kept_is_looked_at_before_a_start(trainer: Cluster) -> None:
    """Newer Trainers add to what the runtime asks for, where older ones replace it: the copy says which it is."""
    decide(trainer)
    await make(trainer, training_runtime("other", nodes=2), train_job("running", runtime="other"))
    await trainer.until(TRAIN, "running", started)
    runtime = training_runtime("torch", nodes=3)
    await make(trainer, runtime)
    later = train_job("train", resourcesPerNode={"requests": {"memory": "1Gi"}})
    labels = later["metadata"].pop("labels")
    (made,) = await make(trainer, later)
    await trainer.create(kinds.CONFIG_MAP, snapshot(made, runtime))
    await trainer.client.patch(TRAIN, "train", "default", {"metadata": {"labels": labels}})
    name = workload_of(made)
    await trainer.until(kinds.WORKLOAD, name, lambda one: shape(one) == [("node", 3, {"cpu": "1", "memory": "1Gi"})])
    await tell(trainer, "running", "Complete")
    await trainer.until(TRAIN, "train", started)


def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainJobs, "may_have_copy", lambda self, job: True)


@proven(without=at_once)
async def test_f815_a_train_job_is_started_once_trainer_has_seen_it(quiet: Cluster) -> None:
    """F815: a TrainJob is given quota before Trainer has seen it, and so before Trainer has kept its runtime. Holds: it
    is started once Trainer has, and with quota for what Trainer will start."""
    await install(quiet, seen=False)
    decide(quiet)
    runtime = training_runtime("torch", nodes=3)
    await make(quiet, flavor(), cluster_queue(), local_queue(), runtime)
    (made,) = await make(quiet, train_job("train", resourcesPerNode={"requests": {"memory": "1Gi"}}))
    name = workload_of(made)
    before = await quiet.until(kinds.WORKLOAD, name, true("Admitted"))
    assert shape(before) == [("node", 3, {"memory": "1Gi"})]
    await quiet.settled()
    assert not started(await quiet.get(TRAIN, "train"))
    await quiet.create(kinds.CONFIG_MAP, snapshot(made, runtime))
    await tell(quiet, "train", "Suspended")
    await quiet.until(TRAIN, "train", started)
    assert shape(await quiet.get(kinds.WORKLOAD, name)) == [("node", 3, {"cpu": "1", "memory": "1Gi"})]


def test_a_copy_that_is_not_this_jobs_is_none() -> None:
    kind, runtime, job = TrainJobs(), training_runtime("torch"), train_job("train")
    job["metadata"]["uid"] = "1"
    kept = snapshot(job, runtime)
    assert kind.from_copy(kept, job) is not None
    other = copy.deepcopy(job)
    other["metadata"]["uid"] = "2"
    assert kind.from_copy(kept, other) is None, "another owner"
    assert kind.from_copy(snapshot(job, training_runtime("other")), job) is None, "another runtime"
    assert kind.from_copy({**kept, "data": {"runtime": "a: [&b"}}, job) is None, "not readable"


# --- admission


async def test_a_new_train_job_begins_suspended_and_without_what_an_earlier_start_left(trainer: Cluster) -> None:
    trainer.server.admission.preparers.update(preparers(trainer.client))
    decide(trainer)
    await make(trainer, training_runtime("torch"))
    written = train_job("train")
    del written["spec"]["suspend"]
    (made,) = await make(trainer, written)
    assert made["spec"]["suspend"] is True
    empty = {"manager": OURS, "trainingRuntimeSpec": {"template": {"spec": {}}}}
    assert made["spec"]["runtimePatches"] == [empty], "as Kueue makes it, and needs it"
    first = await trainer.until(TRAIN, "train", started)
    await tell(trainer, "train", "Failed")
    await trainer.client.delete(TRAIN, "train", "default")
    await trainer.until_gone(TRAIN, "train")
    returned = copy.deepcopy(first)
    returned["metadata"] = {key: first["metadata"][key] for key in ("name", "namespace", "labels")}
    (again,) = await make(trainer, returned)
    assert again["spec"]["suspend"] is True and not our_patch(again)
    second = await trainer.until(TRAIN, "train", started)
    marks = [our_patch(one)["node"]["metadata"]["labels"] for one in (first, second)]
    assert marks[0] == marks[1] and "spec" not in our_patch(second)["node"]


def test_amounts_are_stored_as_trainer_writes_them() -> None:
    divided = {"name": "CORES", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}
    amounts = {"cpu": 1, "memory": "1024Mi", "nvidia.com/gpu": "2"}
    job = train_job("train", resourcesPerNode={"requests": amounts, "limits": {"cpu": 1.5}}, env=[divided])
    made = TrainJobs().prepared(job)["spec"]["trainer"]
    assert made["resourcesPerNode"]["requests"] == {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "2"}
    assert made["resourcesPerNode"]["limits"] == {"cpu": "1500m"}
    assert made["env"][0]["valueFrom"]["resourceFieldRef"] == {"resource": "limits.cpu", "divisor": "0"}
    assert job["spec"]["trainer"]["resourcesPerNode"]["requests"] is amounts and amounts["cpu"] == 1


def created(job: Json) -> AdmissionRequest:
    kind, name = GroupVersionKind(TRAIN.group, TRAIN.version, TRAIN.kind), job["metadata"]["name"]
    return AdmissionRequest(uid="1", kind=kind, name=name, namespace="default", operation="CREATE", object=job)


async def test_a_topology_that_cannot_be_asked_for_is_refused_by_what_the_runtime_says(trainer: Cluster) -> None:
    runtime = training_runtime("torch")
    node = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    levels = {f"kueue.x-k8s.io/podset-{word}-topology": "rack" for word in ("required", "preferred")}
    node["metadata"] = {"annotations": levels}
    await make(trainer, runtime)
    judge = admission.QueueAdmission(trainer.client)
    verdict = await judge.validate(created(train_job("train")))
    assert not verdict.allowed and "podSets[node].template.metadata.annotations" in verdict.message, verdict
    assert (await judge.validate(created(train_job("train", runtime="to-come")))).allowed


# --- clusters without it


async def test_where_trainer_is_not_installed_one_kind_of_it_is_asked_for(
    quiet: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: set[Kind] = set()
    watch = Client.watch

    def noting(self: Client, kind: Kind, *rest: Any, **more: Any) -> Any:
        asked_for.add(kind)
        return watch(self, kind, *rest, **more)

    monkeypatch.setattr(Client, "watch", noting)
    queues = decide(quiet)
    await queues.synced()
    assert {kind for kind in asked_for if kind.group == TRAIN.group} == {kinds.CLUSTER_TRAINING_RUNTIME}
    await install(quiet)
    await make(quiet, flavor(), cluster_queue(), local_queue(), training_runtime("torch"), train_job("train"))
    await quiet.until(TRAIN, "train", started)
    assert kinds.JOB_SET in asked_for, "between a TrainJob and its pods"


async def test_an_older_trainer_that_would_drop_our_patch_is_left_alone(
    quiet: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await install(quiet)
    old = await quiet.get(kinds.CRD, TRAIN.resource)
    fields = {
        "suspend": {"type": "boolean"},
        "runtimeRef": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    }
    spec = {"type": "object", "properties": fields}
    schema = {"type": "object", "properties": {"spec": spec}}
    old["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": schema}
    await quiet.client.patch(kinds.CRD, TRAIN.resource, None, {"spec": {"versions": old["spec"]["versions"]}})
    queues = decide(quiet)
    await queues.synced()
    await make(quiet, flavor(), cluster_queue(), local_queue(), training_runtime("torch"), train_job("train"))
    await quiet.settled()
    assert not started(await quiet.get(TRAIN, "train")) and await quiet.names(kinds.WORKLOAD) == []
    assert "it drops spec.runtimePatches" in caplog.text
