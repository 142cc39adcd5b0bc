"""Each fault that once left a gang waiting, or running as it must not: a small stored world beside an equal legal one.

The judge must cry about the first and stay silent about the second.
"""

from __future__ import annotations

from tests.checker.at_rest import Rules
from tests.checker.rest_build import EARLIER, NOW, World, condition, short, wrapper

# --- 1: a plan that reserves and evicts the same gang


def _two_queues(**gangs: str) -> World:
    world = World()
    world.node()
    world.queue("a", "2", cohortName="both", preemption={"reclaimWithinCohort": "Any"})
    world.queue("b", "0", cohortName="both")
    for name, state in gangs.items():
        world.gang(name, name[0], state=state, says=short())
    return world


def test_quota_that_no_stored_gang_holds_is_free() -> None:
    found = _two_queues(a1="admitted", a2="", b1="").found()
    assert [one for one in found if one.startswith("I18: Job a2 waits in a although its quota is free")]


def test_those_who_hold_all_quota_keep_others_waiting() -> None:
    assert _two_queues(a1="admitted", a2="admitted", b1="").found() == []


def test_lent_quota_is_reclaimed() -> None:
    found = _two_queues(a1="admitted", b1="admitted", a2="").found()
    assert [one for one in found if "although it may take the place of Job b1" in one]


def test_lent_quota_that_is_on_its_way_back_is_waited_for() -> None:
    world = _two_queues(a1="admitted", a2="", b1="leaving")
    world.pod("b1-0", world.job("b1"), "node", deletionTimestamp=EARLIER)
    assert world.found() == []


# --- 2: a preemptor overtaken by a higher priority


def _preemptor(**states: str) -> World:
    world = World()
    world.node()
    world.queue("q", "4", preemption={"withinClusterQueue": "LowerPriority"})
    for name, state in states.items():
        world.gang(name, "q", "4", state=state, priority=0)
    world.gang("x", "q", "4", says=f"{short(4)}. Pending the preemption of 1 workload(s)", priority=1)
    return world


def test_no_gang_waits_for_a_preemption_that_is_over() -> None:
    found = _preemptor().found()
    assert any(one.startswith("I18: Job x waits in q although its quota is free") for one in found)
    assert any(one.startswith("I52: Job x") and one.endswith("and no gang is leaving") for one in found)


def test_a_preemptor_waits_for_its_victim() -> None:
    world = _preemptor(a="leaving")
    world.pod("a-0", world.job("a"), "node", "4", deletionTimestamp=EARLIER)
    assert world.found() == []


def test_a_preemptor_asks_its_victim_to_leave() -> None:
    found = _preemptor(a="admitted").found()
    assert any("although it may take the place of Job a" in one for one in found)


# --- 3: a gang that has quota and waits for room


def _for_room(free: str) -> World:
    world = World()
    world.node(cpu=free)
    world.queue("q", "4", queueingStrategy="StrictFIFO")
    world.gang("first", "q", "2", state="reserved", says="2 cpu needed, 1 free")
    return world


def test_a_gang_with_quota_starts_once_there_is_room() -> None:
    assert any(one.startswith("I18: Job first has quota, checks and room") for one in _for_room("2").found())


def test_a_gang_with_quota_waits_for_room() -> None:
    assert _for_room("1").found() == []


def test_only_the_head_of_a_strict_queue_is_asked() -> None:
    world = World()
    world.node()
    world.queue("q", "4", queueingStrategy="StrictFIFO")
    world.gang("large", "q", "5", says="couldn't assign flavors", priority=1)
    world.gang("small", "q", "1", says="couldn't assign flavors")
    assert world.found() == []
    world.objects["clusterqueues"][0]["spec"]["queueingStrategy"] = "BestEffortFIFO"
    assert [one.split(" waits")[0] for one in world.found()] == ["I18: Job small"]


# --- 4: a queued job that runs without quota


def _unsuspended(quota: bool) -> World:
    world = World()
    world.node()
    world.queue("q", "1")
    world.gang("blocker", "q", "1", state="" if quota else "admitted")
    world.gang("mine", "q", "1", state="admitted" if quota else "", says=short())
    world.job("mine")["spec"]["suspend"] = False
    world.pod("mine-0", world.job("mine"), "node")
    return world


def test_what_has_no_quota_does_not_run() -> None:
    found = _unsuspended(quota=False).found()
    assert "I5: Job default/mine is not suspended and its Workload is not admitted" in found
    assert "I5: Job mine has no quota and 1 pods that may run" in found


def test_what_has_quota_runs() -> None:
    assert _unsuspended(quota=True).found() == []


def test_a_gang_on_its_way_out_may_still_have_pods() -> None:
    world = _unsuspended(quota=False)
    world.job("mine")["spec"]["suspend"] = True
    world.objects["pods"][0]["metadata"]["deletionTimestamp"] = EARLIER
    assert world.found() == []


# --- 5: two gangs each with a part


def _parts(one: int, other: int) -> World:
    world = World()
    world.node(cpu="4")
    world.queue("q", "8")
    for name, bound in (("one", one), ("other", other)):
        world.gang(name, "q", "1", pods=4, state="admitted")
        for index in range(4):
            world.pod(f"{name}-{index}", world.job(name), "node" if index < bound else "")
    return world


def test_two_gangs_do_not_keep_each_other_from_being_whole() -> None:
    assert _parts(3, 1).found() == ["I4: Job one and Job other each run in part and keep each other from being whole"]


def test_a_whole_gang_may_keep_another_from_coming_back() -> None:
    assert _parts(4, 0).found() == []


def test_parts_may_stay_while_nodes_may_come_back() -> None:
    assert _parts(3, 1).found(Rules(now=NOW, recovery_seconds=3 * 3600)) == []


def _ray_cluster(bound: int, ready: int) -> World:
    world = World()
    world.node()
    cluster = world.put("rayclusters", "ray", kind="RayCluster", spec={})
    cluster["status"] = {"state": "ready", "readyWorkerReplicas": ready}
    world.pod("stranger", None, "node")
    for index in range(4):
        role = {"ray.io/node-type": "head" if not index else "worker"}
        pod = world.pod(f"ray-{index}", cluster, "node" if index < bound else "", labels=role)
        pod["status"]["conditions"] = [condition("Ready", index < bound)]
    return world


def test_a_cluster_without_a_pod_on_a_node_is_not_ready() -> None:
    found = _ray_cluster(bound=0, ready=0).found()
    assert found == ["I52: RayCluster default/ray is called ready, and none of its 4 pods is on a node"]


def test_no_more_workers_are_said_to_be_ready_than_are() -> None:
    found = _ray_cluster(bound=2, ready=3).found()
    assert found == ["I52: RayCluster default/ray says 3 workers are ready, and 1 are"]


def test_a_cluster_with_all_its_pods_is_ready() -> None:
    assert _ray_cluster(bound=4, ready=3).found() == []


# --- 6: a deleted AppWrapper whose pods are still ending


def _deleted_wrapper(waits_for: str, free: str) -> World:
    world = World()
    world.node(cpu="4")
    gone = wrapper(world, "gone", "2", {"state": "Running", "canrun": True, "queuejobstate": "Dispatched"})
    gone["metadata"]["deletionTimestamp"] = EARLIER
    gone["status"]["admission"] = '{"epoch":1,"sets":{"a":[1,{"cpu":2000},{"node":1}]}}'
    world.pod("gone-0", gone, "node", "2", deletionTimestamp=EARLIER)
    told = f"{waits_for} cpu needed, {free} free; position 1; held by AppWrapper/default/gone"
    wrapper(world, "waits", waits_for, {"state": "Pending", "queuejobstate": "Backoff", "message": told})
    return world


def test_pods_that_are_ending_are_counted_once() -> None:
    fits, told = _deleted_wrapper("1", "0").found()
    assert fits.startswith("I18: AppWrapper default/waits waits although it fits")
    assert told.endswith("and 2000 (in base units) of cpu is free")


def test_pods_that_are_ending_are_counted() -> None:
    assert _deleted_wrapper("3", "2").found() == []


def _missing(bound: int) -> World:
    world = _parts(bound, 0)
    gang = world.objects["workloads"][0]
    gang["status"]["conditions"].append(condition("shoal.dev/PodsMissing", True, "1 of 4 pods has no node"))
    world.objects["pods"] = [pod for pod in world.objects["pods"] if pod["metadata"]["name"].startswith("one")]
    return world


def test_pods_are_said_to_be_missing_only_while_they_are() -> None:
    told = "I52: Job one is told '1 of 4 pods has no node', and all its 4 pods are on nodes"
    assert _missing(4).found() == [told]
    assert _missing(3).found() == []


def _says_it_runs(pods: int) -> World:
    world = World()
    world.node()
    gang = wrapper(world, "mine", "1", {"state": "Running", "canrun": True, "running": pods})
    gang["status"]["admission"] = '{"epoch":1,"sets":{"a":[1,{"cpu":1000},{"node":1}]}}'
    world.pod("mine-0", gang, "node")
    return world


def test_no_more_pods_are_said_to_run_than_do() -> None:
    assert _says_it_runs(2).found() == ["I52: AppWrapper default/mine says that 2 pods run, and 1 do"]
    assert _says_it_runs(1).found() == []


def test_a_ray_cluster_with_a_living_head_keeps_what_it_has() -> None:
    world = _parts(3, 1)
    assert world.found() != []
    for pod in world.objects["pods"]:
        pod["metadata"]["labels"] = {"ray.io/node-type": "head"}
    assert world.found() == []
    world.objects["clusterqueues"][0]["metadata"]["annotations"] = {"shoal.dev/take-back-living-heads": "true"}
    assert world.found() != []
