"""A kind of job as another package would bring it: one file, and an entry point in its packaging.

A TrainingRun makes `spec.workers` pods of one template. Nothing in `src` knows of it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.api.kind import Kind
from shoal.controllers.queues.inject import InjectedInfo, merged, restored
from shoal.controllers.queues.jobs.base import End, Suspendable

Json = dict[str, Any]


class TrainingRuns(Suspendable):
    kind = Kind("lab.example", "v1", "TrainingRun", "trainingruns")

    def pod_sets(self, job: Json) -> list[Json]:
        return [{"name": "worker", "count": int(job["spec"]["workers"]), "template": job["spec"]["template"]}]

    def is_active(self, job: Json) -> bool:
        return bool((job.get("status") or {}).get("running"))

    def end(self, job: Json) -> End | None:
        said = (job.get("status") or {}).get("result")
        return End(said == "done", str(said)) if said else None

    def are_pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        return int((job.get("status") or {}).get("running") or 0) >= counts.get("worker", 1)

    def started(self, job: Json, infos: Sequence[InjectedInfo]) -> Json:
        made = copy.deepcopy(job)
        made["spec"] |= {"suspend": False, "template": merged(made["spec"]["template"], infos[0])}
        return made

    def stopped(self, job: Json, pod_sets: Sequence[Json]) -> Json:
        made = self.suspended(job)
        made["spec"]["template"] = restored(made["spec"]["template"], pod_sets[0]["template"])
        return made
