"""All that the engine knows, kept up to date fact by fact.

`Engine` feeds it, the cycle reads it and writes its own decisions back as assumptions until facts confirm them. It
holds no decision logic: only which gangs wait, which hold what, and what could have changed for which.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Set

import msgspec

from shoal.engine.line.quota_index import QuotaIndex
from shoal.engine.line.refusals import Refusals
from shoal.engine.line.surplus import Surplus, is_surplus
from shoal.engine.line.validate import gang_problem, node_problem, pod_problem, pool_problem
from shoal.engine.line.waiting import GangClass, Signature, Waiting
from shoal.engine.line.yielding import Barred, Yielding
from shoal.engine.mcad.forest import Consumer, QuotaForest
from shoal.engine.model import (
    Amounts,
    Fact,
    Gang,
    Namespace,
    NodeFact,
    NodePool,
    PodFact,
    PodSet,
    PodSetAssignment,
    QuotaSubtree,
    Seat,
    Shortfall,
)
from shoal.engine.nodes.fit import Placement, demand_of
from shoal.engine.nodes.ledger import Ledger
from shoal.engine.nodes.pools import Pools
from shoal.engine.nodes.room import is_accelerator
from shoal.engine.nodes.shape import shape_of
from shoal.engine.nodes.to_come import beyond
from shoal.engine.policies import Policy, load
from shoal.engine.settings import EngineSettings

HOLDS = ("admitted", "stopping")


def wants_room(gang: Gang) -> bool:
    """Does the gang wait here? Kueue's once they have quota, for the last check of all; all others from the start."""
    if gang.state == "reserved":
        return gang.checks_done
    return gang.state == "waiting" and gang.dialect != "kueue"


def _asks_otherwise(known: Gang, gang: Gang) -> bool:
    return (known.priority, known.pod_sets, known.labels) != (gang.priority, gang.pod_sets, gang.labels)


class LineState:
    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.policy: Policy = load(settings.policy)
        self.gangs: dict[str, Gang] = {}
        self.keys: dict[str, str] = {}
        """UID to key."""
        self.ledger = Ledger()
        self.pools = Pools()
        self.quota_index = QuotaIndex()
        self.waiting = Waiting(self.policy)
        self.forest = QuotaForest(minimal_victims=settings.minimal_victims, evicting=settings.preemption)
        self._checked: dict[str, tuple[tuple[PodSet, ...], str, str]] = {}
        self.problems: dict[str, str] = {}
        """Held because of their own facts: UID to reason."""
        self.fresh: dict[str, None] = {}
        """Waiting or bad, and nothing was said about them yet."""
        self.victims: dict[str, set[str]] = {}
        """Preemptor UID to the gangs that were stopped for it and have not started again; until it starts itself."""
        self.served: dict[str, str] = {}
        """UID of a gang that was stopped to UID of its preemptor, where that one has started since."""
        self.yielding = Yielding()
        self.holders_version = 0
        self.first_held: dict[str, int] = {}
        self.usage: dict[str, Amounts] = {}
        """Per namespace: what its gangs hold."""
        self.reservation: str | None = None
        """UID of the gang at the front for which room is set aside; that room, and those whose end will free it."""
        self.reserved_room: Placement | None = None
        self.reserved_after: tuple[str, ...] = ()
        self.held_growth: dict[str, tuple[Shortfall, ...]] = {}
        """Pods that wait to come on top of what was admitted, by UID: what was said of them last."""
        self.refusals = Refusals()
        """Bids of elastic gangs that were refused."""
        self.surplus = Surplus()
        """Pods that elastic gangs have beyond what they were admitted with, each a gang of its own."""
        self.fillers: dict[str, None] = {}
        """UIDs of gangs that run by backfill, first to leave first: they leave for any other that needs their room."""
        self.warnings: dict[str, str] = {}
        self.classes_of_row: dict[int, dict[GangClass, None]] = {}
        self.watchers: dict[GangClass, None] = {}
        """Inadmissible classes that are reconsidered by what they watch, not by helped rows alone."""
        self._rows: dict[GangClass, tuple[tuple[int, int], ...]] = {}

    # Facts

    def update(self, fact: Fact) -> None:
        match fact:
            case Gang():
                if fact.state in HOLDS:
                    self.note_started(fact.uid)
                if fact.stopping_for != self.served.get(fact.uid, ""):
                    self.served.pop(fact.uid, None)
                self.put(self._with_known_admission(fact))
            case PodFact():
                self._warn(f"Pod/{fact.uid}", pod_problem(fact))
                if self.surplus:
                    fact = self.surplus.attributed(fact)
                self.ledger.set_pod(fact)
            case NodeFact():
                self._warn(f"Node/{fact.name}", node_problem(fact))
                if self.pools.note_node(fact):
                    self.ledger.drop_node(fact.name)
                    if fact.held_for in self.waiting:
                        self.fresh[fact.held_for] = None  # fewer are to come than was said
                else:
                    self.ledger.set_node(fact)
            case NodePool():
                self._set_pool(fact)
            case QuotaSubtree():
                before = self.forest.trees
                self.forest.set_subtree(fact)
                self._trees_changed(before)
            case Namespace():
                self.ledger.set_namespace(fact)

    def remove(self, key: str) -> None:
        if key in self.gangs:
            self.drop(self.gangs[key])
            return
        what, _, name = key.partition("/")
        self.warnings.pop(key, None)
        match what:
            case "Pod":
                if self.surplus and name in self.ledger.pods:
                    self.surplus.gone(self.ledger.pods[name])
                self.ledger.drop_pod(name)
            case "Node":
                self.pools.forget_node(name)
                self.ledger.drop_node(name)
            case "NodePool":
                self.pools.facts.pop(name, None)
            case "QuotaSubtree":
                before = self.forest.trees
                self.forest.drop_subtree(name)
                self._trees_changed(before)
            case "Namespace":
                self.ledger.set_namespace(Namespace(name=name))
            case _:
                pass  # already gone

    def facts(self) -> Iterator[Fact]:
        """Everything known, assumptions included: an engine fed with these decides the same."""
        yield from self.forest.subtrees
        yield from self.ledger.room.facts
        yield from self.pools.kept_back()
        yield from self.pools.facts.values()
        yield from (Namespace(name=name, labels=dict(labels)) for name, labels in self.ledger.room.namespaces.items())
        yield from (self.surplus.told(pod) for pod in self.ledger.pods.values())
        for gang in self.gangs.values():
            if is_surplus(gang.uid):
                continue
            seats = self.forest.seats(gang.uid) if gang.state == "admitted" else {}
            yield msgspec.structs.replace(gang, seats=seats) if seats else gang

    def adopt(self, other: LineState) -> None:
        """What no fact tells: for which gang at the front room is kept, since when the front was held up, which gang
        yielded to which. Before any fact is told."""
        self.reservation, self.reserved_room = other.reservation, other.reserved_room
        self.reserved_after, self.first_held = other.reserved_after, dict(other.first_held)
        self.yielding.adopt(other.yielding)
        self.served = dict(other.served)

    def _warn(self, key: str, problem: str) -> None:
        if problem:
            self.warnings[key] = problem
        else:
            self.warnings.pop(key, None)

    def _with_known_admission(self, fact: Gang) -> Gang:
        """A stored admission may leave out what only we know (where pods were planned, where it sits); keep that."""
        known = self.gangs.get(fact.key)
        if known is None or known.uid != fact.uid or known.state not in HOLDS or fact.state not in HOLDS:
            return fact
        return msgspec.structs.replace(
            fact, seats=fact.seats or known.seats, assignment=fact.assignment or known.assignment
        )

    # Node pools

    def _set_pool(self, fact: NodePool) -> None:
        problem = pool_problem(fact)
        self._warn(f"NodePool/{fact.name}", problem)
        if problem:
            fact = NodePool(name=fact.name)
        if self.pools.facts.get(fact.name) != fact:
            self.pools.facts[fact.name] = fact
            self._pools_changed()

    def note_obtaining(self, gang: Gang) -> None:
        """Nodes asked for on behalf of a gang that waits count as taken from their pool."""
        if not gang.obtaining and gang.uid not in self.pools.asked:
            return
        asked = gang.obtaining if wants_room(gang) else {}
        if asked == self.pools.asked.get(gang.uid, {}):
            return
        self.pools.asked.pop(gang.uid, None)
        if asked:
            self.pools.asked[gang.uid] = asked
        self.open_brought(gang.uid, not asked)
        self._pools_changed()

    def open_brought(self, uid: str, wide: bool) -> None:
        """Nodes that came on behalf of a gang count as room, or not."""
        for fact in self.pools.brought.get(uid, {}).values():
            if wide:
                self.ledger.set_node(fact)
            else:
                self.ledger.drop_node(fact.name)

    def _pools_changed(self) -> None:
        """A gang that found no room may find it in nodes to come."""
        if self.pools.any_left:
            for gang_class in self.waiting.classes.values():
                if gang_class.reason != "quota":
                    self.waiting.reconsider(gang_class)

    # Gangs

    def put(self, gang: Gang, *, bound: bool = False) -> None:
        """`bound`: its pods are those of before, bound to flavors and places: nothing that could be wrong with them is
        new."""
        known = self.gangs.get(gang.key)
        if known == gang:
            return
        if known is not None and known.uid != gang.uid:
            self.drop(known)
            known = None
        twin = self.keys.get(gang.uid, gang.key)
        if twin != gang.key:
            self.drop(self.gangs[twin])
            self.warnings[f"UID/{gang.uid}"] = f"{gang.key} has the UID of {twin}, which does not count any more"
        if known is not None:
            self._uncount(known)
            if bound and known.problem == gang.problem:
                self._checked[gang.uid] = (gang.pod_sets, gang.problem, self._problem_of(known))
            if gang.uid == self.reservation and known.pod_sets != gang.pod_sets:
                self.reserved_room = None  # it was for what the gang asked for before
            if self.yielding and _asks_otherwise(known, gang):
                self.yielding.forget(gang.uid)
        self.gangs[gang.key] = gang
        self.keys[gang.uid] = gang.key
        problem = self._problem_of(gang)
        if problem:
            gang = msgspec.structs.replace(gang, pod_sets=()) if gang.state in HOLDS else gang
        if gang.elastic or self.surplus.elastic:
            self.surplus.note(gang)
        self._count(gang)
        self.ledger.set_gang(gang)
        self.note_obtaining(gang)
        self._seat(gang)
        if problem and gang.state in ("waiting", "reserved"):
            self._leave_queue(gang.uid)
            if self.problems.get(gang.uid) != problem:
                self.fresh[gang.uid] = None
            self.problems[gang.uid] = problem
            return
        was_bad = self.problems.pop(gang.uid, None) is not None
        if wants_room(gang):
            new = known is None or was_bad or not wants_room(known)
            if new or (known is not None and self.standing(known) != self.standing(gang)):
                self.fresh[gang.uid] = None
            self.enqueue(gang)
        else:
            self._leave_queue(gang.uid)
            self.fresh.pop(gang.uid, None)
            self.first_held.pop(gang.uid, None)

    def _problem_of(self, gang: Gang) -> str:
        """What is wrong with it, worked out once for as long as its pod sets stay the same."""
        known = self._checked.get(gang.uid)
        if known is not None and known[0] is gang.pod_sets and known[1] == gang.problem:
            return known[2]
        problem = gang_problem(gang)
        self._checked[gang.uid] = (gang.pod_sets, gang.problem, problem)
        return problem

    def drop(self, gang: Gang) -> None:
        self.surplus.forget(gang.uid)
        self._uncount(gang)
        if gang.uid in self.pools.asked:
            self.note_obtaining(msgspec.structs.replace(gang, obtaining={}))
        del self.gangs[gang.key]
        self.keys.pop(gang.uid, None)
        self._checked.pop(gang.uid, None)
        self.warnings.pop(f"UID/{gang.uid}", None)
        self._leave_queue(gang.uid)
        self.ledger.drop_gang(gang.uid)
        self.ledger.unclaim(gang.uid)
        self.forest.release(gang.uid)
        self.problems.pop(gang.uid, None)
        self.fresh.pop(gang.uid, None)
        self.first_held.pop(gang.uid, None)
        self.yielding.forget(gang.uid)
        self.served.pop(gang.uid, None)

    def note_started(self, uid: str) -> None:
        """It got what others were stopped for. Should it come back, it waits in line like all others."""
        for victim in self.victims.pop(uid, ()):
            self.served[victim] = uid

    def standing(self, gang: Gang) -> Hashable:
        """What a waiting gang's place and verdict depend on."""
        return (gang.priority, gang.priority_slope, gang.queued_at, self.signature(gang))

    def by_uid(self, uid: str) -> Gang:
        return self.gangs[self.keys[uid]]

    def _count(self, gang: Gang) -> None:
        if gang.state in HOLDS:
            self.holders_version += 1
            book = self.usage.setdefault(gang.namespace, {})
            for resource, amount in demand_of(gang.pod_sets).items():
                book[resource] = book.get(resource, 0) + amount
        if gang.stopping_for and gang.state != "admitted":
            self.yielding.note(gang.uid, gang.stopping_for)
            if self.served.get(gang.uid) != gang.stopping_for:
                self.victims.setdefault(gang.stopping_for, set()).add(gang.uid)

    def _uncount(self, gang: Gang) -> None:
        if self._problem_of(gang):
            gang = msgspec.structs.replace(gang, pod_sets=())
        if gang.state in HOLDS:
            self.holders_version += 1
            book = self.usage[gang.namespace]
            for resource, amount in demand_of(gang.pod_sets).items():
                book[resource] -= amount
        if gang.stopping_for and gang.state != "admitted":
            others = self.victims.get(gang.stopping_for, set())
            others.discard(gang.uid)
            if not others:
                self.victims.pop(gang.stopping_for, None)

    def barred(self, gang: Gang, victims: Iterable[str]) -> Barred | None:
        """The first of these victims that this gang may not push out, because it, or an equal ahead of it, yielded."""
        if not victims or not self.yielding:
            return None
        return self.yielding.barred(victims, gang.uid, self._line(gang), self.policy.order(gang))

    def are_equal(self, one: Gang, other: Gang) -> bool:
        """Does only their age tell them apart?"""
        return one.dialect == other.dialect and self._line(one) == self._line(other)

    def _line(self, gang: Gang) -> Hashable:
        """Equal for gangs that are judged alike, whatever keeps one of them apart."""
        return msgspec.structs.replace(self.signature(gang), may_obtain=True)

    def still_stopping(self, preemptor: str) -> set[str]:
        return {uid for uid in self.victims.get(preemptor, ()) if self.by_uid(uid).state == "stopping"}

    def share(self, namespace: str) -> float:
        """Dominant share of a namespace over the nodes there are."""
        room = self.ledger.room
        held = self.usage.get(namespace, {})
        shares = [
            amount / capacity
            for resource, amount in held.items()
            if (resource in ("cpu", "memory") or is_accelerator(resource))
            and (capacity := room.total_allocatable(resource)) > 0
        ]
        return max(shares, default=0.0)

    # Quota

    def _seat(self, gang: Gang) -> None:
        """Admitted gangs sit in the forest, where they were told they sit; all others leave it."""
        if not self.settings.quota or gang.dialect != "mcad":
            return
        if gang.state == "admitted":
            self.forest.restore(self.consumer(gang), gang.seats)
        elif gang.state != "waiting" or not (gang.uid in self.victims or gang.uid in self.pools.asked):
            self.forest.release(gang.uid)

    def consumer(self, gang: Gang) -> Consumer:
        """A gang that waits is never pushed out of the forest: where one sits there, others are stopping for it."""
        return Consumer(
            gang.uid,
            {tree: gang.labels.get(tree, "default") for tree in self.forest.trees},
            self._asked_of_quota(gang),
            gang.priority,
            gang.preemptable and self.settings.preemption and gang.state == "admitted",
        )

    def _asked_of_quota(self, gang: Gang) -> Amounts:
        """What it was admitted with, and what it has grown by since."""
        asked = demand_of(gang.pod_sets)
        for resource, amount in self.ledger.grown.get(gang.uid, {}).items():
            asked[resource] = asked.get(resource, 0) + amount
        return asked

    def charge_growth(self) -> None:
        """Quota carries what gangs have grown by, over what it has if need be: then others wait."""
        for uid in sorted(self.ledger.take_regrown()):
            gang = self.gangs.get(self.keys.get(uid, ""))
            if gang is not None and gang.state == "admitted" and gang.dialect == "mcad" and self.settings.quota:
                self.forest.restore(self.consumer(gang), {})

    def room_to_grow(self, pod: PodFact) -> tuple[Shortfall, ...]:
        """What quota lacks for one more pod of a gang that runs; none when it may come."""
        gang = self.gangs.get(self.keys.get(pod.gang, ""))
        if gang is None or gang.state != "admitted" or gang.dialect != "mcad" or not self.settings.quota:
            return ()
        pods = [self.ledger.pods[uid] for uid in self.ledger.by_gang.get(gang.uid, ()) if uid != pod.uid]
        before = beyond(gang, pods)
        more = {
            resource: amount - before.get(resource, 0)
            for resource, amount in beyond(gang, [*pods, msgspec.structs.replace(pod, gated=False)]).items()
            if amount > before.get(resource, 0)
        }
        return self.forest.lacking_for_more(gang.uid, more)

    def _trees_changed(self, before: tuple[str, ...]) -> None:
        """Every gang sits where it was told, as far as that place exists now; one that waits may belong elsewhere."""
        if not self.settings.quota:
            return
        renamed = self.forest.trees != before
        for gang_class in self.quota_index.clear():
            self.waiting.reconsider(gang_class)
        for gang in list(self.gangs.values()):
            if gang.state == "admitted":
                self._seat(gang)
            elif renamed and gang.uid in self.waiting:
                self.enqueue(gang)

    # The queue

    def enqueue(self, gang: Gang, personal: bool = False) -> None:
        known = self.waiting.class_of(gang.uid)
        evicted = self.settings.quota and gang.uid in self.yielding  # which it may push out is its own matter
        apart = personal or evicted or gang.uid in self.pools.asked  # so is which nodes it waits for
        alone = apart or (known is not None and known.signature.alone != "")
        signature = self.signature(gang, gang.uid if alone else "")
        self._leave_queue(gang.uid)
        gang_class = self.waiting.add(gang, signature)
        if evicted:
            self.yielding.wait(gang.uid, self._line(gang), self.policy.order(gang))
        elif self.yielding and self.waiting.is_first(gang.uid):
            self.waiting.reconsider(gang_class)  # what bars those behind it need not bar it
        self.quota_index.renew(gang_class)
        if not all(shape.hosts for shape, _ in signature.shapes):
            self._keep_rows(gang_class)

    def _keep_rows(self, gang_class: GangClass) -> None:
        """Have rows for its shapes in the room for as long as any gang of it waits. A gang that has its hosts starts at
        once most often: those of its class are made when it does not."""
        if gang_class not in self._rows:
            room, signature = self.ledger.room, gang_class.signature
            pairs = []
            for shape, count in signature.shapes if signature.supply == "fit" else ():
                row = room.row(shape)
                room.pin(row)
                pairs.append((row, count))
                self.classes_of_row.setdefault(row, {})[gang_class] = None
            self._rows[gang_class] = tuple(pairs)

    def set_inadmissible(self, gang_class: GangClass) -> None:
        self._keep_rows(gang_class)
        self.waiting.set_inadmissible(gang_class)

    def _leave_queue(self, uid: str) -> None:
        emptied = self.waiting.remove(uid)
        self.yielding.leave(uid)
        if emptied is None:
            return
        self.watchers.pop(emptied, None)
        self.quota_index.drop(emptied)
        for row, _ in self._rows.pop(emptied, ()):
            self.ledger.room.unpin(row)
            classes = self.classes_of_row.get(row, {})
            classes.pop(emptied, None)
            if not classes:
                self.classes_of_row.pop(row, None)

    def signature(self, gang: Gang, alone: str = "") -> Signature:
        shapes = tuple([(shape_of(pod_set, gang.node_selector), pod_set.count) for pod_set in gang.pod_sets])
        company = None
        choosy = [pod_set.affinity for pod_set in gang.pod_sets if pod_set.affinity]
        if choosy and any(key != "nodeAffinity" for affinity in choosy for key in affinity):
            company = (
                gang.namespace,
                msgspec.json.encode([[pod_set.affinity, pod_set.labels] for pod_set in gang.pod_sets], order="sorted"),
            )
        leaves: tuple[str, ...] = ()
        if self.settings.quota:
            leaves = tuple(gang.labels.get(tree, "default") for tree in self.forest.trees)
        standing = None
        if self.settings.quota or self.settings.preemption:
            standing = (gang.priority, gang.preemptable, gang.dialect)
        lane = self.policy.lane(gang) if self.settings.quota and self.settings.preemption else None
        return Signature(shapes, gang.supply, company, leaves, standing, alone, gang.may_obtain, lane)

    def classes_helped(self, rows: Set[int]) -> list[GangClass]:
        """Classes that were found to lack room and have a pod set for which there is more now. No room can help those
        that quota refused."""
        short = self.waiting.short_of_room
        around: dict[GangClass, None] = {}
        for row in rows:
            classes = self.classes_of_row.get(row, {})
            if len(classes) > len(short):
                return [gang_class for gang_class in short if any(row in rows for row, _ in self._rows[gang_class])]
            around |= classes
        return [gang_class for gang_class in around if gang_class in short]

    @property
    def may_make_room(self) -> bool:
        """Others may yet be made to leave, or nodes to come."""
        leaves = self.settings.preemption or self.surplus.owners or self.fillers
        return bool(leaves or (self.pools.facts and self.pools.any_left))

    def with_enough_nodes(self, classes: Iterable[GangClass]) -> list[GangClass]:
        """Those of which every pod set, taken alone, has enough nodes. Cheap, and never wrongly without one."""
        totals, rows = self.ledger.room.totals, self._rows
        found = []
        for gang_class in classes:
            for row, count in rows[gang_class]:
                if totals[row] < count:
                    break
            else:
                found.append(gang_class)
        return found

    def surely_unfit(self, gang_class: GangClass) -> bool:
        """Known without placing anything: nothing but nodes decides, and some pod set has too few of them."""
        signature = gang_class.signature
        if signature.supply != "fit" or signature.company is not None or signature.alone:
            return False
        return not self.may_make_room and not self.with_enough_nodes((gang_class,))

    def index_by_quota(self, gang_class: GangClass, gang: Gang) -> bool:
        """Index a class that quota refused by what it waits for. False: it has to watch for itself."""
        if gang_class.reason != "quota" or self.settings.preemption or not getattr(self.policy, "timeless", False):
            return False
        return self.quota_index.add(gang_class, self.consumer(gang), self.forest)

    def watch(self, gang_class: GangClass) -> Hashable:
        """What could help an inadmissible class, apart from nodes that hold more of its pods."""
        seen: list[int] = []
        if gang_class.signature.supply == "aggregate":
            seen.append(self.ledger.given_back)
        if gang_class.signature.company is not None or gang_class.signature.alone:
            seen += [self.ledger.room.around.version, self.ledger.given_back]
        if self.settings.preemption:
            seen += [self.holders_version, self.yielding.left]
        if self.settings.quota and gang_class.reason == "quota":
            seen.append(self.forest.shape_version)
            for node in gang_class.refused_path:
                seen.append(node.changed if self.settings.preemption else node.freed)
        elif self.settings.quota and self.settings.preemption:
            seen.append(self.forest.version)  # other victims, other room
        return tuple(seen)

    # Assumptions

    def assume_admitted(
        self, gang: Gang, now: int, seats: dict[str, Seat], assignment: Iterable[PodSetAssignment]
    ) -> None:
        fact_of = {
            "admitted_at": now, "seats": seats, "assignment": tuple(assignment), "stopping_for": "", "obtaining": {},
        }  # fmt: skip
        self.put(msgspec.structs.replace(gang, state="admitted", **fact_of))

    def assume_obtaining(self, gang: Gang, nodes: dict[str, int]) -> None:
        self.pools.asked[gang.uid] = nodes
        self.gangs[gang.key] = gang = msgspec.structs.replace(gang, obtaining=nodes)
        self.enqueue(gang)

    def assume_stopping(self, gang: Gang, preemptor: Gang) -> None:
        self.put(msgspec.structs.replace(gang, state="stopping", stopping_for=preemptor.uid))
