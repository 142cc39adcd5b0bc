"""Could a queued gang that waits start by the plain rules? I18 at rest, for Kueue's dialect.

Quota, checks, order, preemption allowed, room: each asked of stored objects alone. A rule speaks up only where every
lawful search would have found the same; where some would and some would not, the gang is counted as undecided.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.checker.rest_gangs import Demand, Gangs, has_ended, is_on_hold, is_suspended
from tests.checker.rest_match import fits_flavor
from tests.checker.rest_objects import Json, Rules, Stored, is_leaving, is_true, uid_of
from tests.checker.rest_quota import (
    Node,
    Quota,
    Usage,
    charge_of,
    describe,
    holds_quota,
    preemptors_of,
    queue_charged,
)
from tests.checker.rest_room import Room

MOST_CHOICES = 200
PRIVILEGED = ("strict-priority", "backfill")
"""Policies under which the first in line keeps others from what is free."""


@dataclass
class Found:
    says: list[str] = field(default_factory=list)
    judged: int = 0
    undecided: list[str] = field(default_factory=list)


class Waiting:
    def __init__(self, stored: Stored, rules: Rules, room: Room) -> None:
        self.stored = stored
        self.rules = rules
        self.gangs = Gangs(stored, rules)
        self.quota = Quota(stored)
        self.room = room
        self.found = Found()
        self._known: dict[object, bool | None] = {}

    def judge(self) -> Found:
        lines: dict[str, list[Json]] = {}
        for workload in self.gangs.all:
            self.found.judged += 1
            if holds_quota(workload):
                self._with_quota(workload)
            elif (queue := self.gangs.cluster_queue(workload)) is not None and self._is_in_line(workload):
                lines.setdefault(queue["metadata"]["name"], []).append(workload)
        heads = {
            name: min(line, key=self.gangs.order)
            for name, line in lines.items()
            if self._is_strict(self.stored.get("clusterqueues", name) or {})
        }
        for name, line in lines.items():
            for workload in [heads[name]] if name in heads else line:
                self._without_quota(workload, name, heads)
        return self.found

    # --- waiting for quota

    def _is_in_line(self, workload: Json) -> bool:
        """In a strict queue the line also has those who are not considered now: they may stand before the others."""
        why = self.gangs.why_not_considered(workload)
        return not why or (
            why in ("namespace", "checks", "job") and self._is_strict(self.gangs.cluster_queue(workload) or {})
        )

    def _is_strict(self, queue: Json) -> bool:
        return (queue.get("spec") or {}).get("queueingStrategy") == "StrictFIFO"

    def _without_quota(self, workload: Json, name: str, heads: dict[str, Json]) -> None:
        if self.gangs.why_not_considered(workload):
            return
        node = self.quota.queues[name]
        demands = self.gangs.demands(workload)
        others = [
            one for other, one in heads.items() if other != name and self.quota.queues[other] in self.quota.beside(node)
        ]
        if demands is None or not self.quota.is_readable(node) or self.quota.lost:
            self._undecided(workload, "what it costs cannot be read")
            return
        if self._is_unsettled(node):
            return  # somebody leaves this very tree: whose room that becomes is decided already, or when it is there
        if self.rules.blocks_until_ready and any(
            is_true(one, "Admitted") and not is_true(one, "PodsReady") for one in self.quota.holding
        ):
            return
        key = (name, repr([(one.count, one.least, one.requests, one.spec) for one in demands]))
        if key not in self._known:
            self._known[key] = self._fits(node, demands)
        verdict = self._known[key]
        text = f"{describe(workload)} waits in {name}"
        if verdict:
            if others:
                return  # the head of a strict queue keeps from others what it waits for
            self._say(workload, f"I18: {text} although its quota is free")
        elif verdict is None:
            self._undecided(workload, "some choice of flavors fits")
        elif not others and not self.rules.fair_sharing:
            self._preemption(workload, node, demands, text)

    def _is_unsettled(self, node: Node) -> bool:
        names = {one.name for one in self.quota.beside(node)}
        return any(is_true(one, "Evicted") and queue_charged(one) in names for one in self.quota.holding)

    def _fits(self, node: Node, demands: list[Demand]) -> bool | None:
        whole = self._choices(node, [(one, one.count) for one in demands])
        if whole is False and any(one.least < one.count for one in demands):
            return self._choices(node, [(one, one.least) for one in demands])
        return whole

    def _choices(self, node: Node, wanted: list[tuple[Demand, int]]) -> bool | None:
        """True: whichever fitting flavor each pod set takes first, all find one. None: that depends."""
        slots = []
        for demand, count in wanted:
            options = self._options(node, demand, count)
            if options is None:
                return None
            slots += options
        left = [MOST_CHOICES]

        def walk(index: int, used: Usage) -> bool | None:
            if index == len(slots):
                return True
            left[0] -= 1
            if left[0] < 0:
                return None
            verdicts = []
            for option in slots[index]:
                after = dict(used)
                for at, value in option.items():
                    after[at] = after.get(at, 0) + value
                if all(after[at] <= max(0, node.available(at)) for at in option):
                    verdicts.append(walk(index + 1, after))
            if not verdicts or (all(one is False for one in verdicts)):
                return False
            return True if all(verdicts) else None

        return walk(0, {})

    def _options(self, node: Node, demand: Demand, count: int) -> list[list[Usage]] | None:
        """Per group of resources, what the pod set would take of each flavor that may be used. None: not readable."""
        queue = self.stored.get("clusterqueues", node.name) or {}
        asked = {name: value * count for name, value in demand.requests.items()}
        groups = (queue.get("spec") or {}).get("resourceGroups") or ()
        if any("pods" in (group.get("coveredResources") or ()) for group in groups):
            asked["pods"] = count
        found: list[list[Usage]] = []
        covered: set[str] = set()
        for group in groups:
            names = [name for name in asked if name in (group.get("coveredResources") or ())]
            covered.update(names)
            if not names:
                continue
            options = []
            for entry in group.get("flavors") or ():
                flavor = self.stored.get("resourceflavors", entry["name"])
                may = fits_flavor(demand.spec, flavor) if flavor is not None else False
                if may is None:
                    return None
                if may:
                    options.append({(entry["name"], name): asked[name] for name in names})
            found.append(options)
        if any(value > 0 and name not in covered for name, value in asked.items()):
            return [[]]
        return found

    # --- who may be made to leave

    def _preemption(self, workload: Json, node: Node, demands: list[Demand], text: str) -> None:
        """One flavor each, and no more than the queue's own quota: then policy alone says who has to leave."""
        policies = ((self.stored.get("clusterqueues", node.name) or {}).get("spec") or {}).get("preemption") or {}
        own, reclaim = policies.get("withinClusterQueue") or "Never", policies.get("reclaimWithinCohort") or "Never"
        if own == reclaim == "Never":
            return
        wanted: Usage = {}
        for demand in demands:
            for options in self._options(node, demand, demand.count) or [[]]:
                if len(options) != 1:
                    return
                for at, value in options[0].items():
                    wanted[at] = wanted.get(at, 0) + value
        if any(value > node.nominal(at) for at, value in wanted.items()):
            return
        spared = self._spared(workload)
        mine = self._victims(workload, node, own, spared)
        if mine and self._fits_without(node, wanted, [(node, charge_of(one)) for one in mine]):
            names = ", ".join(sorted(describe(one) for one in mine))
            self._say(workload, f"I18: {text} although it may take the place of {names}")
            return
        flat = node.parent is not None and node.parent.parent is None
        if (
            reclaim == "Never"
            or not flat
            or any(node.usage(at) + value > node.nominal(at) for at, value in wanted.items())
        ):
            return
        if any(
            self.gangs.problems(self.stored.get("clusterqueues", one.name) or {}) for one in self.quota.beside(node)
        ):
            return
        relieved = []
        for other in self.quota.beside(node):
            if other is node or all(other.usage(at) <= other.subtree(at) for at in wanted):
                continue
            given: Usage = {}
            for one in self._victims(workload, other, reclaim, spared):
                for at, value in charge_of(one).items():
                    given[at] = given.get(at, 0) + value
            over = {at: other.usage(at) - other.subtree(at) for at in wanted}
            relieved.append((other, {at: min(value, max(0, over[at])) for at, value in given.items() if at in over}))
        if relieved and self._fits_without(node, wanted, relieved):
            names = ", ".join(sorted(other.name for other, _ in relieved))
            self._say(workload, f"I18: {text} although it may reclaim its own quota from {names}")

    def _victims(self, workload: Json, node: Node, policy: str, spared: set[str]) -> list[Json]:
        if policy == "Never":
            return []
        priority = int((workload.get("spec") or {}).get("priority") or 0)
        found = []
        for one in self.quota.holding:
            theirs = int((one.get("spec") or {}).get("priority") or 0)
            allowed = policy == "Any" or theirs < priority
            if queue_charged(one) == node.name and allowed and uid_of(one) not in spared:
                found.append(one)
        return found

    def _spared(self, workload: Json) -> set[str]:
        """Whom it had to make way for, and who made way for it: nobody goes in circles."""
        by = {uid_of(one): preemptors_of(one) for one in self.stored.all("workloads")}
        found: set[str] = set()
        ask = [uid_of(workload)]
        while ask:
            for uid in by.get(ask.pop(), set()) - found:
                found.add(uid)
                ask.append(uid)
        return found | {uid for uid, whom in by.items() if uid_of(workload) in whom}

    def _fits_without(self, node: Node, wanted: Usage, leaving: list[tuple[Node, Usage]]) -> bool:
        for other, usage in leaving:
            for at, value in usage.items():
                other.own[at] = other.own.get(at, 0) - value
        fits = all(value <= max(0, node.available(at)) for at, value in wanted.items())
        for other, usage in leaving:
            for at, value in usage.items():
                other.own[at] += value
        return fits

    # --- with quota

    def _with_quota(self, workload: Json) -> None:
        text = describe(workload)
        job = self.gangs.job_of(workload)
        if is_true(workload, "Evicted"):
            return  # I11 and I5 judge how it leaves
        if is_true(workload, "Admitted"):
            if job is not None and self._owes_a_start(workload, job):
                self._say(workload, f"I3: {text} is admitted and not started")
            return
        if job is not None and (is_leaving(job) or has_ended(job) or is_on_hold(job)):
            return
        if not self.gangs.checks_ready(workload) or self._is_stopped(workload):
            return
        if self.rules.supply == "off" or self.gangs.is_elsewhere(workload):
            self._say(workload, f"I18: {text} has quota and all its checks, and is not admitted")
            return
        if self.rules.policy in PRIVILEGED:
            return  # whoever is first may keep room from others
        demands = self._placed(workload)
        verdict = self.room.fits([one.part() for one in demands]) if demands is not None else None
        requests = [one for one in self.stored.all("provisioningrequests") if not is_leaving(one)]
        if verdict is None or (verdict and requests):
            self._undecided(workload, "whether its pods find nodes")
        elif verdict:
            self._say(workload, f"I18: {text} has quota, checks and room, and is not admitted")

    def _owes_a_start(self, workload: Json, job: Json) -> bool:
        active = (workload.get("spec") or {}).get("active") is not False
        stays = active and not is_leaving(job) and not has_ended(job)
        return stays and is_suspended(job) and not self.gangs.is_elsewhere(workload)

    def _is_stopped(self, workload: Json) -> bool:
        queue = self.stored.get("clusterqueues", queue_charged(workload))
        local = self.gangs.local_queue(workload)
        return any(((one or {}).get("spec") or {}).get("stopPolicy") not in (None, "None") for one in (queue, local))

    def _placed(self, workload: Json) -> list[Demand] | None:
        """Its pods as they will be: with what its flavors ask of nodes, and as many as it was given."""
        demands = self.gangs.demands(workload)
        if demands is None:
            return None
        given = {one["name"]: one for one in workload["status"]["admission"].get("podSetAssignments") or ()}
        found = []
        for one in demands:
            part = given.get(one.name) or {}
            selector = dict(one.spec.get("nodeSelector") or {})
            tolerations = list(one.spec.get("tolerations") or ())
            for name in set((part.get("flavors") or {}).values()):
                flavor = (self.stored.get("resourceflavors", name) or {}).get("spec") or {}
                selector.update(flavor.get("nodeLabels") or {})
                tolerations += flavor.get("tolerations") or ()
            spec = {**one.spec, "nodeSelector": selector, "tolerations": tolerations}
            count = int(part.get("count", one.count))
            found.append(Demand(one.name, count, count, spec, one.requests))
        return found

    # --- telling

    def _say(self, workload: Json, text: str) -> None:
        told = [one for one in (workload.get("status") or {}).get("conditions") or () if one.get("status") == "False"]
        why = "; ".join(
            f"{one['type']}: {one.get('message')}" for one in told if one["type"] in ("QuotaReserved", "Admitted")
        )
        self.found.says.append(f"{text} ({why})" if why else text)

    def _undecided(self, workload: Json, why: str) -> None:
        self.found.undecided.append(f"{describe(workload)}: {why}")
