"""An AppWrapper as a gang of a queue: one pod set per pod template of what it wraps, in either dialect.

The AppWrapper controller holds such an object suspended and starts it when we say so; what the admission adds travels
as `podSetInfos` of the component (v1beta2) or item (v1beta1), in the order of its pod sets. What is wrapped stays as
its creator wrote it: a user that changes that answers for it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper, Component, GenericItem, dialect
from shoal.api.codec import opened, typed
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.demand.app_wrapper import component_templates, queued_templates
from shoal.controllers.demand.templates import Template
from shoal.controllers.queues.inject import InjectedInfo, StartError
from shoal.controllers.queues.jobs.base import End, Suspendable
from shoal.errors import BadInput

LONGEST_NAME = 63
STILL = (None, "", "Suspended", "Succeeded", "Failed")
"""Phases of v1beta2 in which nothing runs."""


class AppWrappers(Suspendable):
    kind: Kind = kinds.APP_WRAPPER_V1BETA2

    def resting(self) -> Json:
        return {"phase": "Suspended"}

    def pod_sets(self, job: Json) -> list[Json]:
        made: list[Json] = []
        prefix = job["metadata"]["name"][: LONGEST_NAME - 4]
        for wrapped in _wrapped(job):
            for template in _templates(wrapped):
                content = _kept(template.content)
                made.append({"name": f"{prefix}-{len(made)}", "count": template.count, "template": content})
        if not made:
            raise BadInput("there is no pod template to ask quota for")
        return made

    def is_active(self, job: Json) -> bool:
        status = job.get("status") or {}
        if _is_old(job):
            begun = status.get("canrun") is True or status.get("state") not in (None, "", "Pending")
            return begun and status.get("state") not in ("Completed", "Failed", "Deleted")
        return status.get("phase") not in STILL or (self.end(job) is None and _has_resources(status))

    def end(self, job: Json) -> End | None:
        phase = (job.get("status") or {}).get("state" if _is_old(job) else "phase")
        if phase not in ("Succeeded", "Completed", "Failed", "Deleted"):
            return None
        done = phase in ("Succeeded", "Completed")
        return End(done, "AppWrapper finished successfully" if done else "AppWrapper failed")

    def are_pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        status = job.get("status") or {}
        if _is_old(job):
            there = int(status.get("running") or 0) + int(status.get("Succeeded") or 0)
            return there >= sum(int(entry["count"]) for entry in self.pod_sets(job))
        conditions = status.get("conditions") or ()
        return any(one.get("type") == "PodsReady" and one.get("status") == "True" for one in conditions)

    def started(self, job: Json, infos: Sequence[InjectedInfo]) -> Json:
        sizes = [len(_templates(wrapped)) for wrapped in _wrapped(job)]
        if sum(sizes) != len(infos):
            raise StartError(f"the admission has {len(infos)} pod sets and the AppWrapper {sum(sizes)}; recreate it")
        made: Json = copy.deepcopy(job)
        left = list(infos)
        for wrapped, size in zip(_listed(made), sizes, strict=True):
            wrapped["podSetInfos"] = [_info(one) for one in left[:size]]
            left = left[size:]
        made["spec"]["suspend"] = False
        return made

    def suspended(self, job: Json) -> Json:
        made = super().suspended(job)
        for wrapped in _listed(made):
            if isinstance(wrapped, dict):
                wrapped.pop("podSetInfos", None)
        return made

    def stopped(self, job: Json, pod_sets: Sequence[Json]) -> Json:
        return self.suspended(job)


JOBS = (AppWrappers(),)


def _is_old(job: Json) -> bool:
    """Is it of MCAD's own dialect?"""
    return "components" not in (job.get("spec") or {})


def _has_resources(status: Json) -> bool:
    """Its controller says by this condition that something of it is there, whatever the phase."""
    conditions = status.get("conditions") or ()
    return any(one.get("type") == "QuotaReserved" and one.get("status") == "True" for one in conditions)


def _listed(job: Json) -> list[Any]:
    """What it wraps, as it is written."""
    spec = job.get("spec") or {}
    found = (spec.get("resources") or {}).get("GenericItems") if _is_old(job) else spec.get("components")
    return found if isinstance(found, list) else []


def _wrapped(job: Json) -> tuple[Component | GenericItem, ...]:
    try:
        wrapper = typed(job, AppWrapper)
    except msgspec.MsgspecError as error:
        raise BadInput(f"the AppWrapper does not decode: {error}") from None
    if dialect(wrapper) == "v1beta2":
        return tuple(wrapper.spec.components or ())
    return tuple(wrapper.spec.resources.generic_items or ()) if wrapper.spec.resources is not None else ()


def _templates(wrapped: Component | GenericItem) -> list[Template]:
    if isinstance(wrapped, Component):
        return component_templates(wrapped)
    return queued_templates(opened(wrapped.generic_template))


def _kept(template: Any) -> Json:
    metadata = {
        name: value
        for name, value in (template.get("metadata") or {}).items()
        if name in ("labels", "annotations") and value
    }
    made: Json = {"spec": copy.deepcopy(template.get("spec") or {})}
    return {**made, "metadata": metadata} if metadata else made


def _info(info: InjectedInfo) -> Json:
    made = {
        "labels": info.labels,
        "annotations": info.annotations,
        "nodeSelector": info.node_selector,
        "tolerations": list(info.tolerations),
    }
    return {name: value for name, value in made.items() if value}
