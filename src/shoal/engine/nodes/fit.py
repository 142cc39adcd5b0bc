"""Where a gang's pods can go.

Called by the planner just before a gang is started, by `explain` to say why not, and by the local pod scheduler to bind
pods by the same rules. Pure: takes the free room as it is told and leaves it as it was. It never looks at queues or
quota; those said yes already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import msgspec
import numpy as np

from shoal.engine.model import Amounts, Gang, PodSet, PodSetAssignment, Shortfall
from shoal.engine.nodes.affinity import Company, Guests, company_of, holds_in_any_order
from shoal.engine.nodes.labels import Mask
from shoal.engine.nodes.named import TOO_MUCH, place_on_hosts
from shoal.engine.nodes.room import Ints, Room
from shoal.engine.nodes.shape import Shape, shape_of
from shoal.engine.nodes.shortfall import shortfalls, unschedulable

_WASTE_ORDERS = 3
_ORDERS = 6  # how many orders of pod sets are tried before a gang is called unfitting


class Placement(msgspec.Struct, frozen=True):
    """For every pod set, in order: node name to number of pods there."""

    pod_sets: tuple[dict[str, int], ...]

    def assignment(self, gang: Gang) -> tuple[PodSetAssignment, ...]:
        """What to store: the nodes, added to what quota assigned before (flavors, usage), if anything."""
        given = {entry.name: entry for entry in gang.assignment}
        return tuple(
            msgspec.structs.replace(given[pod_set.name], nodes=nodes)
            if pod_set.name in given
            else PodSetAssignment(
                name=pod_set.name,
                count=pod_set.count,
                usage={resource: value * pod_set.count for resource, value in pod_set.requests.items()},
                nodes=nodes,
            )
            for pod_set, nodes in zip(gang.pod_sets, self.pod_sets, strict=True)
        )


class Unplaced(msgspec.Struct, frozen=True):
    """A pod that no node takes now."""

    message: str


NO_COMPANY = Company("", {})
"""Stands for pods that look at no others, while no other pod looks at them either."""


class GangPart(msgspec.Struct, frozen=True):
    """One pod set made ready for placing."""

    index: int
    name: str
    count: int
    shape: Shape
    row: int
    company: Company
    alone: bool
    """True when other pods do not matter to it: such pods are placed many at a time."""
    requests: tuple[tuple[int, int], ...]
    """Resource row and amount."""


def place(gang: Gang, room: Room, *, say_why: bool = True) -> Placement | tuple[Shortfall, ...]:
    """Pack the hardest pod set first; within one, the fullest node that still holds the pod.

    Fullest-first keeps whole nodes, and whole GPU nodes above all, free for the next large gang. All or nothing. If not
    `say_why`, a refusal is empty: the reasons cost more than the verdict.
    """
    named = place_on_hosts(gang, room)
    if named is not None:
        return Placement(named)
    parts = parts_of(gang, room)
    if not parts:
        return Placement(())
    for part in parts:
        if part.alone and room.totals[part.row] < part.count:
            return _reasons(parts, part, room) if say_why else ()
    field = Field(parts, room)
    stuck = field.too_small_for(parts)
    for order, by_waste in _ways(parts, room) if stuck is None else ():
        chosen, failed = _attempt(order, field.fresh(by_waste))
        if failed is None:
            return Placement(tuple(chosen[index] for index in range(len(parts))))
        stuck = failed
    if stuck is None:
        stuck = parts[0]
    return _reasons(parts, stuck, room) if say_why else ()


def _reasons(parts: list[GangPart], stuck: GangPart, room: Room) -> tuple[Shortfall, ...]:
    rows = [(part.row, part.name, part.count) for part in parts]
    return shortfalls(room, rows, stuck.index, looks_at_pods=not stuck.alone)


def place_pod(pod_set: PodSet, namespace: str, room: Room) -> str | Unplaced:
    """The node for one more pod of this set, or why there is none, in the kube-scheduler's words."""
    part = _part(0, pod_set, shape_of(pod_set, None), company_of(pod_set, namespace), room, alone=False)
    room.flush()
    open_nodes, why = Guests(room.around).open_to(part.company)
    field = Field([part], room)
    able = np.flatnonzero(open_nodes[field.nodes])
    if not len(able):
        return Unplaced(unschedulable(room, part.row, ~open_nodes, why))
    return field.name(int(able[np.argmin(_preference(part, able, field))]))


def parts_of(gang: Gang, room: Room) -> list[GangPart]:
    """Raises BadInput when an affinity stanza cannot be read; the engine has asked for that beforehand."""
    looked_at = bool(room.around.closers) or any(
        kind != "nodeAffinity" for pod_set in gang.pod_sets for kind in pod_set.affinity
    )
    if not looked_at:  # no pod looks at another: the common case
        parts = [
            _part(index, pod_set, shape_of(pod_set, gang.node_selector), NO_COMPANY, room, alone=True)
            for index, pod_set in enumerate(gang.pod_sets)
        ]
        room.flush()
        return parts
    companies = [company_of(pod_set, gang.namespace) for pod_set in gang.pod_sets]
    avoided = {term for company in companies for term in company.keeps_away}
    parts = []
    for index, (pod_set, company) in enumerate(zip(gang.pod_sets, companies, strict=True)):
        alone = not room.around.concerns(company) and not any(
            room.around.matches(term, company.namespace, company.labels) for term in avoided
        )
        parts.append(_part(index, pod_set, shape_of(pod_set, gang.node_selector), company, room, alone))
    room.flush()
    return parts


def _part(index: int, pod_set: PodSet, shape: Shape, company: Company, room: Room, alone: bool) -> GangPart:
    row = room.row(shape)
    requests = tuple((room.resources[resource], amount) for resource, amount in shape.requests)
    return GangPart(index, pod_set.name, max(0, pod_set.count), shape, row, company, alone, requests)


def _ways(parts: list[GangPart], room: Room) -> Iterator[tuple[list[GangPart], bool]]:
    """Ways of packing, the best first: orders of pod sets, and lastly by least waste instead of fullest first."""
    orders = []
    for order in _orders(parts, room):
        orders.append(order)
        yield order, False
    if len(parts) > 1 or not parts[0].alone:
        yield from ((order, True) for order in orders[:_WASTE_ORDERS])


def _orders(parts: list[GangPart], room: Room) -> Iterator[list[GangPart]]:
    """Hardest first; if that fails, other orders. With one pod set the first answer is exact."""
    if len(parts) <= 1:
        yield parts
        return
    by_hardness = sorted(parts, key=lambda part: (_hardness(part, room), part.index))
    yield by_hardness
    seen = {tuple(part.index for part in by_hardness)}
    by_slack = sorted(parts, key=lambda part: (int(room.totals[part.row]) // max(1, part.count), part.index))
    for order in [by_slack, *(list(order) for order in permutations(by_hardness, len(parts)) if len(parts) <= 4)]:
        indices = tuple(part.index for part in order)
        if indices not in seen:
            seen.add(indices)
            yield order
        if len(seen) >= _ORDERS:
            return


def _hardness(part: GangPart, room: Room) -> tuple[int, int, float]:
    """Small sorts first: pods that need accelerators, then pods with terms, then pods that few fit of on a node."""
    accelerated = any(row in room.accelerators for row, _ in part.requests)
    holding = room.capacity[part.row]
    nodes = int(np.count_nonzero(holding))
    per_node = float(room.totals[part.row]) / nodes if nodes else 0.0
    return (0 if accelerated else 1, 1 if part.alone else 0, per_node)


class Field:
    """The nodes that matter to one gang, in order of name, and what is free on each while its pods are being placed."""

    def __init__(self, parts: Sequence[GangPart], room: Room) -> None:
        useful = room.capacity[parts[0].row] > 0
        for part in parts[1:]:
            useful |= room.capacity[part.row] > 0
        nodes = useful.nonzero()[0]
        ranks = room.name_rank[nodes]
        self.room = room
        self.nodes: Ints = nodes if (ranks[1:] > ranks[:-1]).all() else nodes[np.argsort(ranks)]
        self.free: Ints = room.free[: len(room.resources), self.nodes]
        self.by_waste = False
        self.imagined: Mask | None = np.isin(self.nodes, list(room.imagined)) if room.imagined else None
        self._untouched = self.free

    def fresh(self, by_waste: bool) -> Field:
        """The same nodes with nothing placed on them yet."""
        self.free = self._untouched.copy()
        self.by_waste = by_waste
        return self

    def too_small_for(self, parts: Sequence[GangPart]) -> GangPart | None:
        """A pod set that asks for something of which all its nodes together have too little for the gang, if any."""
        needed: dict[int, int] = {}
        # As a float, with room for its rounding: never wrongly too small.
        there = (np.maximum(self.free, 0).sum(axis=1, dtype=np.float64) * (1 + 1e-9)).tolist()
        for part in parts:
            for row, amount in part.requests:
                needed[row] = needed.get(row, 0) + amount * part.count
                if there[row] < needed[row]:
                    return part
        return None

    def holding(self, part: GangPart) -> Ints:
        """How many pods of this set each node would take now."""
        fits: Ints = self.room.capacity[part.row, self.nodes].astype(np.int64)
        for row, amount in part.requests:
            np.minimum(fits, self.free[row] if amount == 1 else self.free[row] // min(amount, TOO_MUCH), out=fits)
        np.maximum(fits, 0, out=fits)
        return fits

    def take(self, part: GangPart, position: int, count: int) -> None:
        for row, amount in part.requests:
            self.free[row, position] -= amount * count

    def name(self, position: int) -> str:
        return self.room.slots[int(self.nodes[position])].name


def _attempt(order: list[GangPart], field: Field) -> tuple[dict[int, dict[str, int]], GangPart | None]:
    """Place pod sets in this order. Returns what was chosen, and the pod set that found no place, if any."""
    guests = Guests(field.room.around)
    chosen: dict[int, dict[str, int]] = {}
    with_ports: set[str] = set()
    for part in order:
        holding = field.holding(part)
        if part.shape.host_ports and with_ports:  # two pod sets with ports never share a node: simple, never too bold
            holding[[field.name(position) in with_ports for position in range(len(holding))]] = 0
        pack = _pack(part, holding, field) if part.alone else _pack_singly(part, holding, field, guests)
        if pack is None:
            return chosen, part
        chosen[part.index] = {field.name(position): count for position, count in pack}
        if part.shape.host_ports:
            with_ports |= chosen[part.index].keys()
        if part.alone and part is not order[-1]:
            for position, count in pack:
                field.take(part, position, count)
                guests.add(field.name(position), part.company)
    return chosen, _parted(order, chosen, field.room)


def _parted(order: list[GangPart], chosen: dict[int, dict[str, int]], room: Room) -> GangPart | None:
    """A pod set that would miss its company if the scheduler binds the gang in another order than this one."""
    wanting = next((part for part in order if part.company.wants), None)
    if wanting is None:
        return None
    placed = ((node, part.company) for part in order for node in chosen[part.index])
    return None if holds_in_any_order(room.around, placed) else wanting


def _pack(part: GangPart, holding: Ints, field: Field) -> list[tuple[int, int]] | None:
    """All pods of a set at once: nodes in order of preference, each filled before the next."""
    if not part.count:
        return []
    able = holding.nonzero()[0]
    keys = _preference(part, able, field)
    if len(able) and field.imagined is None:
        best = int(able[keys.argmin()])
        if holding[best] >= part.count:  # one node takes them all: no need to rank the others
            return [(best, part.count)]
    ranked = able[np.argsort(keys, kind="stable")]
    if field.imagined is not None:
        ranked = ranked[np.argsort(field.imagined[ranked], kind="stable")]
    filled = np.cumsum(holding[ranked])
    if not len(filled) or filled[-1] < part.count:
        return None
    last = int(np.searchsorted(filled, part.count))
    before = int(filled[last - 1]) if last else 0
    pack = [(int(position), int(holding[position])) for position in ranked[:last]]
    pack.append((int(ranked[last]), part.count - before))
    return pack


def _pack_singly(part: GangPart, holding: Ints, field: Field, guests: Guests) -> list[tuple[int, int]] | None:
    """Pods that look at other pods: each placement may open or close nodes for the next."""
    chosen: dict[int, int] = {}
    if part.company.wants and guests.is_first_of_its_kind(part.company):
        holding = _one_domain(part, holding, field)
    for _ in range(part.count):
        open_nodes, _ = guests.open_to(part.company)
        able = np.flatnonzero((holding > 0) & open_nodes[field.nodes])
        if not len(able):
            return None
        if field.imagined is not None and not field.imagined[able].all():
            able = able[~field.imagined[able]]
        best = int(able[np.argmin(_preference(part, able, field))])
        chosen[best] = chosen.get(best, 0) + 1
        field.take(part, best, 1)
        holding[best] -= 1
        guests.add(field.name(best), part.company)
    return list(chosen.items())


def _one_domain(part: GangPart, holding: Ints, field: Field) -> Ints:
    """Pods that want to be together start in the domain that just holds them all, not in the first that comes."""
    domains = field.room.column(part.company.wants[0].topology_key)[0][field.nodes]
    able = domains >= 0
    if not able.any():
        return holding
    totals = np.bincount(domains[able], weights=holding[able])
    enough = np.flatnonzero(totals >= part.count)
    best = enough[np.argmin(totals[enough])] if len(enough) else np.argmax(totals)
    return np.where(domains == best, holding, 0)


def _preference(part: GangPart, able: Ints, field: Field) -> Ints:
    """Small is filled first: nodes without spare accelerators, then the fullest. `able` comes in order of name."""
    room, free = field.room, field.free
    main = _main_resource(part, room)
    keys: Ints = np.maximum(free[main, able], 0)
    if field.by_waste:
        keys %= min(max(1, dict(part.requests)[main]), TOO_MUCH)  # what no further pod of this set could use
    np.minimum(keys, 2**40 - 1, out=keys)
    spare: Ints | None = None
    for row in room.accelerators:
        left = np.minimum(free[row, able], 2**20)
        np.maximum(left, 0, out=left)
        if all(row != asked for asked, _ in part.requests):
            # A pod that needs accelerators goes where few are left; one that needs none, where none are left.
            left += (left > 0) * 2**21
        spare = left if spare is None else spare + left
    if spare is not None:
        keys += np.minimum(spare, 2**22) * 2**40
    return keys


def _main_resource(part: GangPart, room: Room) -> int:
    """What a node of this cluster runs out of first, for such a pod: the row by which fullness is measured."""
    named = [(row, amount) for row, amount in part.requests if row != room.resources.get("pods")]
    if not named:
        return room.resources["pods"]
    cpu = room.resources.get("cpu")
    return next((row for row, _ in named if row == cpu), named[0][0])


def demand_of(pod_sets: Sequence[PodSet]) -> Amounts:
    """What a whole gang asks for, summed; `pods` included."""
    demand: Amounts = {}
    for pod_set in pod_sets:
        if pod_set.count <= 0:
            continue
        for resource, amount in pod_set.requests.items():
            if resource != "pods" and amount:
                demand[resource] = demand.get(resource, 0) + amount * pod_set.count
        demand["pods"] = demand.get("pods", 0) + pod_set.count
    return demand
