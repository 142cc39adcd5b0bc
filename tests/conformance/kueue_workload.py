"""Judge `workload` cases: what one look of the controller makes of one Workload.

Compared is what users and other controllers read: conditions with reason and text, checks, back-off, statistics,
`spec.active`, finalizers, events, and when the next look is due. Times of conditions are not compared: the clock of the
record moves between two writes. The record was taken with a store that keeps what an apply leaves out (`admission`,
`requeueState`, `unhealthyNodes`, `DeactivationTarget`): what ours takes away may stand there unchanged.
"""

from __future__ import annotations

import asyncio
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.controllers.queues import QueueSettings
from shoal.controllers.queues.settings import PodsReady
from tests.conformance.kueue_given import Case, compared
from tests.conformance.kueue_stage import OUT_OF_QUEUE, Stage

NANO = 1e9
MICRO = 1_000_000
STAY = ("admission", "requeueState", "unhealthyNodes", "accumulatedPastExecutionTimeSeconds")
TOLD = ("type", "status", "reason", "message")
OTHERS = {"Job": kinds.JOB, "ResourceFlavor": kinds.RESOURCE_FLAVOR}
GATES = {
    "FinishOrphanedWorkloads": True,
    "AdmissionGatedBy": True,
    "UnadmittedWorkloadsObservability": True,
    "KueueDRAIntegration": False,
    "KueueDRARejectWorkloadsWhenDRADisabled": False,
    "MultiKueueOrchestratedPreemption": False,
}
"""Gates of the cases, as what they govern works here."""
AS_SETTINGS = ("UnadmittedWorkloadsExplicitStatus",)
QUEUE = "kueue.x-k8s.io/queue-name"


def gates_apart(given: Case) -> str:
    """Gates of the case that work otherwise here; empty where there is none."""
    gates = given.get("featureGates") or {}
    apart = [f"{name}={value}" for name, value in gates.items() if name not in AS_SETTINGS and GATES.get(name) != value]
    return ", ".join(sorted(apart))


def different_on_purpose(given: Case) -> str:
    """Why one look of ours does more than one of the reference; empty where it does the same."""
    metadata = given["workload"]["metadata"]
    conditions = (given["workload"].get("status") or {}).get("conditions") or ()
    finished = any(one["type"] == "Finished" and one["status"] == "True" for one in conditions)
    leaving = finished and metadata.get("deletionTimestamp") and metadata.get("ownerReferences")
    if leaving and not given.get("retentionAfterFinishedSeconds"):
        return "on purpose: the look at a Workload is the look at its job, too, and lets go of what is finished"
    for obj in given.get("objects") or ():
        if obj["_kind"] == "Job" and QUEUE not in (obj["metadata"].get("labels") or {}):
            return "better on purpose: the Workload of a job that left its queue goes"
    return ""


def workload_differences(given: Case, expect: Case) -> list[str]:
    return asyncio.run(_differences(given, expect))


async def _differences(given: Case, expect: Case) -> list[str]:
    stage = Stage(given["now"], _settings(given))
    ending = {"deletionTimestamp": given["now"]}
    for name, kind in (("clusterQueue", kinds.CLUSTER_QUEUE), ("localQueue", kinds.LOCAL_QUEUE)):
        if given.get(name):
            found = given[name]
            extra = ending if given[f"{name}Terminating"] else {}
            stage.give(kind, {**found, "metadata": {**found["metadata"], **extra}})
    stage.give(kinds.NAMESPACE, {"metadata": {"name": "ns"}})
    for obj in given.get("objects") or ():
        stage.give(OTHERS[obj["_kind"]], obj)
    workload = stage.give(kinds.WORKLOAD, given["workload"])
    queue = given.get("clusterQueue") or {}
    active = any(one["type"] == "Active" for one in (queue.get("status") or {}).get("conditions") or ())
    stage.begin(inactive=not active)
    key = Key(workload["metadata"]["namespace"], workload["metadata"]["name"])
    wake = await stage.look(key)
    after = stage.store.objects.get(("Workload", key.namespace, key.name))
    if after is None:
        return compared("deleted", True, bool(not expect["finalizers"] and not expect["status"]))
    found = compared("finalizers", after["metadata"].get("finalizers") or [], expect["finalizers"])
    found += compared("active", (after.get("spec") or {}).get("active", True), expect["spec.active"])
    told = [one for one in stage.told.events if one["reason"] not in OUT_OF_QUEUE]  # ours tells that as well
    found += compared("events", told, expect["events"])
    if not expect["error"] and expect["status"] == (given["workload"].get("status") or {}):  # else that write wakes it
        found += compared("look again", round(wake or 0), expect["requeueAfterSeconds"])
    before, ours, wanted = given["workload"].get("status") or {}, after.get("status") or {}, expect["status"]
    found += compared("conditions", _conditions(ours, before, wanted), _conditions(wanted, before, wanted))
    names = {*ours, *wanted} - {"conditions"}
    for name in sorted(names):
        if name in STAY and name not in ours and wanted.get(name) == before.get(name):
            continue
        found += compared(name, _plain(name, ours.get(name)), _plain(name, wanted.get(name)))
    return found


def _settings(given: Case) -> QueueSettings:
    rules = given.get("waitForPodsReady")
    ready = None
    if rules:
        recovery = rules.get("recoveryTimeout")
        ready = PodsReady(
            timeout=rules["timeoutSeconds"],
            recovery_timeout=recovery / NANO if recovery is not None else rules["timeoutSeconds"],
            backoff_limit=rules.get("backoffLimitCount"),
            backoff_base=rules.get("backoffBaseSeconds") or 0,
            backoff_most=rules.get("backoffMaxSeconds") or 0,
        )
    return QueueSettings(
        supply="off",
        pods_ready=ready,
        keep_finished_seconds=given.get("retentionAfterFinishedSeconds"),
        explicit_status=(given.get("featureGates") or {}).get("UnadmittedWorkloadsExplicitStatus", False),
    )


def _conditions(status: Json, before: Json, wanted: Json) -> list[Any]:
    told = {one["type"]: one for one in status.get("conditions") or ()}
    had = {one["type"] for one in before.get("conditions") or ()}
    if "DeactivationTarget" in had and "DeactivationTarget" in {one["type"] for one in wanted.get("conditions") or ()}:
        told.pop("DeactivationTarget", None)
    return sorted([_words(one.get(name) or "") for name in TOLD] for one in told.values())


def _words(text: str) -> str:
    """Ours says after Kueue's words why a queue is inactive."""
    head, inactive, _ = text.partition(" is inactive: ")
    return f"{head} is inactive" if inactive else text


def _plain(name: str, value: Any) -> Any:
    """Without times, but for that of a back-off, which counts to the second."""
    if name == "requeueState" and value:
        at = value.get("requeueAt")
        return {**value, "requeueAt": at and parse_time(at) // MICRO}
    if name == "admissionChecks":
        return [{key: part for key, part in one.items() if key != "lastTransitionTime" and part} for one in value or ()]
    return value or None
