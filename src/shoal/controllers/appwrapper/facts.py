"""From stored AppWrappers to the engine's facts, and from its plans to what is stored.

What was decided is read back from the status alone (`canrun`, `state`, `admission`), so that a restarted controller
tells the engine exactly what the last one knew.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.api.appwrapper import AppWrapper, QuotaSubtree
from shoal.api.gang import SUPPLY
from shoal.api.kind import Key
from shoal.api.quantity import amounts
from shoal.api.times import parse_time
from shoal.controllers.appwrapper import status as statuses
from shoal.controllers.appwrapper.demand import pod_sets
from shoal.controllers.appwrapper.settings import AppWrapperSettings
from shoal.controllers.appwrapper.wrapped import gang_key
from shoal.engine.model import Admit, Gang, PodSet, PodSetAssignment, QuotaNode, Seat, State, Supply
from shoal.engine.model import QuotaSubtree as QuotaFact
from shoal.errors import BadInput


def gang_fact(wrapper: AppWrapper, settings: AppWrapperSettings, now: int) -> Gang:
    """The gang that this AppWrapper is. Facts that cannot be right become `problem`, never an exception."""
    sets: tuple[PodSet, ...] = ()
    problem = ""
    try:
        sets = pod_sets(wrapper, settings.count_autoscaled_workers)
    except BadInput as error:
        problem = str(error)
    stored = statuses.admission(wrapper.status)
    created = _moment(wrapper.metadata.creation_timestamp, now)
    return Gang(
        key=gang_key(wrapper),
        uid=wrapper.metadata.uid,
        namespace=wrapper.metadata.namespace,
        name=wrapper.metadata.name,
        dialect="mcad",
        priority=wrapper.spec.priority,
        priority_slope=wrapper.spec.priority_slope,
        created_at=created,
        queued_at=_moment(wrapper.status.controller_first_timestamp, created),
        pod_sets=sets,
        labels=dict(wrapper.metadata.labels or {}),
        supply=_supply(wrapper, settings),
        node_selector=dict(wrapper.spec.scheduling_spec.node_selector or {}),
        state=_state(wrapper),
        admitted_at=int(stored.get("admittedAt") or 0),
        seats=_read(stored.get("seats") or {}, dict[str, Seat]),
        assignment=_read(stored.get("assignment") or [], tuple[PodSetAssignment, ...]),
        stopping_for=str(stored.get("stoppingFor") or ""),
        problem=problem,
    )


def subtree_fact(key: Key, subtree: QuotaSubtree) -> QuotaFact:
    """The quota nodes that one QuotaSubtree adds to its tree."""
    return QuotaFact(
        key=str(key),
        tree=(subtree.metadata.labels or {}).get("tree", ""),
        parent=subtree.spec.parent,
        nodes=tuple(
            QuotaNode(
                name=child.name,
                quota=amounts(child.quotas.requests),
                hard=child.quotas.hard_limit,
                disabled=child.quotas.disabled,
            )
            for child in subtree.spec.children or ()
        ),
    )


def admission_record(admit: Admit, wrapper: AppWrapper, now: int) -> dict[str, Any]:
    """What is stored with an admission; `gang_fact` reads it back."""
    record: dict[str, Any] = {
        "uid": wrapper.metadata.uid,
        "generation": wrapper.metadata.generation,
        "admittedAt": now,
    }
    if admit.seats:
        record["seats"] = msgspec.to_builtins(admit.seats)
    if admit.assignment:
        record["assignment"] = msgspec.to_builtins(admit.assignment)
    return record


def _state(wrapper: AppWrapper) -> State:
    status = wrapper.status
    if statuses.is_terminal(status):
        return "finished"
    if wrapper.metadata.deletion_timestamp:
        return "stopping"
    if status.can_run:
        return "admitted"
    return "waiting" if status.state in ("", "Pending") else "stopping"


def _supply(wrapper: AppWrapper, settings: AppWrapperSettings) -> Supply:
    chosen = (wrapper.metadata.annotations or {}).get(SUPPLY, "")
    return chosen if chosen in ("fit", "aggregate") else settings.supply  # type: ignore[return-value]


def _moment(text: str | None, otherwise: int) -> int:
    try:
        return parse_time(text) if text else otherwise
    except BadInput:
        return otherwise


def _read(value: Any, type: Any) -> Any:
    """Stored facts that no longer decode count as absent: the engine then decides the seat anew."""
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError:
        return msgspec.convert([] if isinstance(value, list) else {}, type)
