"""Facts that cannot be right are named, not tripped over.

Called by the engine for every fact before it is used. Returns the reason in words, or nothing; never raises.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.engine.model import Gang, NodeFact, NodePool, PodFact, PodSet
from shoal.engine.nodes.affinity import company_of
from shoal.engine.nodes.shape import shape_of
from shoal.errors import BadInput

LARGEST_COUNT = 10_000_000  # pods in one set; more is a typing error and would only cost time


def gang_problem(gang: Gang) -> str:
    if gang.problem:
        return gang.problem
    seen: set[str] = set()
    for pod_set in gang.pod_sets:
        if pod_set.name in seen:
            return f"{_where(gang, pod_set)} appears twice; give each pod set a name of its own"
        seen.add(pod_set.name)
        if not 0 <= pod_set.count <= LARGEST_COUNT:
            return f"{_where(gang, pod_set)} has a count of {pod_set.count}; use 0 to {LARGEST_COUNT}"
        if pod_set.min_count is not None and not 0 <= pod_set.min_count <= pod_set.count:
            least, most = pod_set.min_count, pod_set.count
            return f"{_where(gang, pod_set)} has a minimum of {least}; use 0 to its count of {most}"
        bad = _negative(pod_set.requests)
        if bad:
            return f"{_where(gang, pod_set)} requests {bad}; use an amount of 0 or more"
        try:
            shape_of(pod_set, gang.node_selector)
            if pod_set.affinity:
                company_of(pod_set, gang.namespace)
        except BadInput as error:
            return f"{_where(gang, pod_set)}: {error}"
    return ""


def _where(gang: Gang, pod_set: PodSet) -> str:
    return f"{gang.key}: pod set {pod_set.name!r}"


def node_problem(node: NodeFact) -> str:
    bad = _negative(node.allocatable)
    return f"Node/{node.name} offers {bad}; it counts as 0" if bad else ""


def pool_problem(pool: NodePool) -> str:
    bad = _negative(pool.allocatable) or _negative({"nodes": pool.obtainable})
    return f"NodePool/{pool.name} offers {bad}; it adds nothing" if bad else ""


def pod_problem(pod: PodFact) -> str:
    bad = _negative(pod.requests)
    return f"Pod/{pod.namespace}/{pod.name} requests {bad}; it counts as 0" if bad else ""


def _negative(amounts: Mapping[str, int]) -> str:
    for resource, amount in amounts.items():
        if amount < 0:
            return f"{amount} {resource}"
    return ""
