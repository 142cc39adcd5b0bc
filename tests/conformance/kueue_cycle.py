"""Judge one `cycle` case: exactly one cycle, one head per queue, then everything a client could see."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from shoal.api.quantity import amounts
from shoal.api.times import parse_time
from shoal.engine.kueue import Kueue, QueueDecisions, Wait
from shoal.engine.kueue.topology import read_placement
from shoal.engine.model import Gang
from tests.conformance.kueue_given import Case, compared, gang_of, rules_of, settings_of, told


def cycle_differences(given: Case, expect: Case) -> list[str]:
    kueue = told(given, settings_of(given, exact=True))
    gangs = {}
    for entry in given["workloads"]:
        gang = gang_of(entry, rules_of(given))
        gangs[gang.key] = gang
        kueue.update(gang)
    decisions = kueue.cycle(parse_time(given["now"]))
    names = {key: f"{gang.namespace}/{gang.name}" for key, gang in gangs.items()}
    if given.get("statusWriteFails"):
        decisions = _undone(kueue, decisions, gangs, waits=bool(expect["pending"]))

    found = compared(
        "newlyReserved", sorted(names[e.gang] for e in decisions.reserved), sorted(expect["newlyReserved"])
    )
    reserved = _reserved(kueue, names)
    if "topologies" in given:  # these cases list only what the cycle itself reserved, or gave other places
        listed = {*expect["newlyReserved"], *expect["reservedAfter"], *(names[e.gang] for e in decisions.placed)}
        reserved = {name: entry for name, entry in reserved.items() if name in listed}
    found += compared("reservedAfter", reserved, _expected_reserved(expect["reservedAfter"]))
    preempted = {
        names[entry.gang]: {"evicted": "Preempted", "message": entry.message, "reason": entry.reason}
        for entry in decisions.evicted
    }
    preempted |= {
        names[entry.gang]: {"evicted": "NodeFailures", "message": entry.message, "reason": None}
        for entry in decisions.displaced
    }
    found += compared("preempted", preempted, expect["preempted"])
    pending = {names[entry.gang]: {"message": entry.message, "reason": entry.reason} for entry in decisions.waiting}
    found += compared("pending", pending, expect["pending"])
    found += compared("active", _queued(kueue, names, inadmissible=False), _sorted(expect["active"]))
    found += compared("inadmissible", _queued(kueue, names, inadmissible=True), _sorted(expect["inadmissible"]))
    found += compared("events", _events(decisions, names, given), _counted(expect["events"]))
    if "skippedPreemptions" in expect:
        skipped = {name: count for name, count in expect["skippedPreemptions"].items() if count}
        found += compared("skippedPreemptions", decisions.skipped_preemptions, skipped)
    return found


def _undone(kueue: Kueue, decisions: QueueDecisions, gangs: dict[str, Gang], *, waits: bool) -> QueueDecisions:
    """The server refused the writes: the facts stay as they were, and telling them again undoes the reservations. A
    gang that should have left for want of a node waits for one, or is gone: cases do not tell which error it was, and
    there are two with the same input (`waits` tells them apart)."""
    for entry in decisions.reserved:
        kueue.update(gangs[entry.gang])
    left = tuple(
        Wait(gang=entry.gang, uid=entry.uid, cluster_queue="", reason="SecondPassFailed", message=entry.why)
        for entry in decisions.displaced
        if waits
    )
    return msgspec.structs.replace(decisions, reserved=(), displaced=(), waiting=decisions.waiting + left)


def _reserved(kueue: Kueue, names: dict[str, str]) -> dict[str, Any]:
    return {
        names[key]: (
            member.queue,
            [
                (part.name, part.count, dict(part.flavors), dict(part.usage), part.topology, part.delayed_topology)
                for part in member.assignment
            ],
        )
        for key, member in kueue.members.items()
        if member.holds
    }


def _expected_reserved(expected: dict[str, Any]) -> dict[str, Any]:
    return {
        name: (
            entry["clusterQueue"],
            [
                (
                    part["name"],
                    part["count"],
                    part.get("flavors") or {},
                    amounts(part.get("resourceUsage")),
                    read_placement(part.get("topology")),
                    part.get("delayedTopologyRequest") or "",
                )
                for part in entry["podSets"]
            ],
        )
        for name, entry in expected.items()
    }


def _queued(kueue: Kueue, names: dict[str, str], *, inadmissible: bool) -> dict[str, list[str]]:
    found = {}
    for name, record in kueue.state.records.items():
        members = record.waiting.inadmissible() if inadmissible else record.waiting.active()
        if members:
            found[name] = sorted(names[member.key] for member in members)
    return found


def _sorted(expected: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: sorted(members) for name, members in expected.items() if members}


def _events(decisions: QueueDecisions, names: dict[str, str], given: Case) -> Counter[tuple[str, str, str]]:
    """The events a controller writes for these decisions."""
    checked = {gang_of(entry).key for entry in given["workloads"] if _awaits_checks(entry)}
    events: Counter[tuple[str, str, str]] = Counter()
    for entry in decisions.reserved:
        events[names[entry.gang], "QuotaReserved", "Normal"] += 1
        if entry.gang not in checked:
            events[names[entry.gang], "Admitted", "Normal"] += 1
        if entry.replaces:
            events[names[entry.replaces], "WorkloadSliceReplaced", "Normal"] += 1
    admitted = {gang.key for gang in (gang_of(entry) for entry in given["workloads"]) if gang.state == "admitted"}
    for entry in decisions.placed:
        if entry.gang not in admitted:
            events[names[entry.gang], "Admitted", "Normal"] += 1
    for entry in decisions.displaced:
        events[names[entry.gang], "EvictedDueToNodeFailures", "Normal"] += 1
    for victim in decisions.evicted:
        events[names[victim.gang], "EvictedDueToPreempted", "Normal"] += 1
        events[names[victim.gang], "Preempted", "Normal"] += 1
        events[names[victim.preemptor], "PreemptedWorkload", "Normal"] += 1
    for wait in decisions.waiting:
        events[names[wait.gang], wait.reason, "Warning"] += 1
    return events


def _awaits_checks(workload: Case) -> bool:
    checks = (workload.get("status") or {}).get("admissionChecks") or []
    return any(check.get("state") != "Ready" for check in checks)


def _counted(expected: list[dict[str, str]]) -> Counter[tuple[str, str, str]]:
    return Counter((entry["object"], entry["reason"], entry["type"]) for entry in expected)
