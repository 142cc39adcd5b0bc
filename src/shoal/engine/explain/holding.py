"""Which gangs hold what a gang lacks: those in the same quota, gangs and pods on the nodes that this gang could use.

Called by `explain`, on demand. A gang on nodes that a selector or taint keeps this one off is not in its way, however
much it holds. Reads the ledger, never changes it.
"""

from __future__ import annotations

import numpy as np

from shoal.engine.line.state import LineState
from shoal.engine.model import Gang, PodFact, Shortfall
from shoal.engine.nodes.fit import demand_of
from shoal.engine.nodes.shape import shape_of
from shoal.errors import BadInput

Nodes = frozenset[str] | None
"""Names of nodes; None for all of them, which is the common case and the cheap one."""


def holders(state: LineState, gang: Gang, shortfalls: tuple[Shortfall, ...]) -> tuple[str, ...]:
    """Keys of the gangs that hold what is short, the largest first."""
    short = _resources(shortfalls)
    places = [shortfall.place for shortfall in shortfalls if shortfall.kind == "quota" and shortfall.resource]
    inside = None if not places else {uid for place in places for uid in state.forest.members(place)}
    nodes = usable_nodes(state, gang) if short and inside is None and gang.supply == "fit" else None
    held: list[tuple[int, str]] = []
    for other in state.ledger.holders.values():
        if inside is not None and other.uid not in inside:
            continue
        amount = _held(state, other, short, nodes)
        if amount:
            held.append((-amount, other.key))
    return tuple(key for _, key in sorted(held))


def strangers(state: LineState, gang: Gang, shortfalls: tuple[Shortfall, ...]) -> tuple[str, ...]:
    """Pods of no gang that take what is short on nodes that this gang could use, as `Pod/namespace/name`; the largest
    first."""
    short = _resources(tuple(one for one in shortfalls if one.kind != "quota"))
    if not short:
        return ()
    nodes, ledger = usable_nodes(state, gang), state.ledger
    held = [(_of_pod(pod, short), pod) for pod in ledger.pods.values() if pod.gang not in ledger.holders]
    found = [
        (-amount, f"Pod/{pod.namespace}/{pod.name}")
        for amount, pod in held
        if amount and pod.node and not pod.is_terminal and (nodes is None or pod.node in nodes)
    ]
    return tuple(key for _, key in sorted(found))


def usable_nodes(state: LineState, gang: Gang) -> Nodes:
    """The nodes that at least one of its pod sets may use."""
    room = state.ledger.room
    try:
        rows = [room.row(shape_of(pod_set, gang.node_selector)) for pod_set in gang.pod_sets if pod_set.count > 0]
    except BadInput:
        return None
    room.flush()
    usable = np.zeros_like(room.alive)
    for row in rows:
        usable |= room.eligible[row]
    if not bool(np.any(room.alive & ~usable)):
        return None
    return frozenset(slot.name for slot in room.by_name.values() if slot.fact is not None and usable[slot.index])


def _held(state: LineState, other: Gang, short: set[str], nodes: Nodes) -> int:
    if nodes is None:
        demand = demand_of(other.pod_sets)
        return sum(demand.get(resource, 0) for resource in short)
    held = state.ledger.held_on(other.uid)
    return sum(held[node].get(resource, 0) for node in held.keys() & nodes for resource in short)


def _of_pod(pod: PodFact, short: set[str]) -> int:
    return sum(1 if resource == "pods" else pod.requests.get(resource, 0) for resource in short)


def _resources(shortfalls: tuple[Shortfall, ...]) -> set[str]:
    return {shortfall.resource for shortfall in shortfalls if shortfall.resource}
