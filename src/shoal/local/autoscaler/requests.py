"""ProvisioningRequests: their conditions, and what each of them asks for. Pure bookkeeping, no decisions."""

from __future__ import annotations

from collections.abc import Callable

from shoal.api.autoscaling import BEST_EFFORT_ATOMIC, CHECK_CAPACITY, QUEUED_PROVISIONING
from shoal.api.meta import Json
from shoal.api.times import parse_time, seconds_text
from shoal.engine.facts import pod_set
from shoal.engine.model import PodSet
from shoal.errors import BadInput, ShoalError

CLASSES = (QUEUED_PROVISIONING, CHECK_CAPACITY, BEST_EFFORT_ATOMIC)


class NotYet(ShoalError):
    """The request refers to something that is not there."""


def class_of(request: Json) -> str:
    return str((request.get("spec") or {}).get("provisioningClassName") or "")


def condition(request: Json, kind: str) -> Json | None:
    conditions = (request.get("status") or {}).get("conditions") or ()
    return next((entry for entry in conditions if entry["type"] == kind), None)


def holds(request: Json, kind: str) -> bool:
    found = condition(request, kind)
    return found is not None and found["status"] == "True"


def since(request: Json, kind: str) -> int:
    """The moment at which a condition took its present status."""
    found = condition(request, kind)
    return parse_time(found["lastTransitionTime"]) if found and found.get("lastTransitionTime") else 0


def with_conditions(request: Json, moment: int, **changes: tuple[bool, str, str]) -> list[Json]:
    """The request's conditions after `Kind=(status, reason, message)` changes; times move only when the status does."""
    found = {entry["type"]: dict(entry) for entry in (request.get("status") or {}).get("conditions") or ()}
    for kind, (good, reason, message) in changes.items():
        status = "True" if good else "False"
        known = found.get(kind)
        when = known["lastTransitionTime"] if known and known["status"] == status else seconds_text(moment)
        found[kind] = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": when,
            "observedGeneration": request["metadata"].get("generation", 1),
        }
    return list(found.values())


def wants_no_retry(request: Json) -> bool:
    """`noRetry: "true"`, as check-capacity has it: fail at once when there is no room, instead of waiting for it."""
    return str((request["spec"].get("parameters") or {}).get("noRetry")) == "true"


def wanted_pods(request: Json, template: Callable[[str, str], Json | None]) -> list[PodSet]:
    """The request as pod sets. Raises NotYet while a pod template is missing: it may be created after the request."""
    namespace = request["metadata"].get("namespace", "")
    found = []
    for index, entry in enumerate((request.get("spec") or {}).get("podSets") or ()):
        name = (entry.get("podTemplateRef") or {}).get("name", "")
        body = template(namespace, name)
        if body is None:
            raise NotYet(f"pod template {namespace}/{name} does not exist")
        try:
            found.append(pod_set(f"set-{index}", int(entry.get("count") or 0), body.get("template") or {}))
        except BadInput as error:
            raise NotYet(f"pod template {namespace}/{name}: {error}") from error
    return found
