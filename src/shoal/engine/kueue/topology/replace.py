"""A node failed: find places for its pods alone, and leave the others where they are.

Called by `place` for a gang whose status names an unhealthy node. The replacement stays in the domain that the pod set
requires, and completes the slice that the failed node broke.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from shoal.engine.kueue.topology.assignment import Values
from shoal.engine.kueue.topology.request import PodsToPlace, SliceLayer, requested_level
from shoal.engine.kueue.topology.tree import TopologyTree
from shoal.engine.model import DomainShare, TopologyPlacement


class Replacement(msgspec.Struct, frozen=True):
    """The pods that need a new place, those that stay, and the domain that must not be left (empty: any)."""

    pods: PodsToPlace
    staying: TopologyPlacement
    within: Values


def replacement(tree: TopologyTree, pods: PodsToPlace, placed: TopologyPlacement, failed: str) -> Replacement | str:
    """What has to be placed once more; or why it cannot be."""
    lost = sum(domain.count for domain in placed.domains if domain.values[-1] == failed)
    staying = TopologyPlacement(placed.levels, tuple(one for one in placed.domains if one.values[-1] != failed))
    stale = tree.missing(staying)
    if stale:
        return (
            "Cannot replace the node, because the existing topologyAssignment is invalid, "
            f"as it contains the stale domain {stale}"
        )
    layers = pods.wish.layers
    if layers and layers[0].size <= 0:
        return "slice topology requested, but slice size not provided"
    within = _within(tree, pods, staying, lost)
    wish = pods.wish
    if layers and within and lost % layers[0].size:
        wish = msgspec.structs.replace(wish, layers=_whole_groups(layers, lost))
    return Replacement(msgspec.structs.replace(pods, count=lost, wish=wish), staying, within)


def _whole_groups(layers: tuple[SliceLayer, ...], lost: int) -> tuple[SliceLayer, ...]:
    """The innermost groups that were lost whole; pods one by one where none was."""
    return next(((layer,) for layer in reversed(layers) if lost % layer.size == 0), ())


def _within(tree: TopologyTree, pods: PodsToPlace, staying: TopologyPlacement, lost: int) -> Values:
    """The domain that the lost pods have to come back to."""
    level = requested_level(pods.wish, pods.implied, tree.levels)
    if level not in tree.levels or not staying.domains:
        return ()
    layers = pods.wish.layers
    if layers and lost % layers[0].size:
        broken = next((layer for layer in reversed(layers) if lost % layer.size), layers[0])
        return _incomplete(tree, staying, lost, broken if len(layers) > 1 else layers[0])
    if not pods.wish.required:
        return ()
    domain = tree.domain(staying.domains[0].values)
    return () if domain is None else domain.ancestor(tree.levels.index(level)).values


def _incomplete(tree: TopologyTree, staying: TopologyPlacement, lost: int, layer: SliceLayer) -> Values:
    """The domain whose groups would be whole again with the lost pods."""
    if layer.topology not in tree.levels:
        return ()
    level = tree.levels.index(layer.topology)
    counts: Counter[Values] = Counter()
    for share in staying.domains:
        domain = tree.domain(share.values)
        if domain is not None:
            counts[domain.ancestor(level).values] += share.count
    return next((values for values, count in sorted(counts.items()) if (count + lost) % layer.size == 0), ())


def merged(tree: TopologyTree, one: TopologyPlacement, other: TopologyPlacement) -> TopologyPlacement:
    """Both together, in order; pods in the same domain add up."""
    counts: Counter[Values] = Counter()
    for share in (*one.domains, *other.domains):
        counts[share.values] += share.count
    ordered = sorted(counts, key=lambda values: _path(tree, values))
    return TopologyPlacement(one.levels, tuple(DomainShare(values, counts[values]) for values in ordered))


def _path(tree: TopologyTree, values: Values) -> Values:
    domain = tree.domain(values)
    return values if domain is None else domain.values
