"""Is there room for a whole gang? By packing its pods onto nodes, or by MCAD's cluster-wide sums.

Called by the planner once quota said yes, and by `explain`. Reads the ledger, never changes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from shoal.api.quantity import show
from shoal.engine.model import Amounts, Explanation, Gang, Shortfall
from shoal.engine.nodes.fit import Placement, demand_of, place
from shoal.engine.nodes.ledger import Ledger
from shoal.engine.nodes.shape import shape_of


def find_room(
    gang: Gang, ledger: Ledger, extra: Amounts | None = None, *, say_why: bool = True
) -> Placement | tuple[Shortfall, ...]:
    """`extra` is what aggregate supply may count on top, because its holders are being taken back."""
    match gang.supply:
        case "off":
            return Placement(tuple({} for _ in gang.pod_sets))
        case "aggregate":
            missing = aggregate_shortfalls(gang, ledger, extra or {})
            if missing:
                return missing
            likely = place(
                gang, ledger.room, say_why=False
            )  # sums decide; where pods can be placed too, that room is kept for them
            return likely if isinstance(likely, Placement) else Placement(tuple({} for _ in gang.pod_sets))
        case _:
            return place(gang, ledger.room, say_why=say_why)


def aggregate_shortfalls(gang: Gang, ledger: Ledger, extra: Amounts) -> tuple[Shortfall, ...]:
    """As MCAD: demand against idle sums, less what admitted gangs still need. Equal amounts fit."""
    room = ledger.room
    rows = [room.row(shape_of(pod_set, gang.node_selector)) for pod_set in gang.pod_sets if pod_set.count > 0]
    room.flush()
    usable = np.zeros_like(room.alive)
    for row in rows:
        usable |= room.eligible[row]
    own = ledger.own_reservation(gang.uid)
    found = []
    for resource, needed in sorted(demand_of(gang.pod_sets).items()):
        idle = max(0, room.sum_idle(resource, usable))
        reserved = ledger.total_reserved.get(resource, 0) - own.get(resource, 0)
        available = max(0, idle - reserved) + extra.get(resource, 0)
        if needed > available:
            found.append(
                Shortfall(
                    kind="aggregate",
                    resource=resource,
                    missing=needed - available,
                    needed=needed,
                    available=available,
                    place="nodes",
                    message=f"{show(resource, needed)} {resource} needed, {show(resource, available)} free",
                )
            )
    return tuple(found)


MOST_REASONS = 5
LONGEST_MESSAGE = 1000


def explanation_of(shortfalls: Iterable[Shortfall], place_name: str = "nodes") -> Explanation:
    """Written from the start each time, and bounded: a status may carry it for years."""
    found = tuple(shortfalls)
    return Explanation(
        message=few([shortfall.message for shortfall in found], "; ") or "waits for room",
        shortfalls=found,
        place=found[0].place if found else place_name,
    )


def obtaining(nodes: Mapping[str, int]) -> Explanation:
    """Said of a gang on whose behalf nodes were asked for, of which these have not come."""
    counts = [f"{count} node(s) of pool {name}" for name, count in sorted(nodes.items())]
    message = f"there is no room for it now; waits for {few(counts, ', ')} to come"
    if not nodes:
        message = "the requested nodes have joined; waits until all its pods fit"
    shortfall = Shortfall(kind="obtaining", resource="nodes", missing=sum(nodes.values()), place="nodes",
                          message=message)  # fmt: skip
    return Explanation(message=message, shortfalls=(shortfall,), place="nodes")


def few(texts: Sequence[str], between: str) -> str:
    """The first few, and how many more there are."""
    shown = between.join(texts[:MOST_REASONS])
    if len(texts) > MOST_REASONS:
        shown += f"{between}and {len(texts) - MOST_REASONS} more"
    return shown if len(shown) <= LONGEST_MESSAGE else shown[: LONGEST_MESSAGE - 1] + "…"
