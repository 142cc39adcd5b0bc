"""A kind of job whose pod templates stand at places of its own spec: held, started and stopped by one field.

A kind says where its templates are (`places`); what an admission adds is merged there and taken out again. Pure.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.api.meta import Json
from shoal.controllers.queues.inject import InjectedInfo, StartError, merged, restored
from shoal.controllers.queues.jobs.base import Suspendable
from shoal.errors import BadInput

Steps = tuple[str | int, ...]
"""A way through a manifest: names of fields and positions in lists."""


class TemplatePlace(msgspec.Struct, frozen=True):
    """One pod set: its name, its pods, and where its template stands."""

    name: str
    count: int
    steps: Steps
    topology: Json | None = None
    """What its pods ask of a topology, where the kind knows more than their annotations say."""


class Templated(Suspendable):
    suspend_steps: Steps = ("spec", "suspend")

    def places(self, job: Json) -> list[TemplatePlace]:
        raise NotImplementedError

    def is_suspended(self, job: Json) -> bool:
        return found_at(job, self.suspend_steps) is True

    def suspended(self, job: Json) -> Json:
        made: Json = copy.deepcopy(job)
        put_at(made, self.suspend_steps, True)
        return made

    def pod_sets(self, job: Json) -> list[Json]:
        made = []
        for place in self.places(job):
            entry: Json = {"name": place.name, "count": place.count, "template": _kept(found_at(job, place.steps))}
            if place.topology is not None:
                entry["topologyRequest"] = place.topology
            made.append(entry)
        if not made:
            raise BadInput("there is no pod template to ask quota for")
        return made

    def template_paths(self, job: Json) -> list[str]:
        return [path_text(place.steps) for place in self.places(job)]

    def started(self, job: Json, infos: Sequence[InjectedInfo]) -> Json:
        places = self.places(job)
        if len(places) != len(infos):
            raise StartError(f"the admission has {len(infos)} pod sets and the job {len(places)}; recreate it")
        made: Json = copy.deepcopy(job)
        for place, info in zip(places, infos, strict=True):
            put_at(made, place.steps, merged(found_at(made, place.steps) or {}, info))
        put_at(made, self.suspend_steps, False)
        return made

    def stopped(self, job: Json, pod_sets: Sequence[Json]) -> Json:
        made, places = self.suspended(job), self.places(job)
        for place, recorded in zip(places, pod_sets, strict=False) if len(places) == len(pod_sets) else ():
            template = recorded.get("template") or {}
            put_at(made, place.steps, restored(found_at(made, place.steps) or {}, template))
        return made


def found_at(obj: Any, steps: Steps) -> Any:
    """What stands there; None where the way does not lead so far."""
    for step in steps:
        if isinstance(step, int):
            obj = obj[step] if isinstance(obj, list) and step < len(obj) else None
        else:
            obj = obj.get(step) if isinstance(obj, dict) else None
    return obj


def put_at(obj: Any, steps: Steps, value: Any) -> None:
    """Put it there; parts of the way that are missing are made."""
    for step in steps[:-1]:
        obj = obj[step] if isinstance(step, int) else obj.setdefault(step, {})
    obj[steps[-1]] = value


def path_text(steps: Steps) -> str:
    """`spec.workers[0].template`"""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")


def _kept(template: Any) -> Json:
    """A template as a Workload records it: of its metadata, labels and annotations only."""
    if not isinstance(template, dict):
        raise BadInput("a pod template must be an object")
    metadata = template.get("metadata") or {}
    kept = {name: copy.deepcopy(metadata[name]) for name in ("labels", "annotations") if metadata.get(name)}
    made: Json = {"spec": copy.deepcopy(template.get("spec") or {})}
    return {**made, "metadata": kept} if kept else made
