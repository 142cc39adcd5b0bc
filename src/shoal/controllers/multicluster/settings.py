"""What an administrator may choose about several clusters. Read once at the entry point and passed down."""

from __future__ import annotations

from typing import Literal

import msgspec

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
    origin: str = ""
    """Mark of this hub on its copies; empty: from the UID of its `kube-system` namespace."""
