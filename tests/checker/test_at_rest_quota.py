"""Each rule by which quota decides who may start: a stored world in which a gang waits wrongly beside an equal one in
which it waits rightly."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checker.at_rest import Rules
from tests.checker.rest_build import NOW, World, condition, template

WAITS = "couldn't assign flavors"
FAIR = Rules(now=NOW, fair_sharing=True)
LATER = "2026-01-01T11:00:00Z"


def waiting(found: list[str]) -> list[str]:
    """What is said, without what the gang was told."""
    return [one.split(" (")[0] for one in found]


# --- several flavors


def _flavors(first: str, second: str, **fungibility: str) -> World:
    """A gang of two pod sets of 1 and 2 cpus, and a queue of two flavors."""
    world = World()
    world.node()
    world.put("resourceflavors", "other", namespaced=False, spec={})
    queue = world.queue("q", first, flavorFungibility=fungibility)
    flavors = queue["spec"]["resourceGroups"][0]["flavors"]
    flavors.append({"name": "other", "resources": [{"name": "cpu", "nominalQuota": second}]})
    gang = world.gang("mine", "q", "1")
    gang["spec"]["podSets"].append({"name": "large", "count": 1, "template": template("2")})
    return world


def test_pod_sets_find_flavors_one_after_the_other() -> None:
    expected = ["I18: Job mine waits in q although its quota is free"]
    assert waiting(_flavors("1", "2").found()) == expected
    assert waiting(_flavors("2", "1").found()) == expected  # from the flavor behind on, once the first search failed
    assert _flavors("2", "0").found() == []


def test_a_flavor_that_pods_may_not_use_is_passed_over() -> None:
    world = _flavors("0", "3")
    assert len(world.found()) == 1
    world.objects["resourceflavors"][1]["spec"] = {"nodeTaints": [{"key": "gpu", "effect": "NoSchedule"}]}
    assert world.found() == []


def test_a_flavor_that_this_program_cannot_read_leaves_the_gang_undecided() -> None:
    world = _flavors("0", "3")
    world.objects["resourceflavors"][1]["spec"] = {"nodeLabels": {"size": "3"}}
    terms = [{"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["2"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    world.objects["workloads"][0]["spec"]["podSets"][0]["template"] = template("1", affinity=affinity)
    assert world.undecided() == ["Job mine: whether its pods may use flavor other"]


@pytest.mark.parametrize(("when", "starts"), [("TryNextFlavor", True), ("MayStopSearch", False)])
def test_a_flavor_to_be_freed_stops_the_search_or_not(when: str, starts: bool) -> None:
    """The first flavor is held by a lower priority; the second is free."""
    world = _flavors("1", "3", whenCanPreempt=when)
    world.objects["clusterqueues"][0]["spec"]["preemption"] = {"withinClusterQueue": "LowerPriority"}
    world.gang("low", "q", "1", state="admitted", priority=-1)
    text = "although its quota is free" if starts else "although it may take the place of Job low"
    assert waiting(world.found()) == [f"I18: Job mine waits in q {text}"]


# --- fewer pods than wanted


def test_a_gang_that_may_start_with_fewer_pods_does() -> None:
    world = World()
    world.node()
    world.queue("q", "4")
    gang = world.gang("mine", "q", "1", pods=6)
    assert world.found() == []
    gang["spec"]["podSets"][0]["minCount"] = 3
    assert waiting(world.found()) == ["I18: Job mine waits in q although its quota is free"]
    assert world.found(Rules(now=NOW, partial_admission=False)) == []


# --- trees of cohorts


def _tree(limits: dict[str, str] | None = None, lends: dict[str, str] | None = None, **preemption: Any) -> World:
    """`mine` waits in `a` below `left`; `right` has all the quota, 4 cpus, in its queue `b`."""
    world = World()
    world.node()
    world.cohort("root")
    world.cohort("left", "root")
    world.cohort("right", "root")
    world.queue("a", "0", limits, cohortName="left", preemption=preemption)
    world.queue("b", "4", lends, cohortName="right")
    return world


def test_quota_is_borrowed_through_a_tree() -> None:
    world = _tree()
    world.gang("mine", "a", "4")
    assert waiting(world.found()) == ["I18: Job mine waits in a although its quota is free"]


@pytest.mark.parametrize("limits", [({"borrowingLimit": "3"}, None), (None, {"lendingLimit": "3"})])
def test_no_more_is_borrowed_than_limits_allow(limits: tuple[dict[str, str] | None, dict[str, str] | None]) -> None:
    world = _tree(*limits)
    world.gang("mine", "a", "4")
    assert world.found() == []
    world.gang("smaller", "a", "3")
    assert waiting(world.found()) == ["I18: Job smaller waits in a although its quota is free"]


def _lent(**preemption: Any) -> World:
    """`b` owns 4 cpus, of which `a`, two cohorts away, has borrowed 3."""
    world = _tree()
    world.objects["clusterqueues"][1]["spec"]["preemption"] = preemption
    world.gang("borrower", "a", "3", state="admitted", priority=5)
    return world


def test_lent_quota_is_reclaimed_through_a_tree() -> None:
    world = _lent(reclaimWithinCohort="Any")
    world.gang("mine", "b", "2")
    assert waiting(world.found()) == ["I18: Job mine waits in b although it may take the place of Job borrower"]


def test_lent_quota_stays_lent_where_policy_says_so() -> None:
    for policy in ("Never", "LowerPriority"):
        world = _lent(reclaimWithinCohort=policy)
        world.gang("mine", "b", "2")
        assert world.found() == []


def test_a_queue_that_lends_its_own_quota_below_is_not_asked_for_it() -> None:
    """The queue within its own nominal quota keeps what it uses."""
    world = _lent(reclaimWithinCohort="Any")
    world.gang("own", "b", "1", state="admitted")
    world.objects["clusterqueues"][0]["spec"]["preemption"] = {"reclaimWithinCohort": "Any"}
    world.gang("mine", "a", "1")
    assert world.found() == []


def _borrowing(threshold: int | None = None, policy: str = "LowerPriority") -> World:
    """`mine` (10) would borrow; another borrower (1) of the cohort holds what it needs."""
    world = World()
    world.node()
    borrow: dict[str, Any] = {
        "policy": policy,
        **({"maxPriorityThreshold": threshold} if threshold is not None else {}),
    }
    preemption = {"reclaimWithinCohort": "LowerPriority", "borrowWithinCohort": borrow}
    world.queue("a", "0", cohortName="all", preemption=preemption)
    world.queue("b", "0", cohortName="all")
    world.queue("c", "2", cohortName="all")
    world.gang("low", "b", "2", state="admitted", priority=1)
    world.gang("mine", "a", "2", priority=10)
    return world


def test_borrowers_of_lower_priority_give_way_where_the_queue_says_so() -> None:
    expected = ["I18: Job mine waits in a although it may take the place of Job low"]
    assert waiting(_borrowing().found()) == expected
    assert waiting(_borrowing(threshold=1).found()) == expected


def test_borrowers_do_not_give_way_to_a_borrower_otherwise() -> None:
    assert _borrowing(policy="Never").found() == []
    assert _borrowing(threshold=0).found() == []


# --- within one queue


def _equals(mine: str, other: str) -> World:
    world = World()
    world.node()
    world.queue("q", "2", preemption={"withinClusterQueue": "LowerOrNewerEqualPriority"})
    world.gang("other", "q", "2", state="admitted")["metadata"]["creationTimestamp"] = other
    world.gang("mine", "q", "2")["metadata"]["creationTimestamp"] = mine
    return world


def test_an_equal_that_came_later_gives_way_where_the_queue_says_so() -> None:
    early = "2026-01-01T09:00:00Z"
    expected = ["I18: Job mine waits in q although it may take the place of Job other"]
    assert waiting(_equals(early, LATER).found()) == expected
    assert _equals(LATER, early).found() == []
    assert _equals(early, early).found() == []


def test_a_gang_that_once_made_way_for_another_is_undecided() -> None:
    """Until something outside changes it may not; whether that happened since is not stored."""
    world = _equals("2026-01-01T09:00:00Z", LATER)
    text = "Preempted to accommodate a workload (UID: workloads-job-other, JobUID: y)"
    world.objects["workloads"][1]["status"]["conditions"].append(condition("Evicted", False, text))
    assert world.undecided() == ["Job mine: it depends on which gangs it once made way for"]


def _circle(back: str) -> World:
    """`mine` may push out all in `q0`, and in `q1` gangs that borrow; `own` would then reclaim what `q1` owns."""
    world = World()
    world.node(cpu="64")
    world.cohort("root")
    world.cohort("left", "root")
    world.cohort("right", "root")
    lower = {"withinClusterQueue": "LowerPriority", "borrowWithinCohort": {"policy": "LowerPriority"}}
    limits = {"borrowingLimit": "5"}
    world.queue("q0", "8", limits, cohortName="left", preemption={"reclaimWithinCohort": "Any", **lower})
    own = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": back}
    world.queue("q1", "4", {"lendingLimit": "2"}, cohortName="right", preemption=own)
    world.gang("a", "q0", "3", state="admitted")
    world.gang("b", "q0", "1", state="admitted")
    world.gang("high", "q1", "3", state="admitted", priority=100)
    world.gang("middle", "q1", "4", state="admitted", priority=10)
    world.gang("own", "q1", "1", state="admitted")
    world.gang("mine", "q0", "9", priority=100)
    return world


def test_those_who_would_push_out_each_other_for_ever_are_undecided() -> None:
    assert _circle("Any").undecided() == ["Job mine: those it may push out would push it out in turn"]
    assert waiting(_circle("Never").found()) == [
        "I18: Job mine waits in q0 although it may take the place of Job a, Job b, Job middle, Job own"
    ]


# --- heads of strict queues


def _strict(reclaim: str, cpu: str) -> World:
    """The strict head `large` waits for more than there is; `mine`, in a queue beside, would take it."""
    world = World()
    world.node()
    preemption = {"reclaimWithinCohort": reclaim}
    world.queue("a", "4", cohortName="all", queueingStrategy="StrictFIFO", preemption=preemption)
    world.queue("b", "0", cohortName="all")
    world.gang("running", "a", "2", state="admitted")
    world.gang("large", "a", "3", priority=9)
    world.gang("mine", "b", cpu)
    return world


def test_the_head_of_a_strict_queue_keeps_what_it_waits_for() -> None:
    assert _strict("Never", "1").found() == []


def test_it_keeps_nothing_where_it_can_always_reclaim() -> None:
    assert waiting(_strict("Any", "1").found()) == ["I18: Job mine waits in b although its quota is free"]


# --- shares


def _shares(*theirs: int) -> World:
    """A cohort of 6 cpus that no queue owns; `b` runs gangs of these sizes, and `mine` (2 cpus) waits in `a`."""
    world = World()
    world.node()
    groups = [
        {
            "coveredResources": ["cpu"],
            "flavors": [{"name": "default", "resources": [{"name": "cpu", "nominalQuota": "6"}]}],
        }
    ]
    world.cohort("all", resourceGroups=groups)
    world.queue("a", "0", cohortName="all", preemption={"reclaimWithinCohort": "Any"})
    world.queue("b", "0", cohortName="all")
    for index, cpu in enumerate(theirs):
        world.gang(f"b{index}", "b", str(cpu), state="admitted")
    world.gang("mine", "a", "2")
    return world


def test_the_larger_share_gives_way_to_the_smaller() -> None:
    """After one of 2 has left, `b` has 4 of 6, and `mine` 2."""
    (found,) = waiting(_shares(2, 2, 2).found(FAIR))
    assert found.startswith("I18: Job mine waits in a although it may take the place of Job b")


def test_a_share_does_not_give_way_to_a_larger_one() -> None:
    world = _shares(2, 2)
    world.gang("a0", "a", "2", state="admitted")
    assert world.found(FAIR) == []  # 4 against 4 before, 4 against 2 after


def test_weights_count() -> None:
    world = _shares(3, 3)
    world.objects["clusterqueues"][1]["spec"]["fairSharing"] = {"weight": "4"}
    assert world.found(FAIR) == []
    world.objects["clusterqueues"][1]["spec"]["fairSharing"] = {"weight": "1"}
    assert len(world.found(FAIR)) == 1


def test_where_shares_count_quota_that_is_free_is_given() -> None:
    assert waiting(_shares(2, 2).found(FAIR)) == ["I18: Job mine waits in a although its quota is free"]
