"""AppWrappers and queue-labelled jobs side by side: each dialect has its own quota, both compete for the same nodes."""

import msgspec

from shoal.engine import Engine
from shoal.engine.kueue import ClusterQueue, Flavor, FlavorQuota, Limits, LocalQueue, ResourceGroup
from shoal.engine.kueue import KueueSettings as QueueSettings
from shoal.engine.kueue.cycle import planner

from .build import admitted, engine, gang, held, node, pod, pods, why


def queues(cpu=100, **flavor):
    limits = {"cpu": Limits(cpu * 1000)}
    group = ResourceGroup(("cpu",), (FlavorQuota("main", limits),))
    return [
        Flavor(name="main", **flavor),
        ClusterQueue(name="cluster", groups=(group,), namespace_selector={}),
        LocalQueue(namespace="default", name="local", cluster_queue="cluster"),
    ]


def job(name, *pod_sets, **more):
    """A job with a queue label that Shoal itself starts."""
    return gang(name, *pod_sets, dialect="kueue", queue="local", key=f"Workload/default/{name}", **more)


def reserved(plan):
    return [entry.gang.rsplit("/", 1)[1] for entry in plan.reservations]


def test_a_queued_job_gets_quota_first_and_room_last():
    judge = engine(node("n", cpu=2), *queues(), job("a", pods(2)), job("b", pods(1), at=1))
    plan = judge.plan(1)
    assert reserved(plan) == ["a", "b"], "quota is plenty"
    assert admitted(plan) == ["a"], "room is not"
    assert held(plan)["b"] == "resources" and why(plan, "b") == "1 cpu needed, 0 free"
    (entry,) = plan.admits[0].assignment
    assert entry.flavors == {"cpu": "main"} and entry.nodes == {"n": 2}


def test_room_is_not_asked_before_other_checks_are_done():
    judge = engine(node("n", cpu=2), *queues(), job("a", pods(2), checks_done=False))
    plan = judge.plan(1)
    assert reserved(plan) == ["a"] and admitted(plan) == []
    known = judge.gang("Workload/default/a")
    judge.update(msgspec.structs.replace(known, checks_done=True))
    assert admitted(judge.plan(2)) == ["a"]


def test_a_bare_workload_needs_quota_only():
    judge = engine(*queues(), job("a", pods(2), supply="off"))
    plan = judge.plan(1)
    assert reserved(plan) == ["a"] and admitted(plan) == ["a"]


def test_both_dialects_want_the_same_node_and_priority_decides():
    facts = [node("n", cpu=1), *queues()]
    assert admitted(engine(*facts, gang("wrapper", priority=1), job("job")).plan(1)) == ["wrapper"]
    assert admitted(engine(*facts, gang("wrapper"), job("job", priority=1)).plan(1)) == ["job"]
    assert admitted(engine(*facts, gang("wrapper", at=2), job("job", at=1)).plan(3)) == ["job"]


def test_a_running_job_takes_room_from_appwrappers():
    judge = engine(node("n", cpu=2), *queues(), job("job", pods(2)))
    judge.plan(1)
    judge.update(gang("wrapper", at=1))
    assert admitted(judge.plan(2)) == []
    for name in ("p", "q"):
        judge.update(pod(name, on="n", of="job"))
    assert admitted(judge.plan(3)) == [], "counted once, but counted"


def test_pods_are_placed_on_their_flavors_nodes_only():
    plain, fast = node("plain", cpu=8), node("fast", cpu=2, labels={"kind": "fast"})
    judge = engine(plain, fast, *queues(labels={"kind": "fast"}), job("a", pods(2)), job("b", at=1))
    plan = judge.plan(1)
    assert plan.admits[0].assignment[0].nodes == {"fast": 2}
    assert held(plan)["b"] == "resources"


def test_what_waits_for_quota_is_explained_by_its_queue():
    judge = engine(node("n"), *queues(cpu=1), job("a"), job("b", at=1))
    assert reserved(judge.plan(1)) == ["a"]
    assert "cpu" in judge.explain("Workload/default/b").message


def test_a_plan_over_quota_that_was_too_long_asks_for_another(monkeypatch):
    monkeypatch.setattr(planner, "MOST_CYCLES", 2)
    judge = Engine(queues=QueueSettings())
    for fact in (node("n", cpu=9), *queues(), *(job(f"j{number}", pods(1), at=number) for number in range(5))):
        judge.update(fact)
    found = []
    while (plan := judge.plan(1)).unfinished:
        found += reserved(plan)
    assert [*found, *reserved(plan)] == [f"j{number}" for number in range(5)]
