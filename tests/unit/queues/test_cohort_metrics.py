"""What the queues below a cohort have together, as Prometheus is told."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.queues import QueueSettings
from shoal.controllers.queues.state_machine import StateMachine
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.queues.build import cluster_queue, complete, flavor, job, local_queue, make, name_of, true
from tests.unit.queues.conftest import decide


def cohort(name: str, **spec: object) -> Json:
    body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Cohort", "metadata": {"name": name}}
    return {**body, "spec": spec}


async def test_a_cohort_counts_all_below_it_and_what_is_lent(quiet: Cluster) -> None:
    metrics = decide(quiet).metrics
    queue = cluster_queue(quota={"cpu": "10"})
    queue["spec"]["cohortName"] = "team"
    lends = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]
    lends["lendingLimit"] = "4"
    own = {"name": "cpu", "nominalQuota": "3"}
    flavors = [{"name": flavor()["metadata"]["name"], "resources": [own]}]
    groups = [{"coveredResources": ["cpu"], "flavors": flavors}]
    rounds = [cohort("a", parentName="b"), cohort("b", parentName="a")]
    await make(quiet, flavor(), cohort("all"), cohort("team", parentName="all", resourceGroups=groups), *rounds)
    await make(quiet, queue, local_queue())
    (made,) = await make(quiet, job("train", 2))
    await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    await quiet.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: one["status"].get("admittedWorkloads") == 1)
    await quiet.settled()
    implicit = cluster_queue("other")
    implicit["spec"]["cohortName"] = "only-named"
    await make(quiet, implicit)
    await quiet.settled()
    infos = [sample for family in metrics.collect() for sample in family.samples if sample.name == "kueue_cohort_info"]
    above = {one.labels["cohort"]: (one.labels["parent_cohort"], one.labels["root_cohort"]) for one in infos}
    assert above["team"] == ("all", "all") and above["only-named"] == ("", "only-named")
    told = {
        (sample.name.removeprefix("kueue_cohort_subtree_"), sample.labels["cohort"]): sample.value
        for family in metrics.collect()
        for sample in family.samples
        if sample.name.startswith("kueue_cohort_subtree_")
    }
    for name in ("team", "all"):
        assert told["quota", name] == 7  # its own three cores, and four that the queue lends
        assert told["resource_reservations", name] == 2
        assert told["admitted_active_workloads", name] == 1
        assert told["admitted_workloads_total", name] == 1
    assert not [name for _, name in told if name in ("a", "b")]
    await quiet.client.patch(kinds.CLUSTER_QUEUE, "cluster-queue", None, {"spec": {"cohortName": "elsewhere"}})
    await quiet.client.delete(kinds.COHORT, "team")
    await quiet.until_gone(kinds.COHORT, "team")
    await quiet.settled()
    assert "team" not in {cohort for cohort, _ in metrics.below}


async def test_counts_of_a_queue_that_is_gone_are_forgotten(quiet: Cluster) -> None:
    """Another queue of its name begins at nought, as in Kueue."""
    metrics = decide(quiet).metrics
    await make(quiet, flavor(), cluster_queue(), local_queue())
    (made, waits) = await make(quiet, job("train", 2), job("large", 4000))
    await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))

    def told() -> dict[tuple[str, str], float]:
        samples = (sample for family in metrics.collect() for sample in family.samples)
        return {
            (sample.name, sample.labels.get("cluster_queue") or sample.labels["name"]): sample.value
            for sample in samples
            if {"cluster_queue", "name"} & set(sample.labels) and sample.labels.get("resource") != "memory"
        }

    await quiet.until(kinds.WORKLOAD, name_of(waits), lambda one: bool(one.get("status")))
    assert told()["kueue_admitted_workloads_total", "cluster-queue"] == 1
    assert told()["kueue_local_queue_admitted_workloads_total", "user-queue"] == 1
    assert told()["kueue_cluster_queue_resource_pending", "cluster-queue"] >= 4000
    await complete(quiet, "train", 2)
    await quiet.until(kinds.WORKLOAD, name_of(made), true("Finished"))
    await quiet.client.delete(kinds.LOCAL_QUEUE, "user-queue", "default")
    await quiet.client.delete(kinds.CLUSTER_QUEUE, "cluster-queue")
    await quiet.until_gone(kinds.CLUSTER_QUEUE, "cluster-queue")
    await quiet.settled()
    assert not [key for key in told() if "total" in key[0]]


def by_the_victim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateMachine, "_queue_of", lambda self, gang: "borrows")


@proven(without=by_the_victim)
async def test_f752_preemptions_are_counted_for_the_queue_that_preempts(quiet: Cluster) -> None:
    """F752: a queue takes back what another one borrowed. Holds: `preempting_cluster_queue` is the queue that takes."""
    metrics = decide(quiet).metrics
    lends = cluster_queue("lends", quota={"cpu": "4"}, cohortName="team", preemption={"reclaimWithinCohort": "Any"})
    borrows = cluster_queue("borrows", quota={"cpu": "0"}, cohortName="team")
    await make(quiet, flavor(), lends, borrows, local_queue("own", to="lends"), local_queue("guest", to="borrows"))
    (victim,) = await make(quiet, job("guest", 4, queue="guest"))
    await quiet.until(kinds.WORKLOAD, name_of(victim), true("Admitted"))
    await make(quiet, job("owner", 4, queue="own"))
    await quiet.until(kinds.WORKLOAD, name_of(victim), true("Preempted"))
    await quiet.settled()
    assert dict(metrics.preempted) == {("lends", "InCohortReclamation"): 1}


@pytest.mark.parametrize(
    "settings, told",
    [
        (QueueSettings(), {"user-queue", "other"}),
        (QueueSettings(local_queue_metrics_selector="team=red"), {"other"}),
        (QueueSettings(local_queue_metrics=False), set()),
    ],
)
async def test_metrics_of_local_queues_are_told_of_those_that_are_chosen(
    quiet: Cluster, settings: QueueSettings, told: set[str]
) -> None:
    metrics = decide(quiet, settings).metrics
    labelled = local_queue("other")
    labelled["metadata"]["labels"] = {"team": "red"}
    await make(quiet, flavor(), cluster_queue(), local_queue(), labelled)
    for name in ("user-queue", "other"):
        await quiet.until(kinds.LOCAL_QUEUE, name, true("Active"))
    samples = [sample for family in metrics.collect() for sample in family.samples]
    assert {one.labels["name"] for one in samples if one.name.startswith("kueue_local_queue_")} == told
    assert "kueue_pending_workloads" in {one.name for one in samples}
