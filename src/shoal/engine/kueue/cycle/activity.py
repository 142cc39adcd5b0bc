"""When a queue admits nothing, and how that is said.

Asked by the ledger whenever shapes change. A bad fact makes the queues it concerns inactive, with the object at fault
named; it never stops the others.
"""

from __future__ import annotations

from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.cycle.state import QueueState
from shoal.engine.kueue.facts import LocalQueue


def why_inactive(record: QueueRecord, state: QueueState) -> str:
    """Why this cluster queue cannot admit, as the parts of its condition; empty when it can."""
    parts = []
    if record.fact.stopped:
        parts.append("is stopped")
    missing = sorted(
        {flavor.name for group in record.fact.groups for flavor in group.flavors if flavor.name not in state.flavors}
    )
    if missing:
        parts.append(f"references missing ResourceFlavor(s): {','.join(missing)}")
    if state.settings.topology_aware:
        parts += _missing_topologies(record, state)
    if record.fact.problem:
        parts.append(record.fact.problem)
    if state.forest.is_cyclic(record.node):
        parts.append(f"cohort {record.fact.cohort} is part of a parent cycle or below one")
    negative = sorted(
        f"{flavor.name}/{resource}"
        for group in record.fact.groups
        for flavor in group.flavors
        for resource, limits in flavor.limits.items()
        if limits.nominal < 0 or (limits.borrowing or 0) < 0 or (limits.lending or 0) < 0
    )
    if negative:
        parts.append(f"has negative quota for {', '.join(negative)}")
    if record.selector is None:
        parts.append("has a namespaceSelector that cannot be read")
    return ", ".join(parts)


def _missing_topologies(record: QueueRecord, state: QueueState) -> list[str]:
    found = []
    for name in dict.fromkeys(flavor.name for group in record.fact.groups for flavor in group.flavors):
        fact = state.flavors.get(name)
        if fact is not None and fact.topology and fact.topology not in state.topologies.topologies:
            found.append(f'there is no Topology "{fact.topology}" for TAS flavor "{name}"')
    return found


def unqueued_reason(queue: str, local: LocalQueue | None, record: QueueRecord | None) -> str:
    """Why a gang is in no queue at all; empty when it can be queued."""
    if local is None:
        return f"LocalQueue {queue} doesn't exist"
    if local.stopped:
        return f"LocalQueue {queue} is inactive: it is stopped"
    if record is None:
        return f"ClusterQueue {local.cluster_queue} doesn't exist"
    if record.fact.stopped:
        why = "it is being deleted" if record.fact.deleted else "it is stopped"
        return f"ClusterQueue {local.cluster_queue} is inactive: {why}"
    return ""
