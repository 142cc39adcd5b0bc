"""Judge one `trace` case: a script of arrivals, cycles and ends.

Step by step, in one-head-per-queue mode, it must go as expected. Traces on which the reference never settles are only
run in our own mode, where they must.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.api.quantity import amounts
from shoal.api.times import parse_time
from shoal.engine.kueue import Kueue, QueueDecisions, Terms
from shoal.engine.model import Gang
from tests.conformance.kueue_given import Case, compared, gang_of, settings_of, told

Admissions = dict[str, Any]


class Replay:
    """The world outside the ledger: it carries out decisions at once and tells the facts that follow."""

    def __init__(self, given: Case, kueue: Kueue) -> None:
        self.kueue = kueue
        self.gangs: dict[str, Gang] = {}
        for entry in given["workloads"]:
            gang = gang_of(entry)
            self.gangs[gang.name] = gang

    def create(self, names: list[str]) -> None:
        for name in names:
            self.tell(self.gangs[name])

    def finish(self, names: list[str]) -> None:
        for name in names:
            self.tell(msgspec.structs.replace(self.gangs[name], state="finished"))

    def tell(self, gang: Gang) -> None:
        self.gangs[gang.name] = gang
        self.kueue.update(gang)

    def carry_out(self, decisions: QueueDecisions, now: int) -> tuple[Admissions, dict[str, str]]:
        """Reservations are stored; victims give back their quota and queue again."""
        names = {gang.key: gang.name for gang in self.gangs.values()}
        admitted, preempted = {}, {}
        for entry in decisions.reserved:
            gang = self.gangs[names[entry.gang]]
            terms = Terms(cluster_queue=entry.cluster_queue)
            self.tell(
                msgspec.structs.replace(
                    gang, state="admitted", admitted_at=now, assignment=entry.assignment, details={"kueue": terms}
                )
            )
            parts = [(part.name, part.count, dict(part.flavors), dict(part.usage)) for part in entry.assignment]
            admitted[gang.name] = (entry.cluster_queue, parts)
        for victim in decisions.evicted:
            gang = self.gangs[names[victim.gang]]
            preempted[gang.name] = victim.reason
            self.tell(
                msgspec.structs.replace(gang, state="waiting", admitted_at=0, assignment=(), details={"kueue": Terms()})
            )
        return admitted, preempted

    def running(self) -> list[str]:
        return sorted(name for name, gang in self.gangs.items() if gang.state == "admitted")


def trace_differences(given: Case, expect: Case, *, thrash: bool = False) -> list[str]:
    found = unsettled(given)
    if found or thrash:
        return found
    replay = Replay(given, told(given, settings_of(given, exact=True)))
    for number, (step, wanted) in enumerate(zip(given["script"], expect["steps"], strict=True)):
        if step["op"] == "create":
            replay.create(step["workloads"])
        elif step["op"] == "finish":
            replay.finish(step["workloads"])
        else:
            now = parse_time(step["time"])
            admitted, preempted = replay.carry_out(replay.kueue.cycle(now), now)
            found += compared(f"step {number} admitted", admitted, _admissions(wanted.get("admitted") or {}))
            found += compared(f"step {number} preempted", preempted, wanted.get("preempted") or {})
        if found:
            return found  # what follows would only repeat it
    return compared("runningAtEnd", replay.running(), sorted(expect["runningAtEnd"]))


def unsettled(given: Case) -> list[str]:
    """Run the script in our own mode; after each outside change decisions must come to rest within a bound."""
    replay = Replay(given, told(given, settings_of(given)))
    bound = 2 * len(replay.gangs)
    for number, step in enumerate(given["script"]):
        if step["op"] == "create":
            replay.create(step["workloads"])
        elif step["op"] == "finish":
            replay.finish(step["workloads"])
        else:
            now = parse_time(step["time"])
            for _ in range(bound + 1):
                decisions = replay.kueue.plan(now)
                if decisions.warnings or not (decisions.reserved or decisions.evicted):
                    break
                replay.carry_out(decisions, now)
            else:
                return [f"step {number}: still deciding after {bound} rounds without outside change"]
            if decisions.warnings:
                return [f"step {number}: {decisions.warnings[0]}"]
    return []


def _admissions(expected: dict[str, Any]) -> Admissions:
    return {
        name: (
            entry["clusterQueue"],
            [
                (part["name"], part["count"], part.get("flavors") or {}, amounts(part.get("resourceUsage")))
                for part in entry["podSets"]
            ],
        )
        for name, entry in expected.items()
    }
