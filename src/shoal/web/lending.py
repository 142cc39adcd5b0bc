"""How much of a queue's guarantee other queues of its cohort tree use: between these two amounts.

What a queue borrows comes out of all that lies unused in the tree, and no object says out of which guarantee. With one
lender both amounts are the same; with several, the truth is between them. Pure, from stored objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shoal.api.meta import Json
from shoal.api.quantity import amount

Place = tuple[str, str]
"""Flavor and resource."""


def lent(queues: Iterable[Json], cohorts: Mapping[str, Json]) -> dict[str, dict[Place, tuple[int, int]]]:
    """By ClusterQueue and place: the least and the most that others use of it. Only what is not nothing."""
    trees: dict[str, list[Json]] = {}
    for queue in queues:
        if cohort := cohort_of(queue):
            trees.setdefault(root_of(cohort, cohorts), []).append(queue)
    found: dict[str, dict[Place, tuple[int, int]]] = {}
    for root, members in trees.items():
        shared = _of_cohorts(root, cohorts)
        borrowed = {queue["metadata"]["name"]: _borrowed(queue) for queue in members}
        lendable = {queue["metadata"]["name"]: _lendable(queue) for queue in members}
        for name, own in lendable.items():
            for place, spare in own.items():
                wanted = sum(amounts.get(place, 0) for other, amounts in borrowed.items() if other != name)
                elsewhere = sum(amounts.get(place, 0) for other, amounts in lendable.items() if other != name)
                least, most = max(0, wanted - elsewhere - shared.get(place, 0)), min(spare, wanted)
                if most > 0:
                    found.setdefault(name, {})[place] = (min(least, most), most)
    return found


def cohort_of(queue: Json) -> str:
    spec = queue.get("spec") or {}
    return str(spec.get("cohortName") or spec.get("cohort") or "")


def root_of(cohort: str, cohorts: Mapping[str, Json]) -> str:
    """The top of the tree; a ring, which its controller refuses, ends where it began."""
    seen = {cohort}
    while (parent := parent_of(cohorts.get(cohort) or {})) and parent not in seen:
        seen.add(parent)
        cohort = parent
    return cohort


def parent_of(cohort: Json) -> str:
    spec = cohort.get("spec") or {}
    return str(spec.get("parentName") or spec.get("parent") or "")


def quotas_of(obj: Json) -> dict[Place, Json]:
    """The quota that a ClusterQueue or Cohort declares, by place."""
    return {
        (flavor["name"], resource["name"]): resource
        for group in (obj.get("spec") or {}).get("resourceGroups") or ()
        for flavor in group.get("flavors") or ()
        for resource in flavor.get("resources") or ()
    }


def reserved(queue: Json) -> dict[Place, tuple[int, int]]:
    """What is in use, and what of it is borrowed."""
    return {
        (flavor["name"], one["name"]): (_amount(one, "total"), _amount(one, "borrowed"))
        for flavor in (queue.get("status") or {}).get("flavorsReservation") or ()
        for one in flavor.get("resources") or ()
    }


def _amount(one: Json, field: str) -> int:
    return amount(one["name"], one.get(field) or 0)


def _borrowed(queue: Json) -> dict[Place, int]:
    return {place: borrowed for place, (_, borrowed) in reserved(queue).items()}


def _lendable(queue: Json) -> dict[Place, int]:
    """What lies unused of the guarantee, as far as its limit lets others have it."""
    used, found = reserved(queue), {}
    for place, quota in quotas_of(queue).items():
        total, borrowed = used.get(place, (0, 0))
        unused = amount(place[1], quota.get("nominalQuota", 0)) - (total - borrowed)
        if quota.get("lendingLimit") is not None:
            unused = min(unused, amount(place[1], quota["lendingLimit"]))
        found[place] = max(0, unused)
    return found


def _of_cohorts(root: str, cohorts: Mapping[str, Json]) -> dict[Place, int]:
    """Quota that cohorts of this tree bring themselves."""
    found: dict[Place, int] = {}
    for name, cohort in cohorts.items():
        if root_of(name, cohorts) == root:
            for place, quota in quotas_of(cohort).items():
                found[place] = found.get(place, 0) + amount(place[1], quota.get("nominalQuota", 0))
    return found
