"""Judge one `afs` case: some cycles in a ClusterQueue whose LocalQueues share by usage.

Given are what each LocalQueue has consumed and how many cycles run; expected what has quota in the end and what was
said of gangs that wait. A LocalQueue that is deleted in the API is one of which the ledger has not heard yet: its gangs
stand in the line, and nothing is known of its usage.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.api.quantity import amounts
from shoal.api.times import parse_time
from shoal.controllers.ray.go_duration import go_duration
from shoal.engine.kueue import ConsumedUsage, Terms, UsageSharing
from tests.conformance.kueue_given import Case, compared, gang_of, settings_of, told


def usage_differences(given: Case, expect: Case) -> list[str]:
    now = parse_time(given["now"])
    kueue = told(given, settings_of(given, exact=True, usage_sharing=sharing_of(given.get("admissionFairSharing"))))
    for name, consumed in given["consumed"].items():
        if name != given.get("deletedLocalQueue"):
            fact = kueue.register.local_queues[tuple(name.split("/"))]
            known = {resource: float(amount) for resource, amount in amounts(consumed).items()}
            kueue.update(msgspec.structs.replace(fact, consumed=ConsumedUsage(amounts=known, at=now)))
    gangs = {gang.key: gang for gang in map(gang_of, given["workloads"])}
    for gang in gangs.values():
        kueue.update(gang)
    reserved: dict[str, Any] = {}
    pending: dict[str, Any] = {}
    for _ in range(given["cycles"]):
        decisions = kueue.cycle(now)
        for entry in decisions.reserved:
            gang = gangs[entry.gang]
            terms = Terms(cluster_queue=entry.cluster_queue)
            state = "reserved" if given.get("checks") else "admitted"
            admission = {"state": state, "admitted_at": now, "assignment": entry.assignment}
            kueue.update(msgspec.structs.replace(gang, **admission, details={"kueue": terms}))
            parts = [(part.name, part.count, dict(part.flavors), dict(part.usage)) for part in entry.assignment]
            reserved[f"{gang.namespace}/{gang.name}"] = (entry.cluster_queue, parts)
        for entry in decisions.waiting:
            gang = gangs[entry.gang]
            pending[f"{gang.namespace}/{gang.name}"] = {"message": entry.message, "reason": entry.reason}
    wanted = {
        name: (
            entry["clusterQueue"],
            [
                (part["name"], part["count"], part.get("flavors") or {}, amounts(part.get("resourceUsage")))
                for part in entry["podSets"]
            ],
        )
        for name, entry in expect["reserved"].items()
    }
    return compared("reserved", reserved, wanted) + compared("pending", pending, expect["pending"])


def sharing_of(configured: Case | None) -> UsageSharing | None:
    if configured is None:
        return None
    return UsageSharing(
        half_life=_microseconds(configured.get("usageHalfLifeTime") or "0s"),
        sampling=_microseconds(configured.get("usageSamplingInterval") or "5m"),
        weights=configured.get("resourceWeights") or {},
        per_user=bool(configured.get("perUser")),
    )


def _microseconds(text: str) -> int:
    seconds = go_duration(text)
    assert seconds is not None, text
    return round(seconds * 1_000_000)
