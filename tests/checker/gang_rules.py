"""What must hold of gangs at every revision of a history, and what must hold once it is quiet.

`judge` walks the changes over a `World` and returns each broken invariant in words, by number: I1–I6, I8 and I12
(quota), I10, I11, I14–I18, I20, I46, I47. It knows stored objects and nothing else. `GRACE` is how long a decision may
still be on its way after the facts that it was made from have changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shoal.api.gang import GROWTH
from tests.checker.gang_world import (
    Change,
    Json,
    Seen,
    Sums,
    Tree,
    World,
    add,
    gang_of,
    over,
    packs,
    requests_of,
    sums,
    usable,
)
from tests.checker.preemptors import mark_of
from tests.checker.safety import leaks

SECOND = 1_000_000
GRACE = 90 * SECOND
IN_FLIGHT = 10 * SECOND
"""How long a request may be in the network after its sender is gone."""
LATE = 6
"""The same in revisions, where times are not kept: so many may come between a look at the world and the write."""
PLURALS = {"Pod": "pods", "ConfigMap": "configmaps", "Job": "jobs", "RayCluster": "rayclusters"}
NEXT_STATES = {
    "": {"", "Pending", "Running", "Failed"},
    "Pending": {"Pending", "Running", "Failed"},
    "Running": {"Running", "RunningHoldCompletion", "Completed", "Failed", "Deleted", "Pending"},
    "RunningHoldCompletion": {"RunningHoldCompletion", "Running", "Completed", "Failed", "Pending"},
    "Completed": {"Completed"},
    "Failed": {"Failed"},
    "Deleted": {"Deleted"},
}


def judge(changes: Iterable[Change], *, quiet: bool = False, calm_from: int = 0, now: int = 0) -> list[str]:
    """Every violation. `quiet`: nothing is on its way any more. `calm_from`: the revision of the last outside write."""
    walk = _Walk(calm_from)
    changes = list(changes)
    for change in changes:
        walk.step(change)
    found = walk.found + leaks(changes)
    if quiet:
        found += [*at_rest(walk.world, walk.created, now)]
        found += walk.decided_in_calm()
    return found


class _Walk:
    def __init__(self, calm_from: int) -> None:
        self.world = World()
        self.found: list[str] = []
        self._calm_from = calm_from
        self.created: set[tuple[str, int, str]] = set()
        """UID and epoch of a gang, and the object that was made for it."""
        self._there: set[tuple[str, int, str]] = set()
        self._supply_changed: Change | None = None
        self._quota_changed: Change | None = None
        self._changed: dict[str, Change] = {}
        """When somebody last changed an AppWrapper's spec or labels."""
        self._born: dict[str, Change] = {}
        """When a pod was made."""
        self._passed_over: dict[str, tuple[str, int]] = {}
        self._withdrawn: dict[str, Change] = {}
        self._decisions: list[tuple[str, str, str]] = []

    def step(self, change: Change) -> None:
        before = self.world
        if change.collection == "appwrappers":
            old = Seen(change.old) if change.old is not None else None
            new = Seen(change.new) if change.new is not None else None
            if old is not None and new is not None and _asked(old.obj) != _asked(new.obj):
                self._changed[new.uid] = change
            waiting = [one for one in before.gangs() if one.is_waiting] if new is not None else []
            self.world.apply(change)
            if new is None:
                self._passed_over.pop(change.obj["metadata"]["uid"], None)
                return
            self._wrapper(change, old, new, waiting)
            return
        if change.old is None and change.new is not None:
            self._made(change, change.new)
            self._born[str(change.new["metadata"].get("uid"))] = change
        if change.new is None and change.old is not None:
            self._lost(change.collection, change.old)
        if change.collection == "pods" and (change.obj.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            self._decisions.clear()  # work that ends is a change from outside
        if change.collection == "nodes" and (
            change.old is None or change.new is None or _supply(change.old) != _supply(change.new)
        ):
            self._supply_changed = change
        if change.collection == "quotasubtrees" and (change.old or {}).get("spec") != (change.new or {}).get("spec"):
            self._quota_changed = change
        self.world.apply(change)

    def _tell(self, change: Change, invariant: str, says: str) -> None:
        self.found.append(f"{invariant}: revision {change.revision}: {says}")

    # --- objects

    def _made(self, change: Change, obj: Json) -> None:
        """I1, I2: an object of a gang is made under a stored admission, and once per epoch.

        A create may still be in the network when its sender has died and the gang was taken back by the next one; it
        must not stay (I5).
        """
        owner = self.world.owner_of(obj)
        if owner is None:
            return
        if change.collection in ("provisioningrequests", "podtemplates") and not owner.is_admitted:
            return  # a gang that waits may ask for nodes; nothing of it starts by that
        name = f"{change.collection}/{obj['metadata']['name']}"
        if not owner.is_admitted and _lately(change, self._withdrawn.get(owner.uid), IN_FLIGHT):
            return
        if not owner.is_admitted or not owner.admission.get("epoch"):
            self.found.append(f"I1: {name} of {owner.name} was created without a stored admission")
            return
        stamped, by = owner.creator, str(owner.admission.get("by") or "")
        if stamped and by != stamped:
            self.found.append(f"I46: {name} of {owner.name} was created for {stamped}, and {by!r} was asked for")
        if obj["metadata"].get("namespace", "") != owner.obj["metadata"].get("namespace", ""):
            self.found.append(f"I46: {name} of {owner.name} was created in another namespace")
        key = _run(owner, name)
        if key in self._there:
            self.found.append(f"I2: {name} of {owner.name} was created twice in epoch {key[1] // 1000}")
        self._there.add(key)
        self.created.add(key)

    def _lost(self, collection: str, obj: Json) -> None:
        """Gone while its gang runs: somebody else removed it, and it may be made again."""
        owner = self.world.owner_of(obj)
        if owner is not None and owner.is_admitted:
            self._there.discard(_run(owner, f"{collection}/{obj['metadata']['name']}"))

    # --- states

    def _wrapper(self, change: Change, old: Seen | None, new: Seen, waiting: list[Seen]) -> None:
        if old is not None and old.uid != new.uid:
            old = None
        self._machine(change, old, new)
        was = old is not None and old.is_admitted
        started = old is not None and old.status.get("state") != "Running" and new.status.get("state") == "Running"
        if started and (missing := _not_made(new, self.created)):
            self._tell(change, "I4", f"{new.name} is said to run before {missing} was made")
        if new.is_admitted and not was:
            self._decisions.append((new.uid, "admitted", "")) if change.revision > self._calm_from else None
            self._passed_over.pop(new.uid, None)
            self._admitted(change, old, new, waiting)
        if was and old is not None and not new.is_admitted:
            self._withdrawn[new.uid] = change
            self._taken_back(change, old, new)
        if old is not None and (was or old.is_stopping) and new.is_waiting:
            left = [pod["metadata"]["uid"] for pod in self.world.pods_of(new.uid)]
            if not all(_lately(change, self._born.get(uid), IN_FLIGHT, new=True) for uid in left):  # one comes unseen
                self._tell(change, "I11", f"{new.name} queues again while pods of its last run are left")
        if not new.is_waiting or _asked(new.obj) != _asked(old.obj if old is not None else new.obj):
            self._passed_over.pop(new.uid, None)

    def _machine(self, change: Change, old: Seen | None, new: Seen) -> None:
        """I20: states follow the published machine; what excludes each other is never stored together."""
        if new.is_components:
            return
        was, now = (old.status.get("state", "") if old is not None else ""), new.status.get("state", "")
        if now not in NEXT_STATES.get(was, {now}):
            self._tell(change, "I20", f"{new.name} went from {was!r} to {now!r}")
        if new.is_terminal and new.status.get("canrun"):
            self._tell(change, "I20", f"{new.name} is {now} and may run")
        if now == "Pending" and new.status.get("queuejobstate") == "Dispatched":
            self._tell(change, "I20", f"{new.name} is Pending and Dispatched")
        if now == "Running" and not new.status.get("canrun") and not new.is_stopping:
            self._tell(change, "I20", f"{new.name} is Running and may not run")
        if old is not None:
            before, after = int(old.admission.get("epoch") or 0), int(new.admission.get("epoch") or 0)
            if after < before or after > before + 1:
                self._tell(change, "I20", f"{new.name} went from epoch {before} to {after}")

    # --- decisions

    def _admitted(self, change: Change, old: Seen | None, new: Seen, waiting: list[Seen]) -> None:
        for message in self._no_room(change, new):
            self._tell(change, "I8", message)
        for message in self._over_quota(change, new):
            self._tell(change, "I12", message)
        for message in self._took_kept_room(change, new, waiting):
            self._tell(change, "I15", message)
        asked = new.demand if not any(self.world.all("limitranges")) else None  # these add to what a spec asks for
        if asked is not None and new.admission.get("generation") == new.obj["metadata"].get("generation"):
            charged = {name: value for name, value in new.charge.items() if value}
            if charged != {name: value for name, value in asked.items() if value}:
                self._tell(change, "I10", f"{new.name} asks for {asked} and is charged {charged}")
        for other in waiting:
            if other.uid != new.uid and _same_shape(other, new) and other.first and other.first < new.first:
                resumes = int(other.admission.get("resumeAt") or 0)
                if resumes < change.at and not other.admission.get("stoppingFor"):
                    self._passed_over.setdefault(other.uid, (new.name, change.at))

    def _fresh(self, change: Change, *facts: Change | None) -> bool:
        """Were these facts changed so lately that a decision on the old ones may be on its way?"""
        return any(_lately(change, fact, GRACE) for fact in facts)

    def _no_room(self, change: Change, new: Seen) -> Iterator[str]:
        if self._fresh(change, self._supply_changed) or new.is_components:
            return
        missing = over(self.world.held(), self.world.capacity(), set(new.charge))
        if missing:
            yield f"{new.name} was admitted although {missing} is missing"

    def _over_quota(self, change: Change, new: Seen) -> Iterator[str]:
        """No gang passes a hard node, and neither it nor the root is overfull. One that was seated above a hard node
        before an edit of the tree stays there, and does not count below."""
        if self._fresh(change, self._quota_changed, self._changed.get(new.uid)) or new.is_components:
            return
        for name, tree in self.world.trees().items():
            if name not in (new.admission.get("seats") or {}):
                continue
            path = tree.path(new.labels.get(name, "default")) or [tree.root]
            hard = next((node for node in path[:-1] if node in tree.hard), path[-1])
            seat = seat_of(new, name, path[0])
            if seat in path and path.index(seat) > path.index(hard):
                yield f"{new.name} sits at {name}/{seat}, past {hard}, which is hard"
            for node in path:
                if node == tree.root or node in tree.hard:
                    used = (_below if node == tree.root else _seated)(self.world, name, tree, node)
                    missing = over(used, tree.quotas[node], {one for one in tree.dimensions if new.charge.get(one)})
                    if missing:
                        yield f"{new.name} was admitted although {name}/{node} is exceeded by {missing}"

    def _took_kept_room(self, change: Change, new: Seen, waiting: list[Seen]) -> Iterator[str]:
        """Aggregate: the preemptor had enough with its victims gone, and has not any more."""
        for claimer in waiting:
            demand = claimer.demand
            if claimer.uid == new.uid or demand is None or claimer.priority < new.priority:
                continue
            if self._fresh(change, self._supply_changed, self._changed.get(claimer.uid)):
                continue
            victims = [
                one
                for one in self.world.gangs()
                if one.admission.get("stoppingFor") in (claimer.uid, mark_of(claimer.uid)) and one.is_stopping
            ]
            if not victims or claimer.admission.get("resumeAt", 0) > change.at:
                continue
            free = self.world.capacity()
            add(free, {name: -value for name, value in self.world.held().items()})
            for victim in victims:
                pods: Sums = {}
                for pod in self.world.pods_of(victim.uid):
                    add(pods, requests_of(pod))
                charge = victim.charge
                add(free, {name: max(pods.get(name, 0), charge.get(name, 0)) for name in {**pods, **charge}})
            missing = over(demand, free)
            with_it_back = dict(free)
            add(with_it_back, new.charge)
            if missing and not over(demand, with_it_back):
                yield f"{new.name} took room that was being freed for {claimer.name}: {missing}"

    def _taken_back(self, change: Change, old: Seen, new: Seen) -> None:
        """I14: a gang that is taken back is told why, and for which gang."""
        if new.is_components or new.is_terminal or new.obj["metadata"].get("deletionTimestamp"):
            return
        reason = str(new.admission.get("stopping") or "")
        told = [one for one in new.status.get("conditions") or () if one["type"] == "PreemptCandidate"]
        if not reason or not any(one.get("reason") == reason and one.get("message") for one in told):
            self._tell(change, "I14", f"{new.name} was taken back without a cause")
        if reason != "Preempted":
            self._decisions.append((new.uid, reason, "")) if change.revision > self._calm_from else None
            return
        preemptor_uid = str(new.admission.get("stoppingFor") or "")
        if change.revision > self._calm_from:
            again = self.world.gang(preemptor_uid)  # one that had to come back itself may ask again
            self._decisions.append((new.uid, reason, f"{preemptor_uid}/{again.admission.get('epoch') if again else 0}"))
        preemptor = self.world.gang(preemptor_uid)
        if not preemptor_uid:
            self._tell(change, "I14", f"{new.name} was preempted for no gang")
        if preemptor is None:
            return  # deleted meanwhile
        trees = self.world.trees()
        seats = old.admission.get("seats") or {}
        borrows = any(
            (seats[name][0] if isinstance(seats[name], list) else seats[name].get("node"))
            != old.labels.get(name, "default")
            for name in seats
            if name in trees
        )
        recent = self._fresh(change, self._changed.get(preemptor_uid), self._changed.get(new.uid), self._quota_changed)
        if preemptor.priority <= old.priority and not borrows and not recent:
            self._tell(change, "I14", f"{new.name} was preempted by {preemptor.name}, which is not more important")

    def decided_in_calm(self) -> list[str]:
        """I16: with nothing from outside at most two decisions per gang, and no gang goes twice for the same cause.
        I17: no gang passes an equal that came before and still waits."""
        gangs = len(self.world.gangs())
        found = []
        if len(self._decisions) > 2 * gangs:
            found.append(f"I16: {len(self._decisions)} decisions about {gangs} gangs without an outside change")
        preempted = [one for one in self._decisions if one[1] == "Preempted"]
        for one in {one for one in preempted if preempted.count(one) > 1}:
            found.append(f"I16: {one[0]} was preempted twice for {one[2]}")
        for uid, (by, _) in self._passed_over.items():
            gang = self.world.gang(uid)
            if gang is not None and gang.is_waiting:
                found.append(f"I17: {gang.name} still waits, and {by}, its equal, came later and was admitted")
        return found


# --- when all is quiet


def at_rest(world: World, created: set[tuple[str, int, str]], now: int) -> Iterator[str]:
    yield from _whole_or_absent(world, created)
    yield from _published(world)
    yield from _served(world, now)


def _whole_or_absent(world: World, created: set[tuple[str, int, str]]) -> Iterator[str]:
    """I3, I5, I6: everything of an admitted gang was made (others may have removed it since); nothing of any other."""
    known = {one.uid: one for one in world.gangs()}
    for gang in known.values():
        if gang.is_components or gang.obj["metadata"].get("deletionTimestamp"):
            continue
        if gang.is_admitted:
            missing = _not_made(gang, created)
            if missing and gang.status.get("state") == "Running":
                yield f"I3: {gang.name} runs without {missing}"
            if gang.status.get("state") in ("", "Pending"):
                yield f"I3: {gang.name} was admitted and is not started"
        elif gang.is_stopping:
            yield f"I4: {gang.name} is still being taken back"
        elif gang.status.get("state") != "Completed":
            for plural in PLURALS.values():
                for obj in world.all(plural):
                    if gang_of(obj) == gang.uid and (obj.get("status") or {}).get("phase") not in (
                        "Succeeded",
                        "Failed",
                    ):
                        yield f"I5: {plural}/{obj['metadata']['name']} of {gang.name}, which is not admitted, is there"
    for pod in world.live_pods():
        references = pod["metadata"].get("ownerReferences") or ()
        if references and gang_of(pod) not in known:
            yield f"I6: pod {pod['metadata']['name']} outlived its AppWrapper"


def _not_made(gang: Seen, created: set[tuple[str, int, str]]) -> list[tuple[str, str]]:
    """What was admitted with it, of the kinds that histories keep, and never made in this run."""
    return [
        (kind, name)
        for kind, name in gang.components
        if kind in PLURALS and _run(gang, f"{PLURALS[kind]}/{name}") not in created
    ]


def _published(world: World) -> Iterator[str]:
    """I10, I12: what each QuotaSubtree says is used equals the sum over stored admissions."""
    for obj in world.all("quotasubtrees"):
        name = (obj["metadata"].get("labels") or {}).get("tree", "")
        tree = world.trees().get(name)
        if tree is None:
            continue
        told = {child["name"]: child for child in (obj.get("status") or {}).get("children") or ()}
        for child in obj["spec"].get("children") or ():
            if not tree.path(child["name"]):
                continue
            shown = sums((told.get(child["name"], {}).get("allocated") or {}).get("requests"))
            seated = _seated(world, name, tree, child["name"])
            expected = {one: value for one, value in seated.items() if value and one in tree.dimensions}
            if shown != expected:
                yield f"I10: {name}/{child['name']} says {shown} and {expected} is allocated"


def _served(world: World, now: int) -> Iterator[str]:
    """I18: no gang waits that has room on the nodes as they are and quota at its own leaf or above."""
    free: dict[str, Sums] = {
        node["metadata"]["name"]: sums(node["status"].get("allocatable")) for node in world.all("nodes") if usable(node)
    }
    placed = 0
    for pod in world.live_pods():
        node = (pod.get("spec") or {}).get("nodeName")
        if node in free:
            add(free[node], {name: -value for name, value in {**requests_of(pod), "pods": 1}.items()})
        elif not node:
            placed += 1
    promised = any(
        one.is_admitted and over(one.charge, _pods_sum(world, one.uid))
        for one in world.gangs()
        if not one.is_terminal and not world.is_idle(one)
    )
    if promised or placed:
        return  # room is kept for pods that are not there yet; which, is the engine's to know
    for gang in world.gangs():
        pods = gang.pods
        if not gang.is_waiting or pods is None or int(gang.admission.get("resumeAt") or 0) > now:
            continue
        if gang.obj["spec"].get("schedulingSpec", {}).get("nodeSelector"):
            continue
        if packs(pods, list(free.values())) and _has_quota(world, gang) and not _yielded(world, gang):
            yield f"I18: {gang.name} waits although it fits: {gang.status.get('message')}"


def _yielded(world: World, gang: Seen) -> bool:
    """It gave way to one that is still there; it does not take that one's place again."""
    return bool(gang.admission.get("stoppingFor")) and world.gang(gang.admission["stoppingFor"]) is not None


def _has_quota(world: World, gang: Seen) -> bool:
    for name, tree in world.trees().items():
        path = tree.path(gang.labels.get(name, "default"))
        if not path or not tree.is_leaf(path[0]):
            return False
        demand = gang.demand or {}
        fits = [
            not over(_plus(_seated(world, name, tree, node), demand), tree.quotas[node], tree.dimensions)
            for node in path
        ]
        seat = next((index for index in range(len(path)) if all(fits[index:])), None)
        if seat is None or any(node in tree.hard for node in path[:seat]):
            return False
    return True


def _seated(world: World, name: str, tree: Tree, node: str) -> Sums:
    """Everything that sits at or below this node, by the seats that are stored."""
    total: Sums = {}
    for leaf, gang in world.members(name):
        path = tree.path(seat_of(gang, name, leaf)) or tree.path(leaf) or [tree.root]
        if node in path:
            add(total, charge_of(world, gang))
    return total


def charge_of(world: World, gang: Seen) -> Sums:
    """What it was admitted with, or what its pods take where it has grown beyond that."""
    mine = [pod for pod in world.live_pods() if gang_of(pod) == gang.uid and not pod["spec"].get("schedulingGates")]
    if not any(GROWTH in (pod["metadata"].get("annotations") or {}) for pod in mine):
        return gang.charge
    taken: Sums = {}
    for pod in mine:
        add(taken, requests_of(pod))
    return {name: max(gang.charge.get(name, 0), taken.get(name, 0)) for name in {*gang.charge, *taken}}


def seat_of(gang: Seen, name: str, leaf: str) -> str:
    """Where it sits in a tree, as stored."""
    seat = (gang.admission.get("seats") or {}).get(name)
    return str(seat[0] if isinstance(seat, list) else seat.get("node")) if seat else leaf


def _below(world: World, name: str, tree: Tree, node: str) -> Sums:
    """Everything whose leaf is at or below this node, wherever it sits."""
    total: Sums = {}
    for leaf, gang in world.members(name):
        if node in (tree.path(leaf) or [tree.root]):
            add(total, gang.charge)
    return total


def _pods_sum(world: World, uid: str) -> Sums:
    total: Sums = {}
    for pod in world.all("pods"):
        if gang_of(pod) == uid:
            add(total, requests_of(pod))
    return total


def _plus(one: Sums, other: Sums) -> Sums:
    total = dict(one)
    add(total, other)
    return total


def _run(gang: Seen, name: str) -> tuple[str, int, str]:
    epoch = int(gang.admission.get("epoch") or 0)
    return gang.uid, epoch * 1000 + int(gang.status.get("resettingCount") or 0), name


def _lately(change: Change, fact: Change | None, grace: int, *, new: bool = False) -> bool:
    """Did it come so shortly before that the writer of this need not have seen it? New supply excuses nothing."""
    if fact is None:
        return False
    if change.at and fact.at:
        return change.at - fact.at < grace
    return (new or fact.old is not None) and change.revision - fact.revision <= LATE


def _asked(obj: Json) -> object:
    return obj["metadata"].get("generation"), obj["metadata"].get("labels")


def _supply(node: Json) -> object:
    return (node.get("status") or {}).get("allocatable"), usable(node), (node.get("spec") or {}).get("taints")


def _same_shape(one: Seen, other: Seen) -> bool:
    if one.priority != other.priority or one.labels != other.labels or one.pods is None:
        return False
    return one.pods == other.pods and one.obj["spec"].get("schedulingSpec") == other.obj["spec"].get("schedulingSpec")
