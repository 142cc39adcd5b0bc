"""Which admission checks a Workload must pass, and what their answers mean for it.

As Kueue: with an admission, the checks whose flavors it uses; without one, those that hold for every flavor of its
queue. Each check's owner writes its own entry; we add those that are missing and drop those that do not apply. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.api.meta import Json
from shoal.controllers.queues.checks.draft import Draft

Rules = dict[str, frozenset[str]]
"""Check name to the flavors it concerns; none: all."""


def rules_of(cluster_queue: Json | None) -> Rules:
    strategy = ((cluster_queue or {}).get("spec") or {}).get("admissionChecksStrategy") or {}
    return {
        str(one["name"]): frozenset(one.get("onFlavors") or ())
        for one in strategy.get("admissionChecks") or ()
        if one.get("name")
    }


def flavors_of(cluster_queue: Json | None) -> frozenset[str]:
    groups = ((cluster_queue or {}).get("spec") or {}).get("resourceGroups") or ()
    return frozenset(str(flavor.get("name")) for group in groups for flavor in group.get("flavors") or ())


def applying(rules: Rules, all_flavors: frozenset[str], admission: Json | None) -> list[str]:
    """Names, sorted."""
    if admission is None:
        return sorted(name for name, flavors in rules.items() if not flavors or flavors >= all_flavors)
    used = {
        flavor for entry in admission.get("podSetAssignments") or () for flavor in (entry.get("flavors") or {}).values()
    }
    return sorted(name for name, flavors in rules.items() if not flavors or flavors & used)


def sync(draft: Draft, wanted: list[str]) -> None:
    """Bring the list to exactly these checks; answers that are there stay."""
    known = {one["name"]: one for one in draft.get("admissionChecks") or ()}
    made = [
        known.get(name) or {"name": name, "state": "Pending", "lastTransitionTime": draft.moment(), "message": ""}
        for name in wanted
    ]
    draft.set("admissionChecks", made)


def states(status: Mapping[str, object]) -> dict[str, str]:
    entries = status.get("admissionChecks") or ()
    return {one["name"]: one.get("state", "") for one in entries}  # type: ignore[attr-defined]


def all_ready(status: Mapping[str, object], wanted: list[str]) -> bool:
    found = states(status)
    return all(found.get(name) == "Ready" for name in wanted)


def in_state(draft: Draft, state: str) -> list[Json]:
    return [one for one in draft.get("admissionChecks") or () if one.get("state") == state]


def listed(entries: list[Json]) -> str:
    """As Kueue joins them for a condition."""
    return "; ".join(f'"{one["name"]}" ({one.get("message") or ""})' for one in entries)
