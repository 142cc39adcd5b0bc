"""Names for new pods: fixed until the pod exists, never used twice.

A create whose answer was lost is repeated under the same name, so it cannot act twice; a pod that is gone never
lends its name to another, because Ray's autoscaler names pods to delete. Kept in memory: after a restart the first
list of pods is the truth.
"""

from __future__ import annotations

from random import Random

from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.cluster import status
from shoal.controllers.ray.cluster.workers import WorkerSlot


class PodNames:
    def __init__(self, random: Random | None = None) -> None:
        self._life = f"{(random or Random()).getrandbits(64):x}"
        self._used: dict[str, set[str]] = {}

    def choose(self, cluster: Json, slot: WorkerSlot, prefix: str, taken: set[str]) -> str:
        """A name that no pod has or had and that is in no request to delete."""
        used = self._used.get(view.uid(cluster), set())
        # until all pods first stood: two operators that both believe to lead choose the same names, and no pod doubles
        life = self._life if status.condition_status(cluster, status.PROVISIONED) == "True" else ""
        turn = 0
        while True:
            name = prefix + names.suffix(view.uid(cluster), slot.group, slot.replica, slot.host, life, turn)
            if name not in used and name not in taken:
                return name
            turn += 1

    def replica_name(self, cluster: Json, slot: WorkerSlot, taken: set[str]) -> str:
        """The name that the hosts of one multi-host replica share."""
        turn = 0
        while True:
            name = f"{slot.group}-{names.suffix(view.uid(cluster), slot.group, slot.replica, self._life, turn)}"
            if name not in taken:
                return names.checked_label(name)
            turn += 1

    def note_used(self, cluster: Json, name: str) -> None:
        self._used.setdefault(view.uid(cluster), set()).add(name)

    def forget(self, uid: str) -> None:
        self._used.pop(uid, None)
