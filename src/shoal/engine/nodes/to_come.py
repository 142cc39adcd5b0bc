"""Which pods of an admitted gang are still to come and where they were planned, and which it has grown by.

Used by the ledger whenever a gang or one of its pods changed. Pure: the gang's facts and its pods in, counts out. It
knows nothing of what is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from shoal.engine.model import Amounts, Gang, PodFact, PodSet, PodSetAssignment
from shoal.engine.nodes.fit import Placement


class Charge(msgspec.Struct, frozen=True):
    """Pods that are planned on a node and not bound yet."""

    pod_set: PodSet
    namespace: str
    node: str
    count: int


Charges = dict[tuple[int, str], Charge]
"""By pod set index and node."""


def still_to_come(gang: Gang, pods: Sequence[PodFact]) -> tuple[Charges, dict[int, int]]:
    """Planned pods that are not bound yet, and the number of those without a planned node, per pod set.

    A pod bound elsewhere than planned fulfils one of the plans of its set; which one does not matter, so the last
    by name is dropped.
    """
    if not pods and not gang.gone:
        return _all_to_come(gang)
    bound: Counter[tuple[int, str]] = Counter()
    finished = Counter({index: gang.gone.get(one.name, 0) for index, one in enumerate(gang.pod_sets)})
    for pod in pods:
        index = pod_set_index(gang.pod_sets, pod)
        if index is not None and pod.phase == "Succeeded":
            finished[index] += 1
        elif index is not None and pod.node and fulfils(gang, pod):
            bound[index, pod.node] += 1
    assigned = {entry.name: entry for entry in gang.assignment}
    _share_between_twins(gang.pod_sets, assigned, bound, finished)
    planned: Charges = {}
    unplaced: dict[int, int] = {}
    for index, pod_set in enumerate(gang.pod_sets):
        entry = assigned.get(pod_set.name)
        wanted = max(0, pod_set.count if entry is None else entry.count)
        seats = Counter(entry.nodes if entry is not None else {})
        here = {node: count for (which, node), count in bound.items() if which == index}
        elsewhere = finished[index]
        for node, count in here.items():
            elsewhere += max(0, count - seats[node])
            seats[node] = max(0, seats[node] - count)
        for node in sorted(seats, reverse=True):
            dropped = min(seats[node], elsewhere)
            seats[node] -= dropped
            elsewhere -= dropped
        for node, count in seats.items():
            if count > 0:
                planned[index, node] = Charge(pod_set, gang.namespace, node, count)
        missing = wanted - finished[index] - sum(here.values()) - sum(seats.values())
        if missing > 0:
            unplaced[index] = missing
    return planned, unplaced


def fulfils(gang: Gang, pod: PodFact) -> bool:
    """A bound pod on its way out fulfils no plan of a gang that goes on: what replaces it needs room of its own. In a
    gang that is being stopped nothing replaces it, and until it is gone it takes what was planned for it."""
    return not pod.is_terminal and (not pod.deleting or gang.state == "stopping")


def _all_to_come(gang: Gang) -> tuple[Charges, dict[int, int]]:
    """The same for a gang none of whose pods exists."""
    assigned = {entry.name: entry for entry in gang.assignment}
    planned: Charges = {}
    unplaced: dict[int, int] = {}
    for index, pod_set in enumerate(gang.pod_sets):
        entry = assigned.get(pod_set.name)
        missing = max(0, pod_set.count if entry is None else entry.count)
        for node, count in entry.nodes.items() if entry is not None else ():
            if count > 0:
                planned[index, node] = Charge(pod_set, gang.namespace, node, count)
                missing -= count
        if missing > 0:
            unplaced[index] = missing
    return planned, unplaced


def pod_set_index(pod_sets: Sequence[PodSet], pod: PodFact) -> int | None:
    """Which pod set a pod belongs to: by name, else by equal requests, else the nearest. Depends on nothing else."""
    if not pod_sets:
        return None
    for index, pod_set in enumerate(pod_sets):
        if pod_set.name == pod.pod_set:
            return index

    def distance(index: int) -> tuple[int, int]:
        wanted = pod_sets[index].requests
        names = wanted.keys() | pod.requests.keys()
        different = sum(wanted.get(name, 0) != pod.requests.get(name, 0) for name in names)
        return different, sum(abs(wanted.get(name, 0) - pod.requests.get(name, 0)) for name in names)

    return min(range(len(pod_sets)), key=distance)


def _share_between_twins(
    pod_sets: Sequence[PodSet],
    assigned: dict[str, PodSetAssignment],
    bound: Counter[tuple[int, str]],
    finished: Counter[int],
) -> None:
    """Pods that do not name their set all count for the first that asks for the same; move the rest to its twins.

    A pod that sits where it was planned counts for that plan; any other pod for whichever twin still lacks one.
    """
    twins: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for index, pod_set in enumerate(pod_sets):
        twins.setdefault(tuple(sorted(pod_set.requests.items())), []).append(index)
    for group in twins.values():
        pool = Counter({node: count for (which, node), count in bound.items() if which == group[0]})
        ended = finished[group[0]]
        if len(group) == 1 or not (pool or ended):
            continue
        plans = {index: assigned.get(pod_sets[index].name) for index in group}
        lacks = {}
        for index, plan in plans.items():
            wanted = pod_sets[index].count if plan is None else plan.count
            others = sum(count for (which, _), count in bound.items() if which == index) + finished[index]
            lacks[index] = wanted if index == group[0] else wanted - others
        for node in pool:
            del bound[group[0], node]
        finished[group[0]] = 0
        for where_planned in (True, False):
            for index, plan in plans.items():
                nodes = plan.nodes if where_planned and plan is not None else {} if where_planned else pool
                for node in sorted(nodes):
                    moved = min(pool[node], lacks[index], nodes[node])
                    if moved > 0:
                        bound[index, node] += moved
                        pool[node] -= moved
                        lacks[index] -= moved
        for index in group:
            moved = max(0, min(ended, lacks[index]))
            finished[index] += moved
            ended -= moved
        finished[group[0]] += ended
        for node, count in pool.items():
            bound[group[0], node] += count


def beyond(gang: Gang, pods: Sequence[PodFact]) -> Amounts:
    """What those pods ask for that are more than the gang was admitted with: it has grown since.

    Counted per kind of pod: what was declared for one counts, whatever it turns out to ask for. Who is on the way out,
    or still held back by a gate, is not one more.
    """
    kinds: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for index, pod_set in enumerate(gang.pod_sets):
        kinds.setdefault(tuple(sorted(pod_set.requests.items())), []).append(index)
    there: dict[int, list[PodFact]] = {}
    for pod in pods:
        counts = not (pod.is_terminal or pod.deleting or pod.gated)
        which = pod_set_index(gang.pod_sets, pod) if counts else None
        if which is not None:
            there.setdefault(which, []).append(pod)
    assigned = {entry.name: entry.count for entry in gang.assignment}
    total: Amounts = {}
    for twins in kinds.values():
        found = [pod for index in twins for pod in there.get(index, ())]
        more = len(found) - sum(assigned.get(gang.pod_sets[one].name, gang.pod_sets[one].count) for one in twins)
        if more <= 0:
            continue
        usual = gang.pod_sets[twins[0]].requests
        found.sort(key=lambda pod: (pod.requests == usual, pod.uid))  # pods of another kind came on top
        for pod in found[:more]:
            for resource, amount in [*pod.requests.items(), ("pods", 1)]:
                total[resource] = total.get(resource, 0) + amount
    return total


def charges_of(gang: Gang, placement: Placement) -> Iterable[tuple[tuple[int, str], Charge]]:
    for index, (pod_set, nodes) in enumerate(zip(gang.pod_sets, placement.pod_sets, strict=True)):
        for node, count in nodes.items():
            yield (index, node), Charge(pod_set, gang.namespace, node, count)
