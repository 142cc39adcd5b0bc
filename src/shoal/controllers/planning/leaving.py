"""Gangs that are deleted, and of which pods are left: what these still hold, counted once.

The name of a deleted gang is free for another at once; what its pods take is not, before they
end. Nothing of it ever starts again, so that an ended pod gives its room back by itself: no more is held than a
controller that starts now would count, and what pods without a node may still take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from shoal.engine import Engine
from shoal.engine.model import Gang, PodFact
from shoal.engine.nodes import pod_set_index


class Leaving:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._gangs: dict[str, Gang] = {}
        """As the engine knows them, by UID, each under a key of its own."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._gangs

    def begin(self, gang: Gang, pods: Iterable[PodFact]) -> None:
        """It is deleted; `gang` is what it held."""
        self._put(msgspec.structs.replace(gang, key=f"{gang.key}#{gang.uid}", state="stopping"), pods)

    def refresh(self, uid: str, pods: Iterable[PodFact]) -> None:
        """Its pods have changed; with the last of them it is forgotten."""
        if uid in self._gangs:
            self._put(self._gangs[uid], pods)

    def _put(self, gang: Gang, pods: Iterable[PodFact]) -> None:
        known, left = self._gangs.pop(gang.uid, None), remains(gang, pods)
        if left.pod_sets:
            self._gangs[gang.uid] = left
            if left != known:
                self._engine.update(left)
        elif known is not None:
            self._engine.remove(known.key)


def remains(gang: Gang, pods: Iterable[PodFact]) -> Gang:
    """The gang as large as what is left of it."""
    found = [pod_set_index(gang.pod_sets, pod) for pod in pods if not pod.is_terminal]
    counts = Counter(gang.pod_sets[index].name for index in found if index is not None)
    return msgspec.structs.replace(
        gang,
        pod_sets=tuple(
            msgspec.structs.replace(one, count=counts[one.name]) for one in gang.pod_sets if counts[one.name]
        ),
        assignment=tuple(
            msgspec.structs.replace(one, count=counts[one.name], nodes={})
            for one in gang.assignment
            if counts[one.name]
        ),
    )
