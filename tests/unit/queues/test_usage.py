"""Shares in statuses: what LocalQueues and users had lately, weighted shares, and that a restart forgets none of it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from shoal.api import kinds
from shoal.api.gang import SUBMITTED_BY, USER_USAGE
from shoal.api.meta import Json
from shoal.controllers.queues import QueueSettings
from shoal.controllers.queues.publishing import Publishing
from shoal.controllers.queues.settings import AdmissionFairSharing
from shoal.errors import BadInput
from shoal.sdk import places
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.queues.build import cluster_queue, condition, flavor, job, local_queue, make, name_of, true
from tests.unit.queues.conftest import decide

BY_USAGE = {"admissionMode": "UsageBasedAdmissionFairSharing"}
SHARING = AdmissionFairSharing(half_life_seconds=3600, sampling_seconds=300)


def consumed(queue: Json) -> Json:
    return ((queue["status"].get("fairSharing") or {}).get("admissionFairSharingStatus") or {}).get(
        "consumedResources"
    ) or {}


def stored_usage(cpu: str) -> Json:
    return {
        "status": {
            "fairSharing": {
                "weightedShare": 0,
                "admissionFairSharingStatus": {
                    "consumedResources": {"cpu": cpu},
                    "lastUpdate": "2100-01-01T00:00:00Z",  # it does not fade while the test runs
                },
            }
        }
    }


def submitted_by(user: str, made: Json) -> Json:
    made["metadata"]["annotations"] = {SUBMITTED_BY: user}
    return made


async def test_what_a_local_queue_had_is_stored_and_counts_for_the_next_controller(quiet: Cluster) -> None:
    queues = (cluster_queue(admissionScope=BY_USAGE), local_queue("much"), local_queue("little"))
    await make(quiet, flavor(), *queues)
    for name, cpu in (("much", "8"), ("little", "1")):
        await quiet.client.patch(kinds.LOCAL_QUEUE, name, "default", stored_usage(cpu), subresource="status")
    first, second = await make(quiet, job("first", 4, queue="much"), job("second", 4, queue="little"))
    decide(quiet, QueueSettings(admission_fair_sharing=SHARING))
    await quiet.until(kinds.WORKLOAD, name_of(second), true("Admitted"))
    waiting = await quiet.until(kinds.WORKLOAD, name_of(first), lambda one: bool(condition(one, "QuotaReserved")))
    assert condition(waiting, "QuotaReserved")["status"] == "False"
    told = await quiet.until(kinds.LOCAL_QUEUE, "little", lambda one: consumed(one).get("cpu") not in (None, "1"))
    penalty = 4000 * (1 - 0.5 ** (300 / 3600))
    assert consumed(told) == {"cpu": f"{round(1000 + penalty)}m", "memory": "0"}
    rows = await places.usages(quiet.client)
    assert [(row["queue"], row["consumed"]) for row in rows] == [
        ("little", consumed(told)),
        ("much", {"cpu": "8", "memory": "0"}),
    ]


async def test_usage_is_told_of_queues_that_do_not_share_by_it_too(quiet: Cluster) -> None:
    await make(quiet, flavor(), cluster_queue(), local_queue())
    decide(quiet, QueueSettings(admission_fair_sharing=SHARING))
    (made,) = await make(quiet, job("runs", 4))
    await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))
    told = await quiet.until(kinds.LOCAL_QUEUE, "user-queue", lambda one: consumed(one).get("cpu", "0") != "0")
    assert consumed(told) == {"cpu": f"{round(4000 * (1 - 0.5 ** (300 / 3600)))}m", "memory": "0"}


async def test_users_of_one_queue_share_it_and_what_they_had_is_stored_beside_the_queue(quiet: Cluster) -> None:
    had = local_queue("team")
    had["metadata"]["annotations"] = {USER_USAGE: json.dumps({"ann": {"cpu": "7"}, "bob": {"cpu": "1"}})}
    await make(quiet, flavor(), cluster_queue(admissionScope=BY_USAGE), had)
    await quiet.client.patch(kinds.LOCAL_QUEUE, "team", "default", stored_usage("8"), subresource="status")
    anns, bobs = await make(
        quiet, submitted_by("ann", job("anns", 4, queue="team")), submitted_by("bob", job("bobs", 4, queue="team"))
    )
    decide(quiet, QueueSettings(admission_fair_sharing=AdmissionFairSharing(half_life_seconds=3600, per_user=True)))
    await quiet.until(kinds.WORKLOAD, name_of(bobs), true("Admitted"))
    waiting = await quiet.until(kinds.WORKLOAD, name_of(anns), lambda one: bool(condition(one, "QuotaReserved")))
    assert condition(waiting, "QuotaReserved")["status"] == "False"

    def has_more(queue: Json) -> bool:
        return json.loads(queue["metadata"]["annotations"][USER_USAGE])["bob"]["cpu"] != "1"

    told = await quiet.until(kinds.LOCAL_QUEUE, "team", has_more)
    assert json.loads(told["metadata"]["annotations"][USER_USAGE])["ann"] == {"cpu": "7"}
    rows = await places.usages(quiet.client)
    assert [row["user"] for row in rows] == ["", "ann", "bob"]


async def test_statuses_show_weighted_shares_where_queues_share_fairly(quiet: Cluster) -> None:
    roof = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Cohort", "metadata": {"name": "roof"}, "spec": {}}
    house = {**roof, "metadata": {"name": "house"}, "spec": {"parentName": "roof"}}
    await make(
        quiet, flavor(), roof, house,
        cluster_queue("poor", quota={"cpu": "0"}, cohortName="house"),
        cluster_queue("rich", quota={"cpu": "8"}, cohortName="roof"),
        local_queue("user-queue", to="poor"),
    )  # fmt: skip
    metrics = decide(quiet, QueueSettings(fair_sharing=True)).metrics
    (made,) = await make(quiet, job("borrows", 4))
    await quiet.until(kinds.WORKLOAD, name_of(made), true("Admitted"))

    def half(obj: Json) -> bool:
        return (obj["status"].get("fairSharing") or {}).get("weightedShare") == 500

    await quiet.until(kinds.CLUSTER_QUEUE, "poor", half, namespace="")
    shown = await quiet.until(kinds.COHORT, "house", half, namespace="")
    assert shown["status"]["fairSharing"] == {"weightedShare": 500}
    told = {
        sample.name: sample.value
        for family in metrics.collect()
        for sample in family.samples
        if sample.labels.get("cluster_queue") == "poor" or sample.labels.get("cohort") == "house"
    }
    assert (told["kueue_cluster_queue_weighted_share"], told["kueue_cohort_weighted_share"]) == (500.0, 500.0)


@pytest.mark.parametrize("text", ["cpu", "=1", "cpu=many", "cpu=-1"])
def test_a_weight_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="resource_weights"):
        _ = QueueSettings(admission_fair_sharing=AdmissionFairSharing(resource_weights=(text,))).decisions


@pytest.mark.parametrize("asked, sampled", [(0.1, 100_000), (0.001, 100_000), (2.5, 2_500_000)])
def test_any_interval_above_nothing_is_taken_and_none_keeps_the_controller_busy(asked: float, sampled: int) -> None:
    assert AdmissionFairSharing(sampling_seconds=asked).decisions.sampling == sampled


def published_with_a_gang_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Publishing, "shares", lambda self: None)


@proven(without=published_with_a_gang_only)
async def test_f774_a_cohort_tells_its_share_before_any_gang_and_after_its_weight_changed(quiet: Cluster) -> None:
    """F774: a Cohort is made or changed while no gang of it comes or goes. Holds: its status has its share all the same
    (by the weight that it has now)."""
    house = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Cohort", "metadata": {"name": "house"}}
    decide(quiet, QueueSettings(fair_sharing=True))
    poor = cluster_queue("poor", quota={"cpu": "0"}, cohortName="house")
    rich = cluster_queue("rich", quota={"cpu": "8"}, cohortName="roof")
    await make(quiet, flavor(), poor, rich, local_queue("user-queue", to="poor"))
    await make(quiet, {**house, "spec": {"parentName": "roof"}})

    def share(amount: int) -> Callable[[Json], bool]:
        return lambda one: (one.get("status") or {}).get("fairSharing") == {"weightedShare": amount}

    await quiet.until(kinds.COHORT, "house", share(0), namespace="")
    await make(quiet, job("borrows", 4))
    await quiet.until(kinds.COHORT, "house", share(500), namespace="")
    await quiet.client.patch(kinds.COHORT, "house", "", {"spec": {"fairSharing": {"weight": "2"}}})
    await quiet.until(kinds.COHORT, "house", share(250), namespace="")
