"""Pods of a running gang that have no node: how many, since when, and what the scheduler says. Pure.

Pods that a gate holds back, or that are on their way out, are not missed; nor are those that a gang has grown by beyond
what it was admitted with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from shoal.api.labels import RAY_NODE_TYPE
from shoal.api.meta import Json
from shoal.api.pod_told import silence_of
from shoal.engine.model import PodFact

LONGEST_REASON = 300


class UnboundPod(Protocol):
    @property
    def fact(self) -> PodFact: ...
    @property
    def refusals(self) -> tuple[Json, ...]: ...
    @property
    def silent_scheduler(self) -> str: ...
    @property
    def unbound_since(self) -> int: ...


class Lacking(msgspec.Struct, frozen=True, kw_only=True):
    without_node: int
    wanted: int
    since: int
    """When the first of them was made, in microseconds."""
    why: str = ""
    """Of one of them, in the scheduler's words, or that the one it asks for has none."""
    head_lives: bool = False
    """It is a Ray cluster whose head has a node."""

    @property
    def message(self) -> str:
        count = f"{self.without_node} of its {self.wanted} pods have no node"
        return f"{count}: {self.why}" if self.why else count


def lacking(pods: Iterable[UnboundPod], wanted: int) -> Lacking | None:
    """None for a gang that lacks none of the pods that it was admitted with."""
    found = [pod for pod in pods if not pod.fact.is_terminal and not pod.fact.deleting]
    bound = [pod.fact for pod in found if pod.fact.node]
    unbound = [pod for pod in found if not pod.fact.node and not pod.fact.gated]
    missing = min(len(unbound), wanted - len(bound))
    if missing <= 0:
        return None
    said = [str(pod.refusals[-1].get("message") or "") for pod in unbound if pod.refusals]
    said = said or [silence_of(pod.silent_scheduler) for pod in unbound if pod.silent_scheduler]
    return Lacking(
        without_node=missing,
        wanted=wanted,
        since=min(pod.unbound_since for pod in unbound),
        why=min(said, default="")[:LONGEST_REASON].rstrip("."),
        head_lives=any(fact.labels.get(RAY_NODE_TYPE) == "head" for fact in bound),
    )
