"""Places for the pods of a gang in one topology: the door of this folder.

Called by the cycle once quota has a flavor with a topology for them, and by the conformance runner. Pure: nothing is
taken until the caller does so (`TopologyTree.use`). All or nothing: the first pod set without a place ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shoal.engine.kueue.topology.assignment import Values, add_usage
from shoal.engine.kueue.topology.balanced import balance
from shoal.engine.kueue.topology.choose import PlaceSearch, choose, misfit
from shoal.engine.kueue.topology.one_domain import asks_for_one_domain, in_one_domain
from shoal.engine.kueue.topology.replace import merged, replacement
from shoal.engine.kueue.topology.request import Grain, PodsToPlace, grain_of
from shoal.engine.kueue.topology.room import kind_of, room_of
from shoal.engine.kueue.topology.settings import DEFAULT_TOPOLOGY, TopologySettings
from shoal.engine.kueue.topology.spots import NodeFilter, Preferences, RoomCount, Spot
from shoal.engine.kueue.topology.spread import spread
from shoal.engine.kueue.topology.tree import Domain, TopologyTree
from shoal.engine.kueue.topology.view import RoomView, choose_in
from shoal.engine.model import Amounts, DomainShare, Toleration, TopologyPlacement
from shoal.errors import BadInput


class Repair(msgspec.Struct, frozen=True):
    """A gang that runs and has lost a node."""

    failed: str
    placed: dict[str, TopologyPlacement]
    """By pod set."""
    is_pod: bool = False


class PlaceOutcome(msgspec.Struct, frozen=True):
    """For one pod set: its places, or why it has none."""

    placement: TopologyPlacement | None = None
    failure: str = ""


_Chosen = tuple[PlaceSearch, tuple[int, list[Spot]] | str, bool]
"""The search, the level and its domains (or why there are none), and whether these are filled evenly."""
Assumed = dict[Values, Amounts]
"""What pod sets placed before in the same gang take, by lowest domain."""


class Placer:
    """One gang's way through one topology."""

    def __init__(
        self, tree: TopologyTree, settings: TopologySettings = DEFAULT_TOPOLOGY, *,
        tolerations: tuple[Toleration, ...] = (), assumed: Assumed | None = None, empty: bool = False,
    ) -> None:  # fmt: skip
        """`tolerations` are the flavor's; `empty`: as if no placed gang were there."""
        self.tree = tree
        self.settings = settings
        self.tolerations = tolerations
        self.assumed: Assumed = {} if assumed is None else assumed
        self.empty = empty

    def place(self, pod_sets: Sequence[PodsToPlace], repair: Repair | None = None) -> dict[str, PlaceOutcome]:
        """Places for all of them; ends at the first that has none."""
        found: dict[str, PlaceOutcome] = {}
        for group in _groups(pod_sets):
            outcome = self._group(group) if repair is None else self._repaired(group, repair)
            found |= outcome
            if any(one.failure for one in outcome.values()):
                break
        return found

    def _repaired(self, group: list[PodsToPlace], repair: Repair) -> dict[str, PlaceOutcome]:
        found: dict[str, PlaceOutcome] = {}
        for pods in group:
            placed = repair.placed.get(pods.name)
            if placed is None:
                continue
            keeps = self.settings.keep_single_pods and repair.is_pod
            found[pods.name] = PlaceOutcome(placed) if keeps else self._replaced(pods, placed, repair.failed)
            if found[pods.name].failure:
                break
        return found

    def _replaced(self, pods: PodsToPlace, placed: TopologyPlacement, failed: str) -> PlaceOutcome:
        wanted = replacement(self.tree, pods, placed, failed)
        if isinstance(wanted, str):
            return PlaceOutcome(failure=wanted)
        found = self._find(wanted.pods, None, within=wanted.within)
        if isinstance(found, str):
            return PlaceOutcome(failure=found)
        new = found[pods.name]
        if not new.domains:
            return PlaceOutcome(failure=f"cannot find replacement assignment for unhealthy node: {failed}")
        self._assume(new, pods)
        return PlaceOutcome(merged(self.tree, new, wanted.staying))

    def _group(self, group: list[PodsToPlace]) -> dict[str, PlaceOutcome]:
        leader, workers = _leader_and_workers(group)
        previous = workers.previous if self.settings.keep_places else None
        if previous is not None and not self._is_stale(leader, workers):
            return self._kept(leader, workers, previous)
        found = self._find(workers, leader)
        if isinstance(found, str):
            return {pods.name: PlaceOutcome(failure=found) for pods in group}
        for pods in group:
            if pods.name in found:
                self._assume(found[pods.name], pods)
        return {pods.name: PlaceOutcome(found.get(pods.name)) for pods in group}

    def _is_stale(self, leader: PodsToPlace | None, workers: PodsToPlace) -> bool:
        known = [pods.previous for pods in (workers, leader) if pods is not None and pods.previous is not None]
        return any(self.tree.missing(placement) for placement in known)

    def _kept(
        self, leader: PodsToPlace | None, workers: PodsToPlace, previous: TopologyPlacement
    ) -> dict[str, PlaceOutcome]:
        """Pods of an elastic job stay: more are placed beside them, or the last ones go."""
        more = workers.count - previous.count
        kept = previous if more >= 0 else previous.first(workers.count)
        self._assume(kept, workers)
        found = {workers.name: PlaceOutcome(kept)}
        if leader is not None and (leader.previous is not None or more <= 0):
            found[leader.name] = PlaceOutcome(leader.previous)
            if leader.previous is not None:
                self._assume(leader.previous, leader)
        if more <= 0:
            return found
        placing = leader if leader is not None and leader.name not in found else None
        new = self._find(msgspec.structs.replace(workers, count=more, previous=None), placing)
        if isinstance(new, str):
            return {workers.name: PlaceOutcome(failure=new)}
        self._assume(new[workers.name], workers)
        found[workers.name] = PlaceOutcome(merged(self.tree, new[workers.name], previous))
        if placing is not None:
            self._assume(new[placing.name], placing)
            found[placing.name] = PlaceOutcome(new[placing.name])
        return found

    def _assume(self, placement: TopologyPlacement, pods: PodsToPlace) -> None:
        for domain in placement.domains:
            add_usage(self.assumed.setdefault(domain.values, {}), pods.requests, domain.count)

    def _find(
        self, pods: PodsToPlace, leader: PodsToPlace | None, within: Values = ()
    ) -> dict[str, TopologyPlacement] | str:
        """Places for one pod set, and for its leader beside it; or why there are none."""
        grain = grain_of(pods, self.tree.levels)
        if isinstance(grain, str):
            return grain
        try:
            only_room = not within and pods.count >= grain.slice_size and self._is_plain(grain)
            if only_room and leader is None and asks_for_one_domain(grain, len(self.tree.levels) - 1):
                found = self._in_one_domain(pods, grain)
                if found is not None:
                    return {pods.name: found}
            search, chosen, evenly = (
                self._by_arrays(pods, leader, grain) if only_room else self._by_spots(pods, leader, grain, within)
            )
        except BadInput as fault:
            return f"invalid affinity node selectors: {fault}"
        if isinstance(chosen, str):
            return chosen
        lowest = spread(search, *chosen, balanced=evenly)
        if lowest is None:
            return misfit(search, grain.level, 0)
        placed = {pods.name: self._placement((spot.domain, spot.pods) for spot in lowest)}
        if leader is not None:
            placed[leader.name] = self._placement((spot.domain, spot.leaders) for spot in lowest)
        return placed

    def _in_one_domain(self, pods: PodsToPlace, grain: Grain) -> TopologyPlacement | None:
        room = room_of(self.tree)
        row = room.row(kind_of(pods, self.tolerations), pods, self.tolerations)
        found = in_one_domain(room, row, grain.level, pods.count, pods.requests, self.assumed, empty=self.empty)
        return None if found is None else self._placement(found)

    def _is_plain(self, grain: Grain) -> bool:
        """Does nothing but room count, in one size of slices?"""
        odd = grain.layers or (grain.required and grain.unconstrained) or self.settings.preferred_nodes
        return not odd and not self._is_balanced(grain)

    def _by_arrays(self, pods: PodsToPlace, leader: PodsToPlace | None, grain: Grain) -> _Chosen:
        room = room_of(self.tree)
        kind = kind_of(pods, self.tolerations)
        row = room.row(kind, pods, self.tolerations)
        view = RoomView(
            room, row, grain, pods, None if leader is None else leader.requests, self.assumed, empty=self.empty
        )
        search = PlaceSearch(
            self.tree, [], grain, self._preferences(grain), pods.count, 0 if leader is None else 1,
            lambda: room.excluded(kind, view.pods[-1], view.assumed, empty=self.empty),
        )  # fmt: skip
        return search, choose_in(view, search), False

    def _by_spots(self, pods: PodsToPlace, leader: PodsToPlace | None, grain: Grain, within: Values) -> _Chosen:
        node_filter = NodeFilter(pods, self.tolerations, self.settings.preferred_nodes)
        requests = None if leader is None else leader.requests
        count = RoomCount(
            grain, node_filter, pods.requests, requests, self.assumed, empty=self.empty, within=within,
        )  # fmt: skip
        search = PlaceSearch(
            self.tree, count.levels(self.tree), grain, self._preferences(grain),
            pods.count, 0 if leader is None else 1, lambda: count.excluded,
        )  # fmt: skip
        evenly = balance(search, count) if self._is_balanced(grain) else None
        return search, evenly or choose(search), evenly is not None

    def _preferences(self, grain: Grain) -> Preferences:
        return Preferences(
            least_free=grain.unconstrained and self.settings.mixed_profile, by_score=self.settings.preferred_nodes
        )

    def _is_balanced(self, grain: Grain) -> bool:
        return self.settings.balanced and not grain.required and not grain.unconstrained

    def _placement(self, shares: Iterable[tuple[Domain, int]]) -> TopologyPlacement:
        used = sorted([(domain.values, count) for domain, count in shares if count > 0])
        domains = tuple([DomainShare(self.tree.key_of(values), count) for values, count in used])
        return TopologyPlacement(self.tree.stored_levels, domains)


def _groups(pod_sets: Sequence[PodsToPlace]) -> list[list[PodsToPlace]]:
    if not any(pods.group for pods in pod_sets):
        return [[pods] for pods in pod_sets]
    groups: dict[object, list[PodsToPlace]] = {}
    for index, pods in enumerate(pod_sets):
        groups.setdefault(pods.group or index, []).append(pods)
    return list(groups.values())


def _leader_and_workers(group: list[PodsToPlace]) -> tuple[PodsToPlace | None, PodsToPlace]:
    """The smaller of two leads; of two equal ones, the second."""
    if len(group) == 1:
        return None, group[0]
    first, second = group[:2]
    return (first, second) if second.count > first.count else (second, first)
