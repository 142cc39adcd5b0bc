"""What a pod set asks of a topology: near which other pods it wants to be, and in which groups.

Read from `topologyRequest` of a Workload's pod set. Frozen data; `grain_of` finds the levels it names in a topology,
or says in Kueue's words why they cannot be found there.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec

from shoal.engine.identity import by_identity
from shoal.engine.model import Amounts, PodSet, Toleration, TopologyPlacement


class SliceLayer(msgspec.Struct, frozen=True):
    """Groups of `size` pods, each within one domain of a level."""

    topology: str
    size: int


class TopologyWish(msgspec.Struct, frozen=True, kw_only=True):
    """One of required, preferred and unconstrained, or slices alone; empty when a pod set says nothing."""

    required: str = ""
    preferred: str = ""
    unconstrained: bool = False
    layers: tuple[SliceLayer, ...] = ()
    """Outermost first."""

    @property
    def is_explicit(self) -> bool:
        return bool(self.required or self.preferred or self.unconstrained or self.layers)

    @property
    def slices_only(self) -> bool:
        return bool(self.layers) and not self.required and not self.preferred


NO_WISH = TopologyWish()


def read_wish(request: Mapping[str, Any]) -> TopologyWish:
    """From a `topologyRequest`. A single slice has two fields of its own, several are a list."""
    layers = tuple(
        SliceLayer(entry.get("topology") or "", entry.get("size") or 0)
        for entry in request.get("podsetSliceRequiredTopologyConstraints") or ()
    )
    if not layers and request.get("podSetSliceRequiredTopology"):
        layers = (SliceLayer(request["podSetSliceRequiredTopology"], request.get("podSetSliceSize") or 0),)
    return TopologyWish(
        required=request.get("required") or "",
        preferred=request.get("preferred") or "",
        unconstrained=bool(request.get("unconstrained")),
        layers=layers,
    )


class PodsToPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One pod set that needs places in a topology."""

    name: str
    count: int
    requests: Amounts
    """Of one pod, as its template has them."""
    wish: TopologyWish = NO_WISH
    implied: bool = False
    """It says nothing, and its queue has only flavors with a topology: unconstrained."""
    group: str = ""
    """Pod sets of one group are placed together: the smaller one leads."""
    node_selector: dict[str, str] = {}
    affinity: dict[str, Any] = {}
    tolerations: tuple[Toleration, ...] = ()
    previous: TopologyPlacement | None = None
    """Where the pods of the slice of an elastic job are whose place it takes."""


def pods_to_place(
    pod_set: PodSet, count: int, requests: Amounts, *, implied: bool, previous: TopologyPlacement | None = None
) -> PodsToPlace:
    request = pod_set.topology_request
    return PodsToPlace(
        name=pod_set.name,
        count=count,
        requests=requests,
        wish=read_wish(request),
        implied=implied,
        group=str(request.get("podSetGroupName") or ""),
        node_selector=pod_set.node_selector,
        affinity=pod_set.affinity,
        tolerations=pod_set.tolerations,
        previous=previous,
    )


class Grain(msgspec.Struct, frozen=True, kw_only=True):
    """A wish in the terms of one topology: at which levels, and in groups of how many."""

    level: int
    """Index of the level at which all pods should be in one domain."""
    required: bool
    unconstrained: bool
    slice_level: int
    slice_size: int
    inner_sizes: dict[int, int] = {}
    """Level index to the size of the groups within it, below the slice level."""
    layers: tuple[SliceLayer, ...] = ()
    """All layers, where there are several."""


def requested_level(wish: TopologyWish, implied: bool, levels: tuple[str, ...]) -> str:
    if wish.required or wish.preferred:
        return wish.required or wish.preferred
    if wish.layers:
        return levels[0]
    return levels[-1] if wish.unconstrained or implied else ""


def has_levels(wish: TopologyWish, levels: tuple[str, ...]) -> bool:
    """Does a topology have every level that the wish names?"""
    level = requested_level(wish, False, levels)
    return level in levels and all(layer.topology in levels for layer in wish.layers)


@by_identity
def grain_of(pods: PodsToPlace, levels: tuple[str, ...]) -> Grain | str:
    """The wish of these pods at the levels of a topology, or why it cannot be met by any placement."""
    wish = pods.wish
    size = wish.layers[0].size if wish.layers else 1
    if size <= 0:
        return "slice topology requested, but slice size not provided"
    wanted = requested_level(wish, pods.implied, levels)
    if not wanted:
        return "topology level not specified"
    if wanted not in levels:
        return f"no requested topology level: {wanted}"
    slice_key = wish.layers[0].topology if wish.layers else levels[-1]
    if slice_key not in levels:
        return f"no requested topology level for slices: {slice_key}"
    level, slice_level = levels.index(wanted), levels.index(slice_key)
    if level > slice_level:
        return f"podset slice topology {slice_key} is above the podset topology {wanted}"
    inner = _inner_sizes(wish.layers, slice_level, levels)
    if isinstance(inner, str):
        return inner
    return Grain(
        level=level,
        required=bool(wish.required),
        unconstrained=wish.unconstrained or pods.implied or wish.slices_only,
        slice_level=slice_level,
        slice_size=size,
        inner_sizes=inner,
        layers=wish.layers if inner else (),
    )


def _inner_sizes(layers: tuple[SliceLayer, ...], slice_level: int, levels: tuple[str, ...]) -> dict[int, int] | str:
    """Sizes of the groups at each level below the slice level; levels between two layers have the inner one's."""
    sizes: dict[int, int] = {}
    above = slice_level
    for outer, layer in pairwise(layers):
        if layer.topology not in levels:
            return f"no requested topology level for additional slice layer: {layer.topology}"
        at = levels.index(layer.topology)
        if at <= above:
            return f"additional slice layer topology {layer.topology} must be at a lower level than {levels[above]}"
        if layer.size <= 0 or outer.size % layer.size:
            return f"additional slice layer size {layer.size} must evenly divide parent layer size {outer.size}"
        sizes |= dict.fromkeys(range(above + 1, at + 1), layer.size)
        above = at
    return sizes
