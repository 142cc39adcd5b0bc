"""AppWrappers at rest: could one that waits start, does one that runs have its pods, are quota trees booked right?"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.errors import BadInput
from tests.checker.gang_rules import _published, charge_of, seat_of
from tests.checker.gang_world import Seen, World
from tests.checker.preemptors import mark_of
from tests.checker.rest_found import Found
from tests.checker.rest_gangs import leaves_alone
from tests.checker.rest_objects import (
    Json,
    Rules,
    Stored,
    Sums,
    add,
    annotation,
    is_bound,
    is_leaving,
    is_live,
    label,
    moment,
    sums,
    times,
    uid_of,
)
from tests.checker.rest_pods import Counting, Unknown, declared_at, pods_of, submitter_of
from tests.checker.rest_room import Part, Room
from tests.checker.rest_trees import Seats, Sitting

SUPPLY = "shoal.dev/supply"
QUEUE = "kueue.x-k8s.io/queue-name"
STRICT, BACKFILL = "strict-priority", "backfill"
WITHOUT_PREEMPTION = ("fifo", "priority-slope")


class Wrappers:
    def __init__(self, stored: Stored, rules: Rules) -> None:
        self.stored = stored
        self.rules = rules
        self.world = World()
        for plural, found in stored.objects.items():
            kept = self.world.objects.setdefault(plural, {})
            for one in found:
                kept[one["metadata"].get("namespace", ""), one["metadata"]["name"]] = one
        everyone = [one for one in self.world.gangs() if not label(one.obj, QUEUE)]
        self.gangs = [one for one in everyone if isinstance(one.obj.get("spec"), dict)]
        self.unreadable = [one for one in everyone if one not in self.gangs]
        self.everything_promised: list[tuple[str, Part]] = []
        """By UID of the gang, of this dialect and the other; set once both are known."""

    def promised(self) -> list[tuple[str, Part]]:
        """What admitted AppWrappers still have to get. One that was deleted gets nothing any more."""
        found = []
        for gang in self.gangs:
            if is_leaving(gang.obj) or not gang.is_admitted or self.world.is_idle(gang):
                continue
            there: Sums = {}
            for pod in self.stored.all("pods"):
                if uid_of(gang.obj) in self._gang_of(pod) and (is_bound(pod) or not is_live(pod)):
                    add(there, self.stored.requests_of(pod["spec"]))
            for lost in self.world._lost(gang):
                add(there, self.stored.requests_of(lost.get("spec") or {}))
            missing = {name: value - there.get(name, 0) for name, value in gang.charge.items()}
            missing = {name: value for name, value in missing.items() if value > 0}
            if missing:
                found.append((gang.uid, Part({}, missing, 1)))
        return found

    def _gang_of(self, pod: Json) -> set[str]:
        marked = annotation(pod, "shoal.dev/gang-uid")
        return {*self.stored.line_of(pod), *([marked] if marked else [])}

    def judge(self, room: Room) -> Found:
        found = Found(judged=len(self.gangs) + len(self.unreadable))
        for gang in self.unreadable:
            found.doubt(f"AppWrapper {gang.name}", "its spec cannot be read")
        waiting = [one for one in self.gangs if one.is_waiting and self._is_considered(one)]
        for gang in waiting:
            if why := self._judge(gang, room, found, waiting):
                found.doubt(f"AppWrapper {gang.name}", why)
        return found

    def _judge(self, gang: Seen, room: Room, found: Found, waiting: list[Seen]) -> str:
        """Answers what cannot be decided, if so."""
        if self.rules.policy == STRICT and self._stands_behind(gang, waiting):
            return ""  # not before the first has started
        try:
            parts = self.parts(gang)
        except Unknown as error:
            return f"what pods a {error} has"
        except (BadInput, ArithmeticError, AttributeError, TypeError, ValueError, KeyError):
            return "what its pods ask for"
        if not all(self._leaves_alone(gang, part) for part in parts):
            return "limits of its namespace"
        demand: Sums = {}
        for part in parts:
            add(demand, times(part.requests, part.count))
        victims = self._victims(gang, demand)
        if victims is None:
            return ""  # no seat in a quota tree, whichever gangs leave
        if isinstance(victims, str):
            return victims
        if victims:
            return self._by_pushing_out(gang, parts, room, found, victims)
        fits = self._fits(gang, parts, room, [])
        if fits is False:
            return self._by_preemption(gang, parts, room, found)
        return self._starts(gang, found, waiting) if fits else "whether its pods find nodes"

    def _starts(self, gang: Seen, found: Found, waiting: list[Seen]) -> str:
        """It has quota and room. Is either perhaps kept for another?"""
        if any(
            one.is_stopping and one.admission.get("stoppingFor") not in (None, gang.uid, mark_of(gang.uid))
            for one in self.gangs
        ):
            return "room is being freed for another"
        if (above := self.world.gang(gang.admission.get("stoppingFor") or "")) is not None and not above.is_admitted:
            return "it made way for one that still waits"
        if self.rules.policy == BACKFILL and self._stands_behind(gang, waiting):
            return "room is kept for the first in line"
        if self.rules.head_hold and self._stands_behind(gang, waiting):
            return "the first in line may hold others up"
        if ":" in self.rules.policy:
            return "a policy of one's own"
        if any(one.is_stopping for one in self.gangs) and self.world.trees():
            return "quota that becomes free may be promised"
        found.says.append(f"I18: AppWrapper {gang.name} waits although it fits ({gang.status.get('message')})")
        return ""

    # --- order

    def order(self, gang: Seen) -> tuple[object, ...]:
        """Plainly: priority, then who was seen first."""
        first = moment(gang.first) or moment(gang.obj["metadata"].get("creationTimestamp"))
        priority = 0 if self.rules.policy == "fifo" else -gang.priority
        return (priority, first, moment(gang.obj["metadata"].get("creationTimestamp")), gang.name, gang.uid)

    def _stands_behind(self, gang: Seen, waiting: list[Seen]) -> bool:
        return any(self.order(one) < self.order(gang) for one in waiting if one.uid != gang.uid)

    # --- quota and room

    def _victims(self, gang: Seen, demand: Sums) -> list[Seen] | str | None:
        """Who has to leave so that every quota tree has a seat; None: there is none. A text: that is not decided."""
        trees = self.world.trees() if self.rules.wrapper_quota else {}
        found: list[str] = []
        for name, tree in trees.items():
            sitting = {}
            for leaf, one in self.world.members(name):
                seat = (one.admission.get("seats") or {}).get(name)
                order = int(seat[1] if isinstance(seat, list) and len(seat) > 1 else 0) if seat else 0
                at = seat_of(one, name, leaf)
                at = at if tree.path(at) else leaf if tree.path(leaf) else tree.root
                sitting[one.uid] = Sitting(one.uid, at, order, charge_of(self.world, one), one.priority)
            gone = Seats(tree, sitting, self.rules.preemption).find(
                gang.uid, gang.labels.get(name, "default"), demand, gang.priority
            )
            if gone is None:
                return None
            found += [uid for uid in gone if uid not in found]
        if found and len(trees) > 1:
            return "which gangs it may push out of several quota trees"
        return [one for one in self.gangs if one.uid in found]

    def _by_pushing_out(self, gang: Seen, parts: list[Part], room: Room, found: Found, victims: list[Seen]) -> str:
        """Quota is there once others have left. Is there room then, and may it push them out?"""
        fits = self._fits(gang, parts, room, victims)
        if fits is False:
            return ""
        if fits is None:
            return "whether its pods find nodes when others leave"
        if any(one.is_stopping for one in self.gangs):
            return "somebody is leaving already"
        if any(one.admission.get("stoppingFor") for one in self.gangs):
            return "it depends on which gang once made way for which"
        names = ", ".join(sorted(one.name for one in victims))
        found.says.append(f"I18: AppWrapper {gang.name} waits although it may take the place of {names}")
        return ""

    def _fits(self, gang: Seen, parts: list[Part], room: Room, gone: list[Seen]) -> bool | None:
        selector = (gang.obj["spec"].get("schedulingSpec") or {}).get("nodeSelector")
        if selector or gone:
            uids = {one.uid for one in gone}
            pods = [pod for pod in self.stored.all("pods") if not uids & self._gang_of(pod)]
            promised = [part for uid, part in self.everything_promised if uid not in uids]
            room = Room(Stored({**self.stored.objects, "pods": pods}), promised, selector)
        supply = annotation(gang.obj, SUPPLY) or self.rules.wrapper_supply
        return room.fits(parts) if supply == "fit" else room.fits_in_sums(parts)

    def _by_preemption(self, gang: Seen, parts: list[Part], room: Room, found: Found) -> str:
        """There is no room. May it take the place of others?"""
        if not self.rules.preemption or self.world.trees() or self.rules.policy in WITHOUT_PREEMPTION:
            return ""
        lower = [one for one in self.gangs if one.is_admitted and one.priority < gang.priority]
        fits = self._fits(gang, parts, room, lower) if lower else False
        if fits is None:
            return "whether its pods find nodes when others leave"
        if not fits:
            return ""
        if any(one.is_stopping for one in self.gangs):
            return "somebody is leaving already"
        if ":" in self.rules.policy:
            return "a policy of one's own"
        names = ", ".join(sorted(one.name for one in lower))
        found.says.append(f"I18: AppWrapper {gang.name} waits although it may take the place of {names}")
        return ""

    def _is_considered(self, gang: Seen) -> bool:
        spec = gang.obj["spec"]
        resumes = int(gang.admission.get("resumeAt") or 0)
        if resumes and (not self.rules.now or resumes > self.rules.now):
            return False
        if spec.get("managedBy") not in (None, "", "workload.codeflare.dev/appwrapper"):
            return False
        told = gang.status.get("explanation") or ""
        return '"bad-fact"' not in told and not _is_refused(gang.status)

    def _leaves_alone(self, gang: Seen, part: Part) -> bool:
        home = gang.obj["metadata"].get("namespace")
        limits = [one for one in self.stored.all("limitranges") if one["metadata"].get("namespace") == home]
        return all(
            leaves_alone(limit, part.spec) for one in limits for limit in (one.get("spec") or {}).get("limits") or ()
        )

    def parts(self, gang: Seen) -> list[Part]:
        """Its pods. Raises Unknown."""
        spec, counting = gang.obj["spec"], self.rules.counting
        found: list[Part] = []
        for component in spec.get("components") or ():
            found += [self._part(*one) for one in self._component(component, counting)]
        resources = spec.get("resources") or {}
        for item in [*(resources.get("GenericItems") or ()), *(resources.get("Items") or ())]:
            template = item.get("generictemplate") or item.get("template") or {}
            declared = item.get("custompodresources") or ()
            pods = pods_of(template, counting) if not declared else _or_nothing(template, counting)
            if not declared:
                found += [self._part(*one) for one in pods]
            for index, one in enumerate(declared):
                limits, requests = sums(one.get("limits")), sums(one.get("requests"))
                asked = {name: requests.get(name) or limits.get(name, 0) for name in {**limits, **requests}}
                if index >= len(pods) and self._has_taints:
                    raise Unknown("kind that is not read")  # which taints its pods tolerate
                placed = pods[index][0] if index < len(pods) else {}
                found.append(Part(_placed(placed), asked, int(one.get("replicas") or 0)))
        return found

    def _component(self, component: Json, counting: Counting) -> list[tuple[Json, int]]:
        """As declared by path; else as its kind has them."""
        template, declared = component.get("template") or {}, component.get("podSets") or ()
        if not declared:
            return pods_of(template, counting)
        found = submitter_of(template)
        for one in declared:
            spec = declared_at(template, one["path"])
            if spec is None:
                raise Unknown("path that leads nowhere")
            found.append((spec, int(one.get("replicas", 1))))
        return found

    @property
    def _has_taints(self) -> bool:
        return any((node.get("spec") or {}).get("taints") for node in self.stored.all("nodes"))

    def _part(self, spec: Json, count: int) -> Part:
        return Part(spec, self.stored.requests_of(spec), count)

    def books(self) -> Iterator[str]:
        yield from _published(self.world)


def _is_refused(status: Json) -> bool:
    """It was told that it cannot be dispatched as it is; its owner has to change something."""
    return any(one.get("reason") in REFUSALS and one.get("status") == "True" for one in status.get("conditions") or ())


def _or_nothing(template: Json, counting: Counting) -> list[tuple[Json, int]]:
    try:
        return pods_of(template, counting)
    except Unknown:
        return []


def _placed(spec: Json) -> Json:
    """Where the pods may go, whatever they ask for."""
    names = ("nodeSelector", "affinity", "tolerations", "hostNetwork", "schedulingGates")
    return {name: spec[name] for name in names if name in spec}


REFUSALS = ("Unauthorized", "InvalidSpec", "Refused")
