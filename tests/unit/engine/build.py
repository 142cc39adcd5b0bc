"""Short ways to write facts, so that tests show only what matters to them."""

from __future__ import annotations

from typing import Any

from shoal.api.quantity import amounts
from shoal.engine import Engine, EngineSettings
from shoal.engine.model import Gang, NodeFact, Plan, PodFact, PodSet, QuotaNode, QuotaSubtree, Taint

SECOND = 1_000_000


def node(name: str, cpu: Any = 8, memory: Any = "32Gi", gpu: int = 0, pods: int = 110, **more: Any) -> NodeFact:
    offered = {"cpu": str(cpu), "memory": str(memory), "pods": str(pods)}
    if gpu:
        offered["nvidia.com/gpu"] = str(gpu)
    labels = {"kubernetes.io/hostname": name, **more.pop("labels", {})}
    taints = tuple(Taint(*taint) for taint in more.pop("taints", ()))
    return NodeFact(name=name, allocatable=amounts(offered), labels=labels, taints=taints, **more)


def requests(cpu: Any = 0, memory: Any = 0, gpu: int = 0) -> dict[str, int]:
    asked = {"cpu": str(cpu), "memory": str(memory), "nvidia.com/gpu": str(gpu)}
    return {name: value for name, value in amounts(asked).items() if value}


def pods(count: int, cpu: Any = 1, memory: Any = 0, gpu: int = 0, name: str = "main", **more: Any) -> PodSet:
    return PodSet(name=name, count=count, requests=requests(cpu, memory, gpu), **more)


def gang(name: str, *pod_sets: PodSet, at: int = 0, **more: Any) -> Gang:
    """A waiting AppWrapper; `at` is its second of arrival. Without pod sets it wants one pod with one cpu."""
    namespace = more.pop("namespace", "default")
    return Gang(
        key=more.pop("key", f"AppWrapper/{namespace}/{name}"),
        uid=more.pop("uid", f"uid-{name}"),
        namespace=namespace,
        name=name,
        pod_sets=pod_sets or (pods(1),),
        created_at=at * SECOND,
        queued_at=at * SECOND,
        **more,
    )


def pod(uid: str, on: str = "", of: str = "", cpu: Any = 1, memory: Any = 0, gpu: int = 0, **more: Any) -> PodFact:
    """A pod; `of` names the gang it belongs to."""
    return PodFact(
        uid=uid,
        name=uid,
        namespace="default",
        node=on,
        gang=f"uid-{of}" if of else "",
        requests=requests(cpu, memory, gpu),
        phase=more.pop("phase", "Running" if on else "Pending"),
        **more,
    )


def subtree(tree: str, parent: str, *nodes: QuotaNode, key: str = "") -> QuotaSubtree:
    return QuotaSubtree(key=key or f"default/{tree}-below-{parent}", tree=tree, parent=parent, nodes=nodes)


def quota(name: str, cpu: Any = None, memory: Any = None, gpu: int | None = None, hard: bool = False) -> QuotaNode:
    given = {"cpu": cpu, "memory": memory, "nvidia.com/gpu": gpu}
    return QuotaNode(
        name=name, quota=amounts({key: str(value) for key, value in given.items() if value is not None}), hard=hard
    )


def engine(*facts: Any, **settings: Any) -> Engine:
    made = Engine(EngineSettings(**settings))
    for fact in facts:
        made.update(fact)
    return made


def admitted(plan: Plan) -> list[str]:
    """Names of the gangs a plan starts, in order."""
    return [admit.gang.rsplit("/", 1)[1] for admit in plan.admits]


def preempted(plan: Plan) -> list[str]:
    return [preempt.gang.rsplit("/", 1)[1] for preempt in plan.preempts]


def held(plan: Plan) -> dict[str, str]:
    """Name to reason of the gangs a plan holds."""
    return {hold.gang.rsplit("/", 1)[1]: hold.reason for hold in plan.holds}


def why(plan: Plan, name: str) -> str:
    return next(hold.explanation.message for hold in plan.holds if hold.gang.endswith("/" + name))
