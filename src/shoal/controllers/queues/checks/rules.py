"""Which admission checks a Workload must pass, and what their answers mean for it.

As Kueue: with an admission, the checks whose flavors it uses; without one, those that hold for every flavor of its
queue. Each check's owner writes its own entry; we add those that are missing and drop those that do not apply. Pure.
"""

from __future__ import annotations

from shoal.api.kueue import ClusterQueue
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Json
from shoal.controllers.queues.checks.draft import Draft

Rules = dict[str, frozenset[str]]
"""Check name to the flavors it concerns; none: all."""


def rules_of(cluster_queue: ClusterQueue | None) -> Rules:
    strategy = cluster_queue.spec.admission_checks_strategy if cluster_queue is not None else None
    named = strategy.admission_checks if strategy is not None else None
    return {one.name: frozenset(one.on_flavors or ()) for one in named or () if one.name}


def flavors_of(cluster_queue: ClusterQueue | None) -> frozenset[str]:
    groups = cluster_queue.spec.resource_groups if cluster_queue is not None else None
    return frozenset(flavor.name for group in groups or () for flavor in group.flavors)


def flavors_used(workload: Workload) -> frozenset[str]:
    """Of what it was given; none without an admission."""
    admission = workload.status.admission
    given = admission.pod_set_assignments if admission is not None else ()
    return frozenset(flavor for one in given for flavor in (one.flavors or {}).values())


def flavors_granted(admission: Json) -> frozenset[str]:
    """The same of an admission that is not stored yet."""
    given = admission.get("podSetAssignments") or ()
    return frozenset(flavor for one in given for flavor in (one.get("flavors") or {}).values())


def applying(rules: Rules, all_flavors: frozenset[str], used: frozenset[str] | None) -> list[str]:
    """Names, sorted. `used` is None for a gang without quota."""
    if used is None:
        return sorted(name for name, flavors in rules.items() if not flavors or flavors >= all_flavors)
    return sorted(name for name, flavors in rules.items() if not flavors or flavors & used)


def sync(draft: Draft, wanted: list[str]) -> None:
    """Bring the list to exactly these checks; answers that are there stay."""
    known = {one["name"]: one for one in draft.get("admissionChecks") or ()}
    made = [
        known.get(name) or {"name": name, "state": "Pending", "lastTransitionTime": draft.moment(), "message": ""}
        for name in wanted
    ]
    draft.set("admissionChecks", made)


def all_ready(workload: Workload, wanted: list[str]) -> bool:
    """By its stored status."""
    listed = workload.status.admission_checks or ()
    return all(one.state == "Ready" for one in listed) and {one.name for one in listed}.issuperset(wanted)


def are_ready(draft: Draft, wanted: list[str]) -> bool:
    """By the status that is about to be stored."""
    listed = draft.get("admissionChecks") or ()
    return all(one.get("state") == "Ready" for one in listed) and {one["name"] for one in listed}.issuperset(wanted)


def in_state(draft: Draft, state: str) -> list[Json]:
    return [one for one in draft.get("admissionChecks") or () if one.get("state") == state]


def listed(entries: list[Json], state: str) -> str:
    """Checks and what they said, as Kueue tells of them in a condition."""
    parts = []
    for one in sorted(entries, key=lambda entry: str(entry["name"])):
        said = one.get("message")
        parts.append(f'"{one["name"]}" ({said})' if said else f'"{one["name"]}"')
    noun = "AdmissionCheck" if len(parts) == 1 else "AdmissionChecks"
    return f"{noun} in {state} state: {'; '.join(parts)}"
