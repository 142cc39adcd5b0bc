"""A JobSet as a gang: one pod set for each of its replicated jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.labels import BATCH_COMPLETION_INDEX, JOB_SET_JOB_INDEX
from shoal.api.meta import Json
from shoal.api.topology_annotations import topology_request
from shoal.controllers.queues.jobs.base import End
from shoal.controllers.queues.jobs.templated import Templated, TemplatePlace, found_at


class JobSets(Templated):
    kind: Kind = kinds.JOB_SET

    def places(self, job: Json) -> list[TemplatePlace]:
        found = []
        for index, one in enumerate(_jobs(job)):
            steps = ("spec", "replicatedJobs", index, "template", "spec", "template")
            replicas = _number(one.get("replicas"), 1)
            more = {"subGroupIndexLabel": JOB_SET_JOB_INDEX, "subGroupCount": replicas}
            template = found_at(job, steps) or {}
            request = topology_request(template, podIndexLabel=BATCH_COMPLETION_INDEX, **more)
            found.append(TemplatePlace(str(one.get("name") or ""), replicas * _pods(one), steps, request))
        return found

    def is_active(self, job: Json) -> bool:
        return any(one.get("active") for one in _statuses(job).values())

    def end(self, job: Json) -> End | None:
        for one in (job.get("status") or {}).get("conditions") or ():
            if one.get("type") in ("Completed", "Failed") and one.get("status") == "True":
                return End(one["type"] == "Completed", str(one.get("message") or ""))
        return None

    def are_pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        told = _statuses(job)
        done = {name: _number(one.get("ready")) + _number(one.get("succeeded")) for name, one in told.items()}
        return all(done.get(str(one.get("name")), 0) >= _number(one.get("replicas"), 1) for one in _jobs(job))

    def reclaimable(self, job: Json) -> dict[str, int]:
        """Pods of jobs that have succeeded."""
        done = {name: _number(one.get("succeeded")) for name, one in _statuses(job).items()}
        named = {str(one.get("name")): one for one in _jobs(job)}
        return {name: done[name] * _pods(one) for name, one in named.items() if done.get(name)}


JOBS = (JobSets(),)


def _jobs(job: Json) -> list[Json]:
    return [one for one in found_at(job, ("spec", "replicatedJobs")) or () if isinstance(one, dict)]


def _statuses(job: Json) -> dict[str, Json]:
    return {str(one.get("name")): one for one in (job.get("status") or {}).get("replicatedJobsStatus") or ()}


def _pods(replicated: Json) -> int:
    """Pods that one of its jobs runs at the same time."""
    spec = found_at(replicated, ("template", "spec")) or {}
    parallelism = _number(spec.get("parallelism"), 1)
    return min(parallelism, _number(spec.get("completions"), parallelism))


def _number(value: Any, absent: int = 0) -> int:
    return absent if value is None else int(value)
