"""Cases of queueing decisions, run against `shoal.engine.kueue`.

Knows the schema of the cases and nothing about the rules. `differences(case)` lists what came out differently, for
tests and for reading; `run(path)` counts.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.api.times import parse_time
from shoal.engine.kueue import FlavorResource, KueueSettings
from shoal.engine.kueue.flavors.assignment import Mode, Outcome
from shoal.engine.kueue.views import assignment_of, quota_of, shares, victims_of
from tests.conformance import kueue_provision, kueue_workload
from tests.conformance.kueue_api import convert_differences, hides_attempt, names_differences, webhook_differences
from tests.conformance.kueue_cycle import cycle_differences
from tests.conformance.kueue_given import (
    Case,
    by_key,
    compared,
    gang_of,
    holder,
    place,
    rules_of,
    settings_of,
    told,
    unsupported_gates,
)
from tests.conformance.kueue_ray import (
    default_differences,
    finished_differences,
    not_queued_here,
    podsets_differences,
    ray_webhook_differences,
    startstop_differences,
)
from tests.conformance.kueue_reconcile import reconcile_differences
from tests.conformance.kueue_topology import topology_differences
from tests.conformance.kueue_trace import trace_differences
from tests.conformance.kueue_usage import usage_differences
from tests.conformance.kueue_visibility import visibility_differences


def run(path: Path) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    for case in json.loads(Path(path).read_text())["cases"]:
        empty = {"passed": 0, "failed": 0, "skipped": 0, "failed_ids": [], "reasons": {}}
        result = results.setdefault(case["kind"], empty)
        reason = why_skipped(case)
        if reason:
            result["skipped"] += 1
            result["reasons"][reason] = result["reasons"].get(reason, 0) + 1
        elif not passes(case):
            result["failed"] += 1
            result["failed_ids"].append(case["id"])
        else:
            result["passed"] += 1
    return results


def passes(case: Case) -> bool:
    """A case that cannot be run at all has failed; the others go on."""
    try:
        return not differences(case)
    except Exception:
        traceback.print_exc()
        return False


def why_skipped(case: Case) -> str:
    """Why a case is not run; empty for one that is."""
    kind = case["kind"]
    if kind not in JUDGES and kind not in OBJECT_JUDGES:
        return "no judge for this family"
    if kind == "names" and hides_attempt(case["input"]):
        return "better on purpose: a long name ends with its attempt"
    if kind in ("ray-webhook", "ray-default") and (reason := not_queued_here(case["input"])):
        return reason
    if kind in ("workload", "provision"):
        judge = {"workload": kueue_workload, "provision": kueue_provision}[kind]
        if gates := judge.gates_apart(case["input"]):
            return f"gates without a setting: {gates}"
        return kueue_workload.different_on_purpose(case["input"]) if kind == "workload" else ""
    gates = unsupported_gates(case["input"]) if kind in JUDGES and kind != "topology" else []
    return f"gates without a setting: {', '.join(gates)}" if gates else ""


def differences(case: Case) -> list[str]:
    """What came out differently; empty when the case passes."""
    if case["kind"] == "trace":
        return trace_differences(case["input"], case["expect"], thrash="thrash" in case.get("tags", ()))
    judge = JUDGES.get(case["kind"]) or OBJECT_JUDGES[case["kind"]]
    return judge(case["input"], case["expect"])


def quota_differences(given: Case, expect: Case) -> list[str]:
    kueue = told(given, KueueSettings())
    for queue, usage in given["usage"].items():
        kueue.update(holder(queue, usage))
    found: list[str] = []
    for queue in expect["available"]:
        view = quota_of(kueue, queue)
        found += compared(f"{queue} available", by_key(view.available), expect["available"][queue])
        found += compared(f"{queue} potential", by_key(view.potential), expect["potentialAvailable"][queue])
    return found


def share_differences(given: Case, expect: Case) -> list[str]:
    kueue = told(given, KueueSettings(fair_sharing=True))
    kueue.update(holder(given["usageOn"], given["usage"]))
    extra = {place(key): value for key, value in (given.get("extraRequest") or {}).items()}
    ours = [
        {
            "kind": view.kind,
            "name": view.name,
            "weightedShare": view.weighted_share,
            "dominantResource": view.dominant_resource,
            "borrowing": view.borrowing,
        }
        for view in shares(kueue, {given["usageOn"]: extra})
    ]
    wanted = sorted(expect["nodes"], key=lambda node: (node["kind"], node["name"]))
    return compared("nodes", sorted(ours, key=lambda node: (node["kind"], node["name"])), wanted)


POSSIBILITIES = {"NoCandidates": Mode.NO_CANDIDATES, "Preempt": Mode.PREEMPT, "Reclaim": Mode.RECLAIM}
OUTCOMES = {Outcome.NO_FIT: "NoFit", Outcome.PREEMPT: "Preempt", Outcome.DEFERRED: "DeferredFit", Outcome.FIT: "Fit"}


def assign_differences(given: Case, expect: Case) -> list[str]:
    queues = [given["clusterQueue"], *([given["otherClusterQueue"]] if given.get("otherClusterQueue") else [])]
    kueue = told({**given, "clusterQueues": queues}, settings_of(given))
    queue = given["clusterQueue"]["metadata"]["name"]
    kueue.update(holder(queue, given.get("usage") or {}))
    if given.get("otherClusterQueue"):
        kueue.update(holder(given["otherClusterQueue"]["metadata"]["name"], given.get("otherUsage") or {}))
    stored = {
        "metadata": {"name": "wanting", "namespace": "default"},
        "spec": {"podSets": given["podSets"]},
        "status": {"reclaimablePods": given.get("reclaimablePods") or []},
    }

    def oracle(at: FlavorResource, wanted: int) -> tuple[Mode, int]:
        answer = given["oracle"].get(f"{at.flavor}|{at.resource}", given["oracleDefault"])
        return POSSIBILITIES[answer["possibility"]], answer["borrowAfter"]

    assignment = assignment_of(kueue, gang_of(stored, rules_of(given)), queue, oracle)
    found = compared("mode", OUTCOMES[assignment.outcome], expect["mode"])
    found += compared("borrowingHeight", assignment.height, expect["borrowingHeight"])
    found += compared("usage", by_key(assignment.usage), expect["usage"])
    if "noFitReason" in expect:
        found += compared("noFitReason", assignment.reason, expect["noFitReason"])
    ours = [
        {
            "name": part.name,
            "count": part.count,
            "error": bool(part.error),
            "message": part.error or ", ".join(sorted(part.reasons)),
            "flavors": {
                name: {
                    "flavor": choice.flavor,
                    "mode": "Fit" if choice.mode is Mode.FIT else "Preempt",
                    "triedFlavorIdx": choice.tried,
                }
                for name, choice in part.choices.items()
            },
        }
        for part in assignment.pod_sets
    ]
    return found + compared("podSets", ours, expect["podSets"])


def preempt_differences(given: Case, expect: Case) -> list[str]:
    kueue = told(given, settings_of(given, exact=True))
    for entry in given["workloads"]:
        kueue.update(gang_of(entry))
    gang = gang_of(given["incoming"])
    wanted: dict[FlavorResource, int] = {}
    places = set()
    for part, pod_set in zip(given["assignment"], gang.pod_sets, strict=True):
        for resource, choice in part["flavors"].items():
            at = FlavorResource(choice["flavor"], resource)
            each = pod_set.requests.get(resource, 0) if resource != "pods" else 1
            wanted[at] = wanted.get(at, 0) + each * part["count"]
            if choice["mode"] == "Preempt":
                places.add(at)
    victims = victims_of(kueue, gang, given["targetClusterQueue"], wanted, frozenset(places), parse_time(given["now"]))
    ours = sorted((f"{v.member.gang.namespace}/{v.member.gang.name}", v.reason) for v in victims)
    return compared("targets", ours, sorted((entry["workload"], entry["reason"]) for entry in expect["targets"]))


JUDGES: dict[str, Callable[[Case, Case], list[str]]] = {
    "quota": quota_differences,
    "share": share_differences,
    "assign": assign_differences,
    "preempt": preempt_differences,
    "cycle": cycle_differences,
    "trace": trace_differences,
    "topology": topology_differences,
    "afs": usage_differences,
}
"""Decisions; each kind has cases of our own as well."""

OBJECT_JUDGES: dict[str, Callable[[Case, Case], list[str]]] = {
    "convert": convert_differences,
    "webhook": webhook_differences,
    "names": names_differences,
    "ray-podsets": podsets_differences,
    "ray-finished": finished_differences,
    "ray-startstop": startstop_differences,
    "ray-default": default_differences,
    "ray-webhook": ray_webhook_differences,
    "visibility": visibility_differences,
    "workload": kueue_workload.workload_differences,
    "provision": kueue_provision.provision_differences,
    "ray-reconcile": reconcile_differences,
}
"""What becomes of stored objects; unit tests have examples of our own."""
