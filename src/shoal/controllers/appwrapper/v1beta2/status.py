"""A v1beta2 AppWrapper's status: its phase and one condition per type, in the words of the successor of MCAD.

Pure: each function takes a status and returns the next one. A condition's transition time changes only with its value.
"""

from __future__ import annotations

import msgspec

from shoal.api.appwrapper import (
    AppWrapper,
    AppWrapperCondition,
    AppWrapperStatus,
    Component,
    ComponentStatus,
    PodSetPath,
)
from shoal.api.appwrapper_paths import written
from shoal.api.codec import opened
from shoal.api.times import parse_time, seconds_text
from shoal.controllers.appwrapper.wrapped import fixed_name
from shoal.controllers.demand.app_wrapper import component_templates
from shoal.errors import BadInput

replace = msgspec.structs.replace
RESERVED, DEPLOYED, READY = "QuotaReserved", "ResourcesDeployed", "PodsReady"
UNHEALTHY, DELETING = "Unhealthy", "DeletingResources"


def suspended(wrapper: AppWrapper) -> AppWrapperStatus:
    """First sight: what the components are and where their pods are described."""
    return replace(wrapper.status, phase="Suspended", component_status=_components(wrapper))


def begun(wrapper: AppWrapper) -> AppWrapperStatus:
    """Its status; of one that has none yet, the first."""
    return wrapper.status if wrapper.status.phase else suspended(wrapper)


def resuming(status: AppWrapperStatus, now: int, message: str = "Suspend is false") -> AppWrapperStatus:
    status = replace(status, phase="Resuming", message="", explanation="")
    for type, value in ((RESERVED, True), (DEPLOYED, True), (READY, False), (UNHEALTHY, False)):
        status = with_condition(status, type, value, "Resuming", message, now)
    return status


def waiting(status: AppWrapperStatus, now: int) -> AppWrapperStatus:
    """Not suspended, but there is no room yet."""
    return with_condition(status, RESERVED, False, "Waiting", "Insufficient resources to dispatch AppWrapper.", now)


def is_waiting(status: AppWrapperStatus) -> bool:
    return any(one.type == RESERVED and one.reason == "Waiting" for one in status.conditions or ())


def is_new(status: AppWrapperStatus) -> bool:
    """Was nothing told of its pods since it was resumed?"""
    return any(one.type == READY and one.reason == "Resuming" for one in status.conditions or ())


def running(status: AppWrapperStatus, now: int) -> AppWrapperStatus:
    """Every component exists."""
    made = tuple(
        replace(
            one,
            conditions=_set(
                one.conditions or (), DEPLOYED, "True", "ComponentCreatedSuccessfully", "Component created", now
            ),
        )
        for one in status.component_status or ()
    )
    return replace(status, phase="Running", component_status=made or None)


def unhealthy(status: AppWrapperStatus, reason: str, message: str, now: int) -> AppWrapperStatus:
    return with_condition(status, UNHEALTHY, True, reason, message, now)


def undeployed(status: AppWrapperStatus, phase: str, reason: str, message: str, now: int) -> AppWrapperStatus:
    """Nothing of it is left on the cluster."""
    status = replace(status, phase=phase)
    gone = tuple(
        replace(one, conditions=_set(one.conditions or (), DEPLOYED, "False", "CompononetDeleted", "", now))
        for one in status.component_status or ()
    )
    return with_condition(replace(status, component_status=gone or None), DEPLOYED, False, reason, message, now)


def without_condition(status: AppWrapperStatus, *types: str) -> AppWrapperStatus:
    kept = tuple(one for one in status.conditions or () if one.type not in types)
    return replace(status, conditions=kept or None)


def with_condition(
    status: AppWrapperStatus, type: str, value: bool, reason: str, message: str, now: int
) -> AppWrapperStatus:
    text = "True" if value else "False"
    return replace(status, conditions=_set(status.conditions or (), type, text, reason, message, now))


def is_true(status: AppWrapperStatus, type: str) -> bool:
    return any(one.type == type and one.status == "True" for one in status.conditions or ())


def since(status: AppWrapperStatus, type: str) -> int:
    """When the condition last changed its value; 0 when there is none."""
    for one in status.conditions or ():
        if one.type == type and one.last_transition_time:
            try:
                return parse_time(one.last_transition_time)
            except BadInput:
                return 0
    return 0


def _set(
    conditions: tuple[AppWrapperCondition, ...], type: str, value: str, reason: str, message: str, now: int
) -> tuple[AppWrapperCondition, ...]:
    fresh = AppWrapperCondition(
        type=type, status=value, reason=reason, message=message, last_transition_time=seconds_text(now)
    )
    found = []
    known = False
    for one in conditions:
        if one.type != type:
            found.append(one)
            continue
        known = True
        kept = one.last_transition_time if one.status == value else fresh.last_transition_time
        found.append(replace(fresh, last_transition_time=kept))
    return tuple(found) if known else (*found, fresh)


def _components(wrapper: AppWrapper) -> tuple[ComponentStatus, ...]:
    found = []
    for index, component in enumerate(wrapper.spec.components or ()):
        template = opened(component.template)
        found.append(
            ComponentStatus(
                name=fixed_name(wrapper, index, template),
                kind=str(template.get("kind") or ""),
                api_version=str(template.get("apiVersion") or ""),
                pod_sets=component.pod_sets or _inferred(component),
            )
        )
    return tuple(found)


def _inferred(component: Component) -> tuple[PodSetPath, ...] | None:
    try:
        found = component_templates(component)
    except BadInput:
        return None
    return tuple(PodSetPath(path=written(one.path), replicas=one.count) for one in found) or None
