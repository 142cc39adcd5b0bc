"""An AppWrapper of v1beta2 as a gang of a queue: one pod set per pod template of its components.

The AppWrapper controller holds such an object suspended and resumes it when we say so; what the admission adds travels
as `podSetInfos` of the component, in the order of its pod sets.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper, Component, dialect
from shoal.api.codec import typed
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.demand.app_wrapper import component_templates
from shoal.controllers.queues.inject import InjectedInfo, StartError
from shoal.controllers.queues.jobs.base import End, Suspendable
from shoal.errors import BadInput

LONGEST_NAME = 63


class AppWrappers(Suspendable):
    kind: Kind = kinds.APP_WRAPPER_V1BETA2

    def resting(self) -> Json:
        return {"phase": "Suspended"}

    def is_skipped(self, job: Json) -> bool:
        """MCAD's own dialect (v1beta1) has a queue of its own."""
        return "components" not in (job.get("spec") or {})

    def pod_sets(self, job: Json) -> list[Json]:
        made: list[Json] = []
        prefix = job["metadata"]["name"][: LONGEST_NAME - 4]
        for component in _components(job):
            for template in component_templates(component):
                content = _kept(template.content)
                made.append({"name": f"{prefix}-{len(made)}", "count": template.count, "template": content})
        if not made:
            raise BadInput("spec.components: there is no pod template to ask quota for")
        return made

    def is_active(self, job: Json) -> bool:
        return (job.get("status") or {}).get("phase") not in (None, "", "Suspended", "Succeeded", "Failed")

    def end(self, job: Json) -> End | None:
        phase = (job.get("status") or {}).get("phase")
        if phase not in ("Succeeded", "Failed"):
            return None
        return End(
            phase == "Succeeded", "AppWrapper finished successfully" if phase == "Succeeded" else "AppWrapper failed"
        )

    def are_pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        conditions = (job.get("status") or {}).get("conditions") or ()
        return any(one.get("type") == "PodsReady" and one.get("status") == "True" for one in conditions)

    def started(self, job: Json, infos: Sequence[InjectedInfo]) -> Json:
        sizes = [len(component_templates(component)) for component in _components(job)]
        if sum(sizes) != len(infos):
            raise StartError(f"the admission has {len(infos)} pod sets and the AppWrapper {sum(sizes)}; recreate it")
        made: Json = copy.deepcopy(job)
        left = list(infos)
        for component, size in zip(made["spec"]["components"], sizes, strict=True):
            component["podSetInfos"] = [_info(one) for one in left[:size]]
            left = left[size:]
        made["spec"]["suspend"] = False
        return made

    def stopped(self, job: Json, pod_sets: Sequence[Json]) -> Json:
        made = self.suspended(job)
        for component in made["spec"].get("components") or ():
            component.pop("podSetInfos", None)
        return made


JOBS = (AppWrappers(),)


def _components(job: Json) -> tuple[Component, ...]:
    try:
        wrapper = typed(job, AppWrapper)
    except msgspec.MsgspecError as error:
        raise BadInput(f"the AppWrapper does not decode: {error}") from None
    return tuple(wrapper.spec.components or ()) if dialect(wrapper) == "v1beta2" else ()


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
