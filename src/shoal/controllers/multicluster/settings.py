"""What an administrator may choose about several clusters. Read once at the entry point and passed down."""

from __future__ import annotations

from typing import Literal

import msgspec

from shoal.controllers.multicluster.choice import parse_policy
from shoal.controllers.multicluster.loss import Loss
from shoal.controllers.planning.rights import listed_kind
from shoal.controllers.planning.stamps import By
from shoal.errors import BadInput
from shoal.kube.bounded import AnswerLimits

ENGINE = "shoal.dev/multikueue-dispatcher-engine"
ALL_AT_ONCE = "kueue.x-k8s.io/multikueue-dispatcher-all-at-once"
INCREMENTAL = "kueue.x-k8s.io/multikueue-dispatcher-incremental"


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str = "shoal-system"
    """Where the Secrets with kubeconfigs are."""
    lost_seconds: float = 900.0
    """How long a cluster may be silent before its gangs go back to the queue."""
    loss: Loss = "move-anyway"
    """What becomes of a queued job whose cluster is lost: `move-anyway`, as MultiKueue, back to the queue, `wait` for
    that cluster, or `move` once it has stopped there by itself. Annotation `shoal.dev/cluster-loss` of the job or its
    ClusterQueue says otherwise."""
    app_wrapper_loss: Loss = "wait"
    """The same for AppWrappers of v1beta1, and their annotation."""
    lease_seconds: float = 40.0
    """How long gangs that would `move` run on in a cluster that does not hear this hub."""
    fence_seconds: float = 60.0
    """How long they may then take to stop, with what controllers there take to notice, before they start elsewhere; the
    time that a pod asks for beyond the usual 30 seconds is added."""
    lease_namespace: str = "shoal-system"
    """Namespace of Shoal in the other clusters, where this hub's Lease is."""
    probe_seconds: float = 5.0
    """How often every cluster is asked whether it is there."""
    silent_seconds: float = 15.0
    """How long it may not answer before it is shown as not connected."""
    request_seconds: float = 10.0
    """Limit of every single request to another cluster."""
    answers: AnswerLimits = AnswerLimits()
    """How much a member may answer; one that sends more counts as not connected."""
    refused_seconds: float = 60.0
    """How long a gang that no cluster takes waits before it is offered again."""
    namespaces: Literal["any", "accepted"] = "any"
    """`accepted`: only member namespaces that name the hub's namespace by UID take gangs. `any`: those that name
    another one do not."""
    app_wrappers: str = ""
    """The MultiKueueConfig by which AppWrappers of v1beta1 go to other clusters (MCAD's dispatcher mode); several with
    commas between, for more than the 20 clusters that one may name; empty: they stay here."""
    app_wrapper_namespaces: Literal["any", "accepted"] = "accepted"
    """The same as `namespaces`, for these AppWrappers."""
    dispatcher: str = ENGINE
    """What chooses the clusters that a queued job is offered to: the engine, or one of MultiKueue's by its name
    (`kueue.x-k8s.io/multikueue-dispatcher-all-at-once`, `kueue.x-k8s.io/multikueue-dispatcher-incremental`); any other
    name is a controller of your own that writes `status.nominatedClusterNames`."""
    policy: str = "first"
    """Which of the clusters that would start a gang now gets it: `first`, `most-free`, `tightest`, `cheapest`,
    `affinity`, `spread`, or several of them with commas between; `race=N` asks so many at once."""
    admit_seconds: float = 60.0
    """How long a cluster may let a gang wait before it goes to another."""
    step_size: int = 3
    """How many clusters more the incremental dispatcher asks at once."""
    step_seconds: float = 300.0
    """How long the incremental dispatcher waits before it asks more."""
    origin: str = ""
    """Mark of this hub on its copies; empty: from the UID of its `kube-system` namespace."""
    unserved_kinds: tuple[str, ...] = ()
    """Kinds that only members serve and AppWrappers may wrap, as PLURAL.GROUP/KIND; their creators need the right to
    create them at the hub."""
    trust_unstamped: bool = False
    """Send AppWrappers whose creator no admission recorded. As the setting of AppWrappers, unless it is set here."""
    stamps: By = "server"
    """What records the creator of an AppWrapper at the hub."""

    @property
    def chooses(self) -> bool:
        """Does the engine choose where queued jobs go?"""
        return self.dispatcher == ENGINE

    def __post_init__(self) -> None:
        try:
            parse_policy(self.policy)
        except BadInput as error:
            raise ValueError(f"policy: {error}") from None
        for text in self.unserved_kinds:
            try:
                listed_kind(text)
            except BadInput as error:
                raise ValueError(f"unserved_kinds: {error}") from None
