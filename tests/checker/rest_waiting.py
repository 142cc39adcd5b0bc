"""Could a queued gang that waits start by the plain rules? I18 at rest, for Kueue's dialect.

Quota, checks, order, preemption allowed, room: each asked of stored objects alone. A rule speaks up only where every
lawful search would have found the same; where some would and some would not, the gang is counted as undecided.
"""

from __future__ import annotations

from tests.checker.rest_could import Could
from tests.checker.rest_found import Found
from tests.checker.rest_gangs import Demand, Gangs, flavors_of, has_ended, is_on_hold, is_suspended
from tests.checker.rest_objects import Json, Rules, Stored, condition, is_leaving, is_true
from tests.checker.rest_quota import (
    Quota,
    describe,
    holds_quota,
    queue_charged,
)
from tests.checker.rest_room import Room

PRIVILEGED = ("strict-priority", "backfill")
"""Policies under which the first in line keeps others from what is free."""


class Waiting:
    def __init__(self, stored: Stored, rules: Rules, room: Room) -> None:
        self.stored = stored
        self.rules = rules
        self.gangs = Gangs(stored, rules)
        self.quota = Quota(stored)
        self.room = room
        self.found = Found()
        self.could = Could(stored, rules, self.gangs, self.quota)

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
                if not self.gangs.why_not_considered(workload):
                    self._without_quota(workload, name, heads)
            if name in heads and self.gangs.why_not_considered(heads[name]) == "job":
                for workload in line:
                    if not self.gangs.why_not_considered(workload):
                        self._undecided(workload, "whether one that is held keeps its strict queue waiting")
        return self.found

    # --- waiting for quota

    def _is_in_line(self, workload: Json) -> bool:
        """In a strict queue the line also has those who are not considered now: they may stand before the others."""
        why = self.gangs.why_not_considered(workload)
        return not why or (why in ("checks", "job") and self._is_strict(self.gangs.cluster_queue(workload) or {}))

    def _is_strict(self, queue: Json) -> bool:
        return (queue.get("spec") or {}).get("queueingStrategy") == "StrictFIFO"

    def _has_topology(self, queue: str) -> bool:
        """Does a flavor of this queue place pods by racks, which these plain rules do not know?"""
        flavors = [self.stored.get("resourceflavors", one) or {} for one in flavors_of(self._queue(queue))]
        return any((one.get("spec") or {}).get("topologyName") for one in flavors)

    def _queue(self, name: str) -> Json:
        return self.stored.get("clusterqueues", name) or {}

    def _without_quota(self, workload: Json, name: str, heads: dict[str, Json]) -> None:
        node = self.quota.queues[name]
        if not self.quota.is_readable(node) or self.quota.lost:
            self._undecided(workload, "what it costs cannot be read")
            return
        if self.rules.blocks_until_ready and any(
            is_true(one, "Admitted") and not is_true(one, "PodsReady") for one in self.quota.holding
        ):
            return
        if _waits_for_clusters(workload) and self.gangs.is_elsewhere(workload):
            return  # the other clusters' room decides, which these objects do not show
        if self._has_topology(name) or any(one.get("topologyRequest") for one in workload["spec"].get("podSets") or ()):
            self._undecided(workload, "whether its topology has places for it")
            return
        beside = self.quota.beside(node)
        others = [one for other, one in heads.items() if other != name and self.quota.queues[other] in beside]
        others = [one for one in others if not self.gangs.why_not_considered(one)]
        outcome, why = self.could.outcome(workload, others)
        text = f"{describe(workload)} waits in {name}"
        if outcome == "starts":
            self._say(workload, f"I18: {text} although its quota is free")
        elif outcome == "evicts":
            self._say(workload, f"I18: {text} although it may take the place of {why}")
        elif outcome == "undecided":
            self._undecided(workload, why)

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
        demands = self._placed(workload)
        verdict = self.room.fits([one.part() for one in demands]) if demands is not None else None
        requests = [one for one in self.stored.all("provisioningrequests") if not is_leaving(one)]
        if verdict is None or (verdict and requests):
            self._undecided(workload, "whether its pods find nodes")
        elif verdict and (self.rules.policy in PRIVILEGED or self.rules.head_hold):
            self._undecided(workload, "the first gang in line may keep room from others")
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
        self.found.doubt(describe(workload), why)


def _waits_for_clusters(workload: Json) -> bool:
    return bool(condition(workload, "QuotaReserved").get("reason") == "WaitingForClusters")
