"""Which gang holds what: pods that exist, and room kept for pods that are still to come. Each pod is counted once.

The engine tells it every fact about nodes, pods and gangs; it charges them to the Room. There is no call to release
anything: what a gang holds is worked out again from facts whenever one of them changes. The local pod scheduler uses it
too, with nodes and pods alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager

import msgspec

from shoal.engine.model import Amounts, Gang, Namespace, NodeFact, PodFact
from shoal.engine.nodes.affinity import Resident
from shoal.engine.nodes.claims import ByNode, Claim, by_node, shared
from shoal.engine.nodes.fit import Placement, demand_of, place
from shoal.engine.nodes.room import Room
from shoal.engine.nodes.selectors import PodTerm, parse_pod_terms
from shoal.engine.nodes.shape import is_eligible, shape_of
from shoal.engine.nodes.to_come import Charge, Charges, beyond, charges_of, still_to_come
from shoal.errors import BadInput


class Ledger:
    def __init__(self) -> None:
        self.room = Room()
        self.pods: dict[str, PodFact] = {}
        self.by_gang: dict[str, set[str]] = {}
        self.growing: set[str] = set()
        """UIDs of pods that wait behind our gate to come on top of what their gangs were admitted with."""
        self.growing_alone: set[str] = set()
        """Those of them that are not bids of elastic gangs."""
        self.grew: set[str] = set()
        """UIDs of pods that do not wait so any more, or may not, since that was last looked at."""
        self.holders: dict[str, Gang] = {}
        """Gangs that hold room, by UID."""
        self.reserved: dict[str, Amounts] = {}
        """Per gang: demand less what its pods already take."""
        self.total_reserved: Amounts = {}
        self.grown: dict[str, Amounts] = {}
        """Per admitted gang: what its pods ask for beyond what it was admitted with."""
        self._regrown: set[str] = set()
        self.given_back = 0
        """Grows whenever something may have become free: what did not fit by its sum is then looked at again."""
        self._charged: set[str] = set()
        self._planned: dict[str, Charges] = {}
        self._displaced: dict[str, Charges] = {}
        """Of each plan, what its nodes cannot take any more."""
        self._planned_on: dict[str, set[str]] = {}
        """Which gangs have plans on a node, displaced or not."""
        self._missing: dict[str, dict[int, int]] = {}
        """Pods that never had a planned node, per pod set; below: with those that lost it."""
        self._unplaced: dict[str, dict[int, int]] = {}
        self._ghosts: dict[str, Charges] = {}
        self._ghosts_seen: tuple[int, dict[str, dict[int, int]]] = (-1, {})
        self._ghosts_strained: set[str] = set()
        """Nodes that were strained when these were placed."""
        self._recounted = False
        """Has the number of pods without a planned node changed since then?"""
        self._unsettled: set[str] = set()
        self._claims: dict[str, Charges] = {}
        self._claimed: dict[str, Claim] = {}
        self._credits: dict[str, ByNode] = {}
        """Of each claim, what is held by gangs that leave for it, and so is counted already."""

    # Facts

    def set_node(self, fact: NodeFact) -> None:
        self.room.set_node(fact)
        self.given_back += 1

    def drop_node(self, name: str) -> None:
        self.room.drop_node(name)

    def set_namespace(self, fact: Namespace) -> None:
        self.room.namespaces[fact.name] = fact.labels
        self.room.around.relabelled()

    def set_pod(self, fact: PodFact) -> None:
        if self.pods.get(fact.uid) == fact:
            return
        self.drop_pod(fact.uid)
        self.pods[fact.uid] = fact
        if fact.gated and fact.grows_since:
            self.growing.add(fact.uid)
            if not fact.bids:
                self.growing_alone.add(fact.uid)
        if fact.gang:
            self.by_gang.setdefault(fact.gang, set()).add(fact.uid)
            self._unsettled.add(fact.gang)
        self._charge_pod(fact)

    def drop_pod(self, uid: str) -> None:
        fact = self.pods.pop(uid, None)
        if fact is None:
            return
        self._uncharge_pod(fact)
        if uid in self.growing:
            self.growing.discard(uid)
            self.growing_alone.discard(uid)
            self.grew.add(uid)
        if fact.gang:
            siblings = self.by_gang[fact.gang]
            siblings.discard(uid)
            if not siblings:
                del self.by_gang[fact.gang]
            self._unsettled.add(fact.gang)

    def pods_of(self, gang: str) -> list[PodFact]:
        return [self.pods[uid] for uid in sorted(self.by_gang.get(gang, ()))]

    def set_gang(self, gang: Gang) -> None:
        """Tell of any gang, whatever its state."""
        if gang.state not in ("admitted", "stopping"):
            self._drop_holder(gang.uid)
        elif self.holders.get(gang.uid) != gang:
            self.holders[gang.uid] = gang
            self._unsettled.add(gang.uid)

    def drop_gang(self, uid: str) -> None:
        self._drop_holder(uid)

    def _drop_holder(self, uid: str) -> None:
        if self.holders.pop(uid, None) is not None:
            self._unsettled.add(uid)

    def _charge_pod(self, fact: PodFact) -> None:
        if fact.is_terminal or not fact.node or fact.uid in self._charged:
            return
        self._charged.add(fact.uid)
        self.room.take(fact.node, fact.requests, 1, planned=False)
        self.room.take_ports(fact.node, fact.host_ports, 1)
        keeps_away = _keeps_away(fact.affinity, fact.namespace, fact.labels)
        self.room.around.settle(fact.uid, Resident(fact.node, fact.namespace, fact.labels, keeps_away))

    def _uncharge_pod(self, fact: PodFact) -> None:
        if fact.uid not in self._charged:
            return
        self._charged.discard(fact.uid)
        self.given_back += 1
        self.room.take(fact.node, fact.requests, -1, planned=False)
        self.room.take_ports(fact.node, fact.host_ports, -1)
        self.room.around.leave(fact.uid)

    # Room set aside for a gang that has not started

    def claim(self, gang: Gang, placement: Placement, *, partly: bool = False, leaving: Iterable[str] = ()) -> None:
        """Keep this room for a waiting gang: no other may plan with it. Replaces its earlier claim. `partly`: the
        rest of its pods goes on nodes that do not exist yet. `leaving`: what these gangs hold it will get."""
        pod_sets = gang.pod_sets
        if partly:
            pod_sets = tuple(
                msgspec.structs.replace(pod_set, count=sum(nodes.values()))
                for pod_set, nodes in zip(pod_sets, placement.pod_sets, strict=True)
            )
        self.unclaim(gang.uid)
        charges, leaving = dict(charges_of(gang, placement)), frozenset(leaving)
        self._replace(self._claims, gang.uid, charges, "claim")
        if gang.supply == "aggregate" and not partly:
            charges = self._claim_pieces(gang, charges, leaving)
        self._claimed[gang.uid] = Claim(charges, demand_of(pod_sets), leaving)
        self._count_once(gang.uid)
        self.room.flush()

    def _claim_pieces(self, gang: Gang, charges: Charges, leaving: Set[str]) -> Charges:
        """A gang that sums let start, and for which nodes have no place yet, claims its room in pieces. Without them
        gangs that are judged by nodes would take that room, and others be stopped for it in vain, again and again."""
        found = dict(charges)
        with self.without(leaving):
            for index, pod_set in enumerate(gang.pod_sets):
                placed = sum(one.count for (which, _), one in charges.items() if which == index)
                if placed < pod_set.count:
                    found.update(self._pieces(gang, index, pod_set.count - placed))
                    self._replace(self._claims, gang.uid, dict(found), "claim")
        return found

    def unclaim(self, uid: str) -> None:
        if self._claimed.pop(uid, None) is None:
            return
        self._set_credit(uid, {})
        self._replace(self._claims, uid, {}, "claim")
        self._reserve(_claim_key(uid), {})
        self.room.flush()

    @property
    def claimants(self) -> list[str]:
        return list(self._claimed)

    def _count_once(self, uid: str, gone: Set[str] = frozenset()) -> None:
        """Of a claim and what gangs that leave for it hold, less those `gone`, count the larger."""
        claim = self._claimed[uid]
        held, total = self._held_by(claim.leaving - gone)
        wanted = by_node((charge.node, charge.pod_set.requests, charge.count) for charge in claim.charges.values())
        self._set_credit(uid, {node: shared(amounts, held.get(node, {})) for node, amounts in wanted.items()})
        counted = shared(claim.demand, total)
        more = {resource: amount - counted.get(resource, 0) for resource, amount in claim.demand.items()}
        self._reserve(_claim_key(uid), {resource: amount for resource, amount in more.items() if amount > 0})

    def _set_credit(self, uid: str, credit: ByNode) -> None:
        for sign, amounts_by_node in ((-1, self._credits.pop(uid, {})), (1, credit)):
            for node, amounts in amounts_by_node.items():
                self.room.relieve(node, amounts, sign)
        if credit:
            self._credits[uid] = credit

    def _held_by(self, uids: Iterable[str]) -> tuple[ByNode, Amounts]:
        """What gangs hold on each node, in pods or in plans, and in all."""
        held: list[tuple[str, Amounts, int]] = []
        total: Amounts = {}
        for uid in uids:
            bound = [self.pods[pod] for pod in self.by_gang.get(uid, ()) if pod in self._charged]
            here = [(pod.node, pod.requests, 1) for pod in bound]
            for amounts in (*by_node(here).values(), self.reserved.get(uid, {})):
                for resource, amount in amounts.items():
                    total[resource] = total.get(resource, 0) + amount
            held += here
            for book in (self._planned, self._ghosts):
                held += [(one.node, one.pod_set.requests, one.count) for one in book.get(uid, {}).values()]
        return by_node(held), total

    def held_on(self, uid: str) -> ByNode:
        """What one gang holds on each node, in pods or in plans."""
        return self._held_by([uid])[0]

    def without_place(self) -> dict[str, int]:
        """Per admitted gang, how many of its pods to come no node can take now."""
        found = {}
        for uid, counts in self._unplaced.items():
            placed = sum(charge.count for (index, _), charge in self._ghosts.get(uid, {}).items() if index >= 0)
            if sum(counts.values()) > placed:
                found[uid] = sum(counts.values()) - placed
        return found

    def own_reservation(self, uid: str) -> Amounts:
        """What is kept for this gang itself, and so does not stand in its way."""
        total = dict(self.reserved.get(uid, {}))
        for resource, amount in self.reserved.get(_claim_key(uid), {}).items():
            total[resource] = total.get(resource, 0) + amount
        return total

    @contextmanager
    def without(self, uids: Iterable[str]) -> Iterator[None]:
        """The room as if these gangs were gone, pods and plans; put back exactly afterwards.

        Admitted pods that find no place come first into what is freed, as they will once it is.
        """
        helped = self.room.take_helped()
        given_back, gone = self.given_back, list(uids)
        pods = [self.pods[pod] for uid in gone for pod in self.by_gang.get(uid, ()) if pod in self._charged]
        plans = [
            (charge, (kind, uid, *place_key))
            for uid in gone
            for kind, book in (("planned", self._planned), ("ghost", self._ghosts), ("claim", self._claims))
            for place_key, charge in book.get(uid, {}).items()
        ]
        counting = [
            uid for uid, claim in self._claimed.items() if uid not in gone and not claim.leaving.isdisjoint(gone)
        ]
        credits = {uid: self._credits.get(uid, {}) for uid in (*gone, *counting)}
        kept = {key: self.reserved.get(key, {}) for uid in (*gone, *counting) for key in (uid, _claim_key(uid))}
        for uid in gone:
            self._set_credit(uid, {})
        for uid in counting:
            self._count_once(uid, set(gone))
        for pod in pods:
            self._uncharge_pod(pod)
        for charge, key in plans:
            self.plan_pods(charge, key, -1)
        for uid in gone:
            self._reserve(uid, {})
            self._reserve(_claim_key(uid), {})
        self.room.flush()
        ghosts = self._move_ghosts(gone)
        try:
            yield
        finally:
            for uid, charges in ghosts.items():
                self._replace(self._ghosts, uid, charges, "ghost")
            for pod in pods:
                self._charge_pod(pod)
            for charge, key in plans:
                self.plan_pods(charge, key, 1)
            for uid, credit in credits.items():
                self._set_credit(uid, credit)
            for holder, amounts in kept.items():
                self._reserve(holder, amounts)
            self.room.flush()
            self.given_back = given_back
            self.room.take_helped()
            self.room.note_helped(helped)

    # Room kept for pods to come

    def settle(self, *, started: bool = False) -> None:
        """Work out again what the touched gangs hold, and bring the room's arrays up to date. `started`: all that is
        new is a gang on room that was free, so that no other has to move."""
        for uid in sorted(self._unsettled):
            self._settle_one(uid)
        self._unsettled.clear()
        self.room.flush()
        self._displace()
        if not started or self._recounted or self.room.strained != self._ghosts_strained:
            self._place_ghosts()

    def _settle_one(self, uid: str) -> None:
        gang = self.holders.get(uid)
        if self._has_no_room(uid, gang):
            return
        planned: Charges = {}
        unplaced: dict[int, int] = {}
        grown: Amounts = {}
        if gang is not None:
            pods = [self.pods[pod] for pod in self.by_gang.get(uid, ())]
            planned, unplaced = still_to_come(gang, pods)
            grown = beyond(gang, pods) if gang.state == "admitted" else {}
        if grown != self.grown.get(uid, {}):
            self._regrown.add(uid)
            self.grown.pop(uid, None)
            if grown:
                self.grown[uid] = grown
        for node in {charge.node for charge in self._plan_of(uid).values()}:
            self._planned_on[node].discard(uid)
            if not self._planned_on[node]:
                del self._planned_on[node]
        for charge in planned.values():
            self._planned_on.setdefault(charge.node, set()).add(uid)
        self._displaced.pop(uid, None)
        self._replace(self._planned, uid, planned, "planned")
        self._missing.pop(uid, None)
        if unplaced and gang is not None and gang.supply == "fit":
            self._missing[uid] = unplaced
        self._count_unplaced(uid)
        self._reserve(uid, {} if gang is None or gang.supply == "off" else self._shortage(gang))

    def _has_no_room(self, uid: str, gang: Gang | None) -> bool:
        """Neither had it any, nor does it get any: a gang that is counted by its quota alone."""
        if gang is not None and (gang.supply != "off" or any(entry.nodes for entry in gang.assignment)):
            return False
        books = (self.by_gang, self._planned, self._displaced, self._unplaced, self.grown, self.reserved)
        return not any(uid in book for book in books)

    def take_regrown(self) -> set[str]:
        """Gangs whose growth is another since the last look."""
        found, self._regrown = self._regrown, set()
        return found

    def _plan_of(self, uid: str) -> Charges:
        """All that is planned for a gang and not bound yet, whether or not its nodes can still take it."""
        plan = dict(self._planned.get(uid, {}))
        for key, charge in self._displaced.get(uid, {}).items():
            kept = plan[key].count if key in plan else 0
            plan[key] = msgspec.structs.replace(charge, count=charge.count + kept)
        return plan

    def _count_unplaced(self, uid: str) -> None:
        counts = dict(self._missing.get(uid, ()))
        for (index, _), charge in self._displaced[uid].items() if uid in self._displaced else ():
            counts[index] = counts.get(index, 0) + charge.count
        before = self._unplaced.pop(uid, None)
        if counts:
            self._unplaced[uid] = counts
        self._recounted = self._recounted or before != self._unplaced.get(uid)

    def _displace(self) -> None:
        """Plans whose node is gone or closed, or was filled by another scheduler, are counted where there is room.

        Worked out from the facts each time: of plans that do not fit on one node together the first by UID stay.
        """
        before = self._displaced
        lost = {charge.node for charges in before.values() for charge in charges.values()}
        if not lost and not self.room.strained:
            return
        after: dict[str, Charges] = {}
        for node in sorted(lost | self.room.strained):
            taken: Amounts = {}
            for uid in sorted(self._planned_on.get(node, ())):
                gang = self.holders[uid]
                for key, charge in self._plan_of(uid).items():
                    if charge.node != node:
                        continue
                    kept = min(charge.count, self._takes(gang, charge, taken))
                    for resource, amount in [*charge.pod_set.requests.items(), ("pods", 1)]:
                        taken[resource] = taken.get(resource, 0) + kept * amount
                    if kept < charge.count:
                        after.setdefault(uid, {})[key] = msgspec.structs.replace(charge, count=charge.count - kept)
        for uid in sorted(before.keys() | after.keys()):
            plan, gone = self._plan_of(uid), after.get(uid, {})
            kept_plan = {
                key: msgspec.structs.replace(charge, count=charge.count - (gone[key].count if key in gone else 0))
                for key, charge in plan.items()
            }
            self._displaced.pop(uid, None)
            if gone:
                self._displaced[uid] = gone
            self._replace(self._planned, uid, {key: one for key, one in kept_plan.items() if one.count}, "planned")
            self._count_unplaced(uid)
        self.room.flush()

    def _takes(self, gang: Gang, charge: Charge, taken: Amounts) -> int:
        """How many of these planned pods their node takes, beside what is bound there and `taken`."""
        slot = self.room.by_name.get(charge.node)
        if gang.supply != "fit":
            return charge.count
        fact = slot.fact if slot is not None else None
        if slot is None or fact is None or not is_eligible(shape_of(charge.pod_set, gang.node_selector), fact):
            return 0
        asked = [(name, value) for name, value in [*charge.pod_set.requests.items(), ("pods", 1)] if value > 0]
        return max(0, min((slot.idle(name) - taken.get(name, 0)) // value for name, value in asked))

    def _shortage(self, gang: Gang) -> Amounts:
        """As MCAD reserves: demand less what its pods take (bound and not failed, or finished well), never below 0."""
        demand = demand_of(gang.pod_sets)
        for pod_set in gang.pod_sets if gang.gone else ():
            for resource, amount in [*pod_set.requests.items(), ("pods", 1)]:
                if resource in demand:
                    demand[resource] -= amount * gang.gone.get(pod_set.name, 0)
        for uid in self.by_gang.get(gang.uid, ()):
            pod = self.pods[uid]
            if pod.phase == "Failed" or (not pod.node and pod.phase != "Succeeded"):
                continue
            for resource, amount in [*pod.requests.items(), ("pods", 1)]:
                if resource in demand and amount > 0:
                    demand[resource] -= amount
        return {resource: amount for resource, amount in demand.items() if amount > 0}

    def _reserve(self, uid: str, amounts: Amounts) -> None:
        old = self.reserved.pop(uid, {})
        if amounts:
            self.reserved[uid] = amounts
        for resource in old.keys() | amounts.keys():
            change = amounts.get(resource, 0) - old.get(resource, 0)
            self.given_back += change < 0
            self.total_reserved[resource] = self.total_reserved.get(resource, 0) + change

    def _place_ghosts(self) -> None:
        """Admitted pods whose planned node cannot take them, or was not stored, get one for the count.

        They are placed afresh from the facts each time, so that a rebuilt ledger finds the same. Not so where sums
        decided: such pods may wait for a node, as MCAD lets them.
        """
        self._recounted, self._ghosts_strained = False, set(self.room.strained)
        if (self.room.version, self._unplaced) == self._ghosts_seen or not (self._unplaced or self._ghosts):
            return
        for uid in list(self._ghosts):
            self._replace(self._ghosts, uid, {}, "ghost")
        self._place_ghosts_of({uid: self._unplaced[uid] for uid in sorted(self._unplaced)})
        self.room.flush()
        self._ghosts_strained = set(self.room.strained)
        self._ghosts_seen = (self.room.version, {uid: dict(counts) for uid, counts in self._unplaced.items()})

    def _move_ghosts(self, gone: list[str]) -> dict[str, Charges]:
        """Place those of all other gangs afresh; returns where they were."""
        moved = {uid: self._ghosts.get(uid, {}) for uid in sorted(self._unplaced) if uid not in gone}
        for uid in moved:
            self._replace(self._ghosts, uid, {}, "ghost")
        self._place_ghosts_of({uid: self._unplaced[uid] for uid in moved})
        if moved:
            self.room.flush()
        return moved

    def _place_ghosts_of(self, wanted: dict[str, dict[int, int]]) -> None:
        """As many as there is room for, those of one shape after the other: each shape finds taken what those before it
        took. The rest keep their room in pieces."""
        for members in self._alike(wanted):
            gang, index = self.holders[members[0][0]], members[0][1]
            row = self.room.row(shape_of(gang.pod_sets[index], gang.node_selector))
            self.room.flush()
            fitting = min(sum(count for _, _, count in members), int(self.room.totals[row]))
            seats: list[tuple[str, int]] = []
            if fitting > 0:
                pod_set = msgspec.structs.replace(gang.pod_sets[index], count=fitting)
                placement = place(msgspec.structs.replace(gang, pod_sets=(pod_set,)), self.room)
                if isinstance(placement, Placement):
                    seats = list(placement.pod_sets[0].items())
            left = self._seat_ghosts(members, seats)
            for uid, which, count in left:
                pieces = self._pieces(self.holders[uid], which, count)
                self._replace(self._ghosts, uid, {**self._ghosts.get(uid, {}), **pieces}, "ghost")

    def _alike(self, wanted: dict[str, dict[int, int]]) -> list[list[tuple[str, int, int]]]:
        """Gang, pod set and number of pods, together where a node that takes one takes another, in the order given."""
        groups: dict[object, list[tuple[str, int, int]]] = {}
        for uid, counts in wanted.items():
            gang = self.holders[uid]
            for index, count in sorted(counts.items()):
                pod_set = gang.pod_sets[index]
                looks_around = bool(self.room.around.closers) or pod_set.affinity or pod_set.host_ports
                kind = (uid, index) if looks_around else shape_of(pod_set, gang.node_selector)
                groups.setdefault(kind, []).append((uid, index, count))
        return list(groups.values())

    def _seat_ghosts(
        self, members: list[tuple[str, int, int]], seats: list[tuple[str, int]]
    ) -> list[tuple[str, int, int]]:
        """Deal the seats out, node by node. Returns those that are left without one."""
        charges: dict[str, Charges] = {}
        unseated = []
        node, free = "", 0
        following = iter(seats)
        for uid, index, count in members:
            gang = self.holders[uid]
            while count > 0:
                if not free:
                    node, free = next(following, ("", 0))
                if not free:
                    unseated.append((uid, index, count))
                    break
                number = min(count, free)
                charges.setdefault(uid, {})[index, node] = Charge(gang.pod_sets[index], gang.namespace, node, number)
                count, free = count - number, free - number
        for uid, more in charges.items():
            self._replace(self._ghosts, uid, {**self._ghosts.get(uid, {}), **more}, "ghost")
        return unseated

    def _pieces(self, gang: Gang, index: int, count: int) -> Charges:
        """Pods that no node takes whole keep as much room in pieces, so that no gang fills these before they join."""
        pod_set = gang.pod_sets[index]
        shape = shape_of(pod_set, gang.node_selector)
        left = {name: value * count for name, value in pod_set.requests.items() if value > 0}
        found: Charges = {}
        for name in sorted(self.room.by_name):
            slot = self.room.by_name[name]
            if slot.fact is None or not is_eligible(shape, slot.fact):
                continue
            free = {one: slot.idle(one) - slot.planned.get(one, 0) for one in left}
            part = {one: min(amount, free[one]) for one, amount in left.items() if free[one] > 0}
            if not part:
                continue
            left = {one: amount - part.get(one, 0) for one, amount in left.items() if amount > part.get(one, 0)}
            piece = msgspec.structs.replace(pod_set, requests=part, count=1, host_ports=(), affinity={})
            found[-1 - index, name] = Charge(piece, gang.namespace, name, 1)
            if not left:
                break
        return found

    def _replace(self, book: dict[str, Charges], uid: str, new: Charges, kind: str) -> None:
        old = book.pop(uid, {})
        if new:
            book[uid] = new
        if old == new:
            return
        for place_key, charge in old.items():
            self.plan_pods(charge, (kind, uid, *place_key), -1)
        for place_key, charge in new.items():
            self.plan_pods(charge, (kind, uid, *place_key), 1)

    def plan_pods(self, charge: Charge, key: object, sign: int) -> None:
        """Charge planned pods to their node (sign 1) or give them back (-1)."""
        self.room.take(charge.node, charge.pod_set.requests, sign * charge.count, planned=True)
        self.room.take_ports(charge.node, charge.pod_set.host_ports, sign * charge.count)
        if sign < 0:
            self.given_back += 1
            self.room.around.leave(key)
            return
        pod_set = charge.pod_set
        keeps_away = _keeps_away(pod_set.affinity, charge.namespace, pod_set.labels)
        resident = Resident(charge.node, charge.namespace, pod_set.labels, keeps_away)
        self.room.around.settle(key, resident, charge.count)


def _claim_key(uid: str) -> str:
    return "claim/" + uid


def _keeps_away(affinity: dict[str, object], namespace: str, labels: dict[str, str]) -> tuple[PodTerm, ...]:
    if not affinity:
        return ()
    try:
        return parse_pod_terms(affinity, "podAntiAffinity", namespace, labels)
    except BadInput:
        return ()  # the API server would not have stored it; such a pod keeps no other away
