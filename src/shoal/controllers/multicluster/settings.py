"""What an administrator may choose about several clusters. Read once at the entry point and passed down."""

from __future__ import annotations

from typing import Literal

import msgspec

from shoal.controllers.multicluster.choice import Policy
from shoal.controllers.planning.rights import listed_kind
from shoal.controllers.planning.stamps import By
from shoal.errors import BadInput
from shoal.kube.bounded import AnswerLimits


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str = "shoal-system"
    """Where the Secrets with kubeconfigs are."""
    lost_seconds: float = 900.0
    """How long a cluster may be silent before its gangs go back to the queue."""
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
    """The MultiKueueConfig by which AppWrappers of v1beta1 go to other clusters (MCAD's dispatcher mode); empty: they
    stay here."""
    app_wrapper_namespaces: Literal["any", "accepted"] = "accepted"
    """The same as `namespaces`, for these AppWrappers."""
    policy: Policy = "first"
    """Which of the clusters that would start an AppWrapper now gets it."""
    admit_seconds: float = 60.0
    """How long a cluster may let such an AppWrapper wait before it goes to another."""
    origin: str = ""
    """Mark of this hub on its copies; empty: from the UID of its `kube-system` namespace."""
    unserved_kinds: tuple[str, ...] = ()
    """Kinds that only members serve and AppWrappers may wrap, as PLURAL.GROUP/KIND; their creators need the right to
    create them at the hub."""
    trust_unstamped: bool = False
    """Send AppWrappers whose creator no admission recorded. As the setting of AppWrappers, unless it is set here."""
    stamps: By = "server"
    """What records the creator of an AppWrapper at the hub."""

    def __post_init__(self) -> None:
        for text in self.unserved_kinds:
            try:
                listed_kind(text)
            except BadInput as error:
                raise ValueError(f"unserved_kinds: {error}") from None
