"""Judge one `cycle` case: exactly one cycle, one head per queue, then everything a client could see."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from shoal.api.quantity import amounts
from shoal.api.times import parse_time
from shoal.engine.kueue import Kueue, QueueDecisions, read
from shoal.engine.model import Gang
from tests.conformance.kueue_given import Case, compared, rules_of, settings_of, told


def cycle_differences(given: Case, expect: Case) -> list[str]:
    kueue = told(given, settings_of(given, exact=True))
    gangs = {}
    for entry in given["workloads"]:
        gang = read.workload(entry, rules_of(given))
        gangs[gang.key] = gang
        kueue.update(gang)
    decisions = kueue.cycle(parse_time(given["now"]))
    names = {key: f"{gang.namespace}/{gang.name}" for key, gang in gangs.items()}
    if given.get("statusWriteFails"):
        decisions = _undone(kueue, decisions, gangs)

    found = compared(
        "newlyReserved", sorted(names[e.gang] for e in decisions.reserved), sorted(expect["newlyReserved"])
    )
    found += compared("reservedAfter", _reserved(kueue, names), _expected_reserved(expect["reservedAfter"]))
    preempted = {
        names[entry.gang]: {"evicted": "Preempted", "message": entry.message, "reason": entry.reason}
        for entry in decisions.evicted
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


def _undone(kueue: Kueue, decisions: QueueDecisions, gangs: dict[str, Gang]) -> QueueDecisions:
    """The server refused the writes: the facts stay as they were, and telling them again undoes the reservations."""
    for entry in decisions.reserved:
        kueue.update(gangs[entry.gang])
    return msgspec.structs.replace(decisions, reserved=())


def _reserved(kueue: Kueue, names: dict[str, str]) -> dict[str, Any]:
    return {
        names[key]: (
            member.queue,
            [(part.name, part.count, dict(part.flavors), dict(part.usage)) for part in member.assignment],
        )
        for key, member in kueue.members.items()
        if member.holds
    }


def _expected_reserved(expected: dict[str, Any]) -> dict[str, Any]:
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
    checked = {read.workload(entry).key for entry in given["workloads"] if _awaits_checks(entry)}
    events: Counter[tuple[str, str, str]] = Counter()
    for entry in decisions.reserved:
        events[names[entry.gang], "QuotaReserved", "Normal"] += 1
        if entry.gang not in checked:
            events[names[entry.gang], "Admitted", "Normal"] += 1
        if entry.replaces:
            events[names[entry.replaces], "WorkloadSliceReplaced", "Normal"] += 1
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
