"""Whose turn it is: pods of one gang stand together, and gangs that have lost pods come before anything new.

Called by the scheduler. A family is a gang that is bound whole, a PodGroup, or the pods that a queue started together
(these may be bound one by one, and say nothing of how many they are). Counts living pods that have a node; decides no
place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from shoal.api.labels import KUEUE_WORKLOAD
from shoal.api.meta import Json
from shoal.local.scheduler.groups import group_key, order


def family_key(pod: Json) -> str:
    """Empty for a pod on its own."""
    metadata = pod["metadata"]
    workload = (metadata.get("annotations") or {}).get(KUEUE_WORKLOAD)
    return group_key(pod) or (f"workload/{metadata.get('namespace', '')}/{workload}" if workload else "")


class Families:
    def __init__(self) -> None:
        self._settled: dict[str, set[str]] = defaultdict(set)
        self._family: dict[str, str] = {}

    def settle(self, uid: str, pod: Json) -> None:
        """A pod has a node."""
        if key := family_key(pod):
            self._settled[key].add(uid)
            self._family[uid] = key

    def leave(self, uid: str) -> None:
        """A pod has ended, is gone, or was not bound after all."""
        key = self._family.pop(uid, "")
        if key:
            self._settled[key].discard(uid)
            if not self._settled[key]:
                del self._settled[key]

    def has_survivors(self, pod: Json) -> bool:
        return family_key(pod) in self._settled

    def survivors(self, pod: Json) -> int:
        return len(self._settled.get(family_key(pod), ()))

    def incomplete(self, pending: Iterable[Json], size: Callable[[Json], int | None]) -> list[list[Json]]:
        """Pending pods of families of which others live: by priority, then those that lack least. `size` is
        how many a family needs at least; what is more than that is growth, and takes its turn with all others."""
        found: dict[str, list[Json]] = defaultdict(list)
        for pod in pending:
            if self.has_survivors(pod):
                found[family_key(pod)].append(pod)
        lacking = [
            sorted(pods, key=order)
            for pods in found.values()
            if (wanted := size(pods[0])) is None or self.survivors(pods[0]) < wanted
        ]
        return sorted(lacking, key=lambda pods: (order(pods[0])[0], len(pods), order(pods[0])))

    def line(self, pending: Iterable[Json], begun: Callable[[Json], bool]) -> list[Json]:
        """All waiting pods, best first; those that have `begun` before all else."""
        waiting = [(order(pod), family_key(pod), pod) for pod in pending]
        first: dict[str, tuple[int, str, str, str]] = {}
        for place, key, _ in waiting:
            if key:
                first[key] = min(first.get(key, place), place)
        turns = [(not begun(pod), first.get(key, place), key, place, pod) for place, key, pod in waiting]
        return [pod for *_, pod in sorted(turns, key=lambda turn: turn[:4])]
