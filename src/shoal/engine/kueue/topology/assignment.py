"""A placement in a topology as a Workload's status has it, and what its pods take.

The stored form is compressed (`slices`); the older form lists `domains`. Both are read, the compressed one is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.api.kueue_topology import compress, expand
from shoal.engine.model import Amounts, DomainShare, TopologyPlacement

Values = tuple[str, ...]
"""What identifies a lowest domain: one label value per level of the placement."""


def add_usage(total: Amounts, each: Amounts, count: int) -> None:
    """Add `count` pods of `each` to a total, pods counted too; a negative count takes them away."""
    for resource, amount in each.items():
        total[resource] = total.get(resource, 0) + amount * count
    if "pods" not in each:
        total["pods"] = total.get("pods", 0) + count


def stored_placement(placement: TopologyPlacement) -> dict[str, Any]:
    """As a Workload's status has it (v1beta2)."""
    domains = [(domain.values, domain.count) for domain in placement.domains]
    return {"levels": list(placement.levels), "slices": compress(domains)}


def read_placement(told: Mapping[str, Any] | None) -> TopologyPlacement | None:
    """From either stored form; None when there is none. Raises BadInput for more domains than there can be."""
    if not told:
        return None
    listed = told.get("domains")
    if listed is not None:
        domains = [(tuple(entry["values"]), entry.get("count", 1)) for entry in listed]
    else:
        domains = expand([{"domainCount": 1, **part} for part in told.get("slices") or ()])
    return TopologyPlacement(
        tuple(told.get("levels") or ()), tuple(DomainShare(values, count) for values, count in domains)
    )
