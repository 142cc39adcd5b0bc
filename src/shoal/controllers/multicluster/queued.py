"""Where queued jobs of the hub could go, chosen by the engine: what the queue controller and the dispatcher ask for.

The queue controller asks before it reserves quota, so that a gang that no member would start holds none. The dispatcher
asks when a member did not take what it was offered. Remembers nothing of its own: the ledger is `ClusterPlacing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shoal.api.codec import typed
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Json
from shoal.controllers.multicluster.placing import ClusterPlacing, wishes_of
from shoal.controllers.planning.other_clusters import NominatedClusters
from shoal.engine.kueue import read
from shoal.engine.model import Amounts, Gang
from shoal.errors import BadInput


class QueuedPlaces:
    """A `QueueClusters`."""

    def __init__(self, placing: ClusterPlacing) -> None:
        self.placing = placing
        self.has_queue = False
        """Does a queue controller of this process ask?"""

    def subscribe(self, room: Callable[[str], None]) -> None:
        self.has_queue = True
        self.placing.subscribe(room)

    def is_special(self, uid: str) -> bool:
        return self.placing.is_special(uid)

    def room(self, cluster: str) -> Amounts | None:
        return self.placing.room(cluster, queued=True)

    def nominate(
        self,
        gang: Gang,
        check: str,
        annotations: Mapping[str, str] | None,
        among: frozenset[str] | None = None,
    ) -> NominatedClusters:
        hub = self.placing.hub
        names = hub.clusters_of(check) if hub is not None else None
        if hub is None:
            return NominatedClusters(reasons={"": "other clusters are not read yet"})
        if not names:
            return NominatedClusters(reasons={"": f"check {check} names no clusters: see its MultiKueueConfig"})
        try:
            wishes = wishes_of(annotations, self.placing.settings.policy, self.placing.settings.loss)
        except BadInput as error:
            return NominatedClusters(reasons={"": str(error)})
        asked = names if among is None else tuple(name for name in names if name in among)
        found = self.placing.choose(gang, asked, wishes)
        return NominatedClusters(found.clusters, found.reasons)

    def nominate_again(self, workload: Json, check: str, annotations: Mapping[str, str] | None) -> NominatedClusters:
        """For a Workload that holds quota; what it keeps meanwhile does not stand in its own way."""
        uid = str(workload["metadata"]["uid"])
        gang = self.placing.gang(uid) or read.workload(typed(workload, Workload))
        self.placing.forget(uid)
        return self.nominate(gang, check, annotations)

    def other_place(self, workload: Json, check: str, annotations: Mapping[str, str] | None) -> str:
        """Where it would start now if it left its cluster, which is cordoned; empty: nowhere."""
        gang = self.placing.gang(str(workload["metadata"]["uid"])) or read.workload(typed(workload, Workload))
        return next(iter(self.nominate(gang, check, annotations).clusters), "")

    def keep_for(self, workload: Json, clusters: tuple[str, ...]) -> None:
        """Its room is there from now on."""
        uid = str(workload["metadata"]["uid"])
        self.keep(self.placing.gang(uid) or read.workload(typed(workload, Workload)), clusters)

    def keep(self, gang: Gang, clusters: tuple[str, ...]) -> None:
        self.placing.keep(gang, clusters)

    def forget(self, uid: str) -> None:
        self.placing.forget(uid)

    def refuse(self, uid: str, cluster: str, why: str) -> None:
        self.placing.refuse(uid, cluster, why)
