"""A kind of job that an administrator describes: any custom kind with a field that suspends it.

`JobKind` says where the field and the pod templates stand and which conditions tell that it is ready or over; what no
description covers needs a class of its own (the guide to kinds of jobs). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.queues.jobs.base import End
from shoal.controllers.queues.jobs.templated import Steps, Templated, TemplatePlace, found_at
from shoal.errors import BadInput

EACH = "*"
Path = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_*][^.\[\]]*(\.[A-Za-z_*][^.\[\]]*)*$")]


class DescribedPodSet(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Where pod templates stand. `*` in the path is each entry of a list or a map: a pod set for each."""

    template: Path
    """Such as `spec.template` or `spec.replicaSpecs.*.template`."""
    count: tuple[Path, ...] = ()
    """Paths of numbers that are multiplied; one that is not set counts 1. None: one pod."""
    name: str = ""
    """Of the pod set; not set: the key of the map, or the field `name` of the list entry."""


class JobKind(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A kind of job as an administrator describes it."""

    api_version: str
    """Group and version of the custom kind."""
    kind: str
    """Its name, as manifests write it."""
    plural: str
    """Its name in paths of the API, as its definition says it."""
    pod_sets: tuple[DescribedPodSet, ...]
    """Where its pod templates stand."""
    suspend: Path = "spec.suspend"
    """The field that keeps its controller from making pods."""
    ready: str = ""
    """Type of the condition that says that its pods are ready; not set: its pods are not waited for."""
    succeeded: tuple[str, ...] = ("Complete", "Completed", "Succeeded")
    """Types of conditions that say that it is over, and well."""
    failed: tuple[str, ...] = ("Failed",)
    """Types of conditions that say that it is over, and not well."""
    active: Path = "status.active"
    """A number of pods, or a text or condition list that is not empty while it may have some."""


class ConfiguredJobs(Templated):
    def __init__(self, described: JobKind) -> None:
        group, _, version = described.api_version.rpartition("/")
        if not group or not version:
            raise BadInput(f"job kind {described.kind}: apiVersion must be GROUP/VERSION of a custom kind")
        if not described.pod_sets:
            raise BadInput(f"job kind {described.kind}: podSets must name where its pod templates stand")
        self.kind = Kind(group, version, described.kind, described.plural)
        self.suspend_steps: Steps = tuple(described.suspend.split("."))
        self._described = described

    def places(self, job: Json) -> list[TemplatePlace]:
        found = []
        for described in self._described.pod_sets:
            for steps, keys in _ways(job, tuple(described.template.split("."))):
                name = described.name or _name(job, steps, keys) or "main"
                count = 1
                for path in described.count:
                    count *= _number(found_at(job, _filled(path, keys)), path)
                found.append(TemplatePlace(name.lower(), count, steps))
        return found

    def is_active(self, job: Json) -> bool:
        return not self.is_suspended(job) or bool(found_at(job, tuple(self._described.active.split("."))))

    def end(self, job: Json) -> End | None:
        for one in _true(job):
            if one.get("type") in (*self._described.succeeded, *self._described.failed):
                return End(one["type"] in self._described.succeeded, str(one.get("message") or ""))
        return None

    def are_pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        ready = self._described.ready
        return any(one.get("type") == ready for one in _true(job)) if ready else not self.is_suspended(job)


def configured(described: Any) -> list[ConfiguredJobs]:
    """The kinds of a list as it was written. Raises BadInput with the place at fault."""
    try:
        listed = msgspec.convert(described, list[JobKind])
    except msgspec.ValidationError as error:
        raise BadInput(f"job kinds: {error}") from None
    return [ConfiguredJobs(one) for one in listed]


def _true(job: Json) -> list[Json]:
    listed = (job.get("status") or {}).get("conditions")
    return [one for one in listed or () if isinstance(one, dict) and one.get("status") == "True"]


def _ways(obj: Any, path: tuple[str, ...]) -> list[tuple[Steps, tuple[str | int, ...]]]:
    """Every way to an object that the path leads, and what stood for its stars."""
    ways: list[tuple[Any, Steps, tuple[str | int, ...]]] = [(obj, (), ())]
    for step in path:
        further = []
        for here, steps, keys in ways:
            if step != EACH:
                options: list[tuple[str | int, Any]] = [(step, here.get(step))] if isinstance(here, dict) else []
                further += [(value, (*steps, key), keys) for key, value in options if value is not None]
                continue
            each = enumerate(here) if isinstance(here, list) else here.items() if isinstance(here, dict) else ()
            further += [(value, (*steps, key), (*keys, key)) for key, value in each]
        ways = further
    return [(steps, keys) for here, steps, keys in ways if isinstance(here, dict)]


def _filled(path: str, keys: tuple[str | int, ...]) -> Steps:
    """The path with what stood for the stars of the template's."""
    left = list(keys)
    return tuple(left.pop(0) if step == EACH and left else step for step in path.split("."))


def _name(job: Json, steps: Steps, keys: tuple[str | int, ...]) -> str:
    if not keys:
        return ""
    if isinstance(keys[-1], str):
        return keys[-1]
    holder = found_at(job, steps[: len(steps) - steps[::-1].index(keys[-1])])
    return str((holder or {}).get("name") or f"set-{keys[-1]}")


def _number(value: Any, path: str) -> int:
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadInput(f"{path}: {value!r} is no number of pods")
    return value
