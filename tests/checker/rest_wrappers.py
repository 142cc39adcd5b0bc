"""AppWrappers at rest: could one that waits start, does one that runs have its pods, are quota trees booked right?"""

from __future__ import annotations

from collections.abc import Iterator

from tests.checker.gang_rules import _has_quota, _published, _yielded
from tests.checker.gang_world import Seen, World
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
    uid_of,
)
from tests.checker.rest_room import Part, Room
from tests.checker.rest_waiting import PRIVILEGED, Found

SUPPLY = "shoal.dev/supply"
QUEUE = "kueue.x-k8s.io/queue-name"


class Wrappers:
    def __init__(self, stored: Stored, rules: Rules) -> None:
        self.stored = stored
        self.rules = rules
        self.world = World()
        for plural, found in stored.objects.items():
            kept = self.world.objects.setdefault(plural, {})
            for one in found:
                kept[one["metadata"].get("namespace", ""), one["metadata"]["name"]] = one
        self.gangs = [one for one in self.world.gangs() if self._is_readable(one)]
        self.everything_promised: list[Part] = []
        """By this dialect and the other; set once both are known."""

    def _is_readable(self, gang: Seen) -> bool:
        return isinstance(gang.obj.get("spec"), dict) and not label(gang.obj, QUEUE)

    def promised(self) -> list[Part]:
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
                found.append(Part({}, missing, 1))
        return found

    def _gang_of(self, pod: Json) -> set[str]:
        marked = annotation(pod, "shoal.dev/gang-uid")
        return {*self.stored.line_of(pod), *([marked] if marked else [])}

    def judge(self, room: Room) -> Found:
        found = Found()
        waiting = [one for one in self.gangs if one.is_waiting]
        found.judged = len(self.gangs)
        if self.rules.policy in PRIVILEGED:
            return found
        leaving = any(one.is_stopping for one in self.gangs)
        if any(one.is_stopping and one.admission.get("stoppingFor") for one in self.gangs):
            return found  # room that is being freed is somebody's already
        for gang in waiting:
            supply = annotation(gang.obj, SUPPLY) or self.rules.wrapper_supply
            pods = self._pods(gang)
            if pods is None or not self._is_considered(gang):
                continue
            if not _has_quota(self.world, gang) or _yielded(self.world, gang):
                continue
            verdict = self._room(gang, room).fits(pods) if supply == "fit" else None
            if verdict is None and supply == "fit":
                found.undecided.append(f"AppWrapper {gang.name}: whether its pods find nodes")
            if not verdict:
                continue
            if leaving and self.world.trees():
                continue  # quota that becomes free may be promised
            found.says.append(f"I18: AppWrapper {gang.name} waits although it fits ({gang.status.get('message')})")
        return found

    def _is_considered(self, gang: Seen) -> bool:
        spec = gang.obj["spec"]
        resumes = int(gang.admission.get("resumeAt") or 0)
        if resumes and (not self.rules.now or resumes > self.rules.now):
            return False
        if any(
            one["metadata"].get("namespace") == gang.obj["metadata"].get("namespace")
            for one in self.stored.all("limitranges")
        ):
            return False
        if spec.get("managedBy") not in (None, "", "workload.codeflare.dev/appwrapper"):
            return False
        told = gang.status.get("explanation") or ""
        return '"bad-fact"' not in told and not _is_refused(gang.status)

    def _room(self, gang: Seen, room: Room) -> Room:
        selector = (gang.obj["spec"].get("schedulingSpec") or {}).get("nodeSelector")
        return Room(self.stored, self.everything_promised, selector) if selector else room

    def _pods(self, gang: Seen) -> list[Part] | None:
        """Its pods, where it wraps nothing but pods and what has none."""
        if gang.is_components or gang.pods is None:
            return None
        found = []
        for item in (gang.obj["spec"].get("resources") or {}).get("GenericItems") or ():
            template = item.get("generictemplate") or {}
            if item.get("custompodresources") or (
                template.get("kind") == "Pod" and not isinstance(template.get("spec"), dict)
            ):
                return None
            if template.get("kind") == "Pod":
                found.append(Part(template["spec"], self.stored.requests_of(template["spec"]), 1))
        return found

    def books(self) -> Iterator[str]:
        yield from _published(self.world)


def _is_refused(status: Json) -> bool:
    """It was told that it cannot be dispatched as it is; its owner has to change something."""
    return any(one.get("reason") in REFUSALS and one.get("status") == "True" for one in status.get("conditions") or ())


REFUSALS = ("Unauthorized", "InvalidSpec", "Refused")
