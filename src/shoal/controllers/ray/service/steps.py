"""One pass of an incremental upgrade, or of its way back: capacity and traffic of both clusters.

Capacity leads and traffic follows, so that requests go where replicas are meant to be. Pure; the reconciler applies the
capacities to Serve and the weights to the route.
"""

from __future__ import annotations

import msgspec

from shoal.controllers.ray.service.upgrade_strategy import StepOptions

WHOLE = 100


class ClusterShare(msgspec.Struct, frozen=True):
    """Percent of one cluster. `since` is the time in seconds since its traffic last moved; None means never."""

    capacity: int
    traffic: int
    since: float | None = None


class UpgradeShares(msgspec.Struct, frozen=True):
    active: ClusterShare
    pending: ClusterShare


def next_capacities(shares: UpgradeShares, options: StepOptions, *, rollback: bool) -> UpgradeShares:
    """Pending first, then active; each sees what the one before it did."""
    for turn in ("pending", "active"):
        shares = _with_capacity(shares, turn, options.surge, rollback)
    return shares


def next_traffic(shares: UpgradeShares, options: StepOptions, *, pending_ready: bool, rollback: bool) -> UpgradeShares:
    """One step of traffic towards the cluster that gains it, when its interval has passed."""
    gaining = shares.active if rollback else shares.pending
    waits = gaining.since is not None and gaining.since < options.interval
    if gaining.traffic == gaining.capacity or waits or not (rollback or pending_ready):
        return shares
    gained = min(WHOLE, gaining.traffic + options.step, gaining.capacity)
    replace = msgspec.structs.replace
    moved, other = (shares.active, shares.pending) if rollback else (shares.pending, shares.active)
    moved, other = replace(moved, traffic=gained), replace(other, traffic=WHOLE - gained)
    return UpgradeShares(moved, other) if rollback else UpgradeShares(other, moved)


def is_promoted(shares: UpgradeShares) -> bool:
    return shares.active.capacity == 0 and shares.pending.traffic == WHOLE


def _with_capacity(shares: UpgradeShares, turn: str, surge: int, rollback: bool) -> UpgradeShares:
    active, pending = shares.active, shares.pending
    leading = active if rollback else pending
    if leading.capacity != leading.traffic:
        return shares  # traffic has to catch up first
    crowded = active.capacity + pending.capacity > WHOLE
    replace = msgspec.structs.replace
    match turn, rollback, crowded:
        case "pending", False, False:
            return replace(shares, pending=replace(pending, capacity=min(WHOLE, pending.capacity + surge)))
        case "active", False, True:
            return replace(shares, active=replace(active, capacity=max(0, active.capacity - surge)))
        case "pending", True, True:
            return replace(shares, pending=replace(pending, capacity=max(0, pending.capacity - surge)))
        case "active", True, False:
            return replace(shares, active=replace(active, capacity=min(WHOLE, active.capacity + surge)))
    return shares
