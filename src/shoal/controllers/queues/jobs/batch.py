"""A batch Job as a gang: one pod set, as many pods as run at the same time."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from shoal.api import kinds, kueue_names
from shoal.api.kind import Kind
from shoal.api.labels import BATCH_COMPLETION_INDEX, BATCH_CONTROLLER_UID, BATCH_JOB_NAME
from shoal.api.meta import Json
from shoal.api.topology_annotations import topology_request
from shoal.controllers.queues.inject import InjectedInfo, StartError, merged, restored
from shoal.controllers.queues.jobs.base import End, Suspendable

MAIN = "main"
ADDED_LABELS = (BATCH_CONTROLLER_UID, BATCH_JOB_NAME, "controller-uid", "job-name")
"""What the Job controller writes into the template by itself."""


class Jobs(Suspendable):
    kind: Kind = kinds.JOB

    def pod_sets(self, job: Json) -> list[Json]:
        made: Json = {"name": MAIN, "count": _count(job), "template": _kept(_spec(job).get("template") or {})}
        least = _minimum(job)
        if least is not None and least < made["count"]:
            made["minCount"] = least
        request = topology_request(made["template"], podIndexLabel=BATCH_COMPLETION_INDEX)
        if request is not None:
            made["topologyRequest"] = request
        return [made]

    def template_paths(self, job: Json) -> list[str]:
        return ["spec.template"]

    def is_active(self, job: Json) -> bool:
        return bool(_status(job).get("active")) or self.is_half_stopped(job)

    def end(self, job: Json) -> End | None:
        for one in _status(job).get("conditions") or []:
            if one.get("type") in ("Complete", "Failed") and one.get("status") == "True":
                return End(one["type"] == "Complete", str(one.get("message") or ""))
        return None

    def are_pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        status = _status(job)
        uncounted = len((status.get("uncountedTerminatedPods") or {}).get("succeeded") or ())
        done = int(status.get("succeeded") or 0) + int(status.get("ready") or 0) + uncounted
        return done >= counts.get(MAIN, _count(job))

    def reclaimable(self, job: Json) -> dict[str, int]:
        """Pods that its controller will not start any more: fewer are left to end than may run at once. Of an indexed
        Job an index that has failed for good has ended, too."""
        spec, parallelism = _spec(job), int(_spec(job).get("parallelism") or 1)
        completions = int(spec.get("completions") or parallelism)
        ended = _ended(job, completions)
        left = max(0, completions - ended)
        return {MAIN: parallelism - left} if ended and 1 < parallelism > left else {}

    def started(self, job: Json, infos: Sequence[InjectedInfo]) -> Json:
        if len(infos) != 1:
            raise StartError(f"the admission has {len(infos)} pod sets and a Job one; recreate it")
        made: Json = copy.deepcopy(job)
        spec = made["spec"]
        spec["template"] = merged(spec.get("template") or {}, infos[0])
        if _minimum(job) is not None:
            spec["parallelism"] = infos[0].count
            if _annotations(job).get(kueue_names.COMPLETIONS_EQUAL_PARALLELISM) == "true":
                spec["completions"] = infos[0].count
        spec["suspend"] = False
        return made

    def stopped(self, job: Json, pod_sets: Sequence[Json]) -> Json:
        """Suspended and marked: a template may change only once the Job stands still and has no start time."""
        made = self.suspended(job)
        made["metadata"]["annotations"] = {**_annotations(job), kueue_names.STOPPING: "true"}
        return made

    def is_half_stopped(self, job: Json) -> bool:
        return self.is_suspended(job) and _annotations(job).get(kueue_names.STOPPING) == "true"

    def is_winding_down(self, job: Json) -> bool:
        """Until its controller says so, it may still be making pods of what it saw before."""
        conditions = _status(job).get("conditions") or []
        seen = any(one.get("type") == "Suspended" and one.get("status") == "True" for one in conditions)
        return bool(_status(job).get("active")) or not seen

    def restored(self, job: Json, pod_sets: Sequence[Json]) -> Json:
        made: Json = copy.deepcopy(job)
        made["metadata"]["annotations"].pop(kueue_names.STOPPING)
        if len(pod_sets) != 1:
            return made
        spec, recorded = made["spec"], pod_sets[0].get("template") or {}
        added = {
            key: value
            for key, value in ((spec["template"].get("metadata") or {}).get("labels") or {}).items()
            if key in ADDED_LABELS
        }
        spec["template"] = restored(spec["template"], recorded)
        if added:
            metadata = spec["template"].setdefault("metadata", {})
            metadata["labels"] = {**(metadata.get("labels") or {}), **added}
        if _minimum(job) is not None:
            spec["parallelism"] = pod_sets[0].get("count", 1)
            if _annotations(job).get(kueue_names.COMPLETIONS_EQUAL_PARALLELISM) == "true":
                spec["completions"] = spec["parallelism"]
        return made

    def copied(self, spec: Json) -> Json:
        made: Json = copy.deepcopy(spec)
        if not made.get("manualSelector"):
            made.pop("selector", None)  # made by the API server for this very Job
            labels = ((made.get("template") or {}).get("metadata") or {}).get("labels") or {}
            for added in ADDED_LABELS:
                labels.pop(added, None)
        return made

    def problems(self, job: Json) -> list[str]:
        text = _annotations(job).get(kueue_names.MIN_PARALLELISM)
        least = _minimum(job)
        if text is None or (least and not self.is_suspended(job)):
            return []  # one that started has as many pods as it was given, which may be the fewest it asks for
        if least is None or not 0 < least < _count(job):
            field = f"metadata.annotations[{kueue_names.MIN_PARALLELISM}]"
            return [f"{field}: {text!r} must be a number from 1 to {_count(job) - 1}"]
        return []


JOBS = (Jobs(),)


def _ended(job: Json, completions: int) -> int:
    """Pods, or indexes, of which none is started again."""
    status = _status(job)
    if _spec(job).get("completionMode") != "Indexed":
        return int(status.get("succeeded") or 0)
    spans = [
        span
        for name in ("completedIndexes", "failedIndexes")
        for text in str(status.get(name) or "").split(",")
        if (span := _span(text, completions - 1)) is not None
    ]
    ended, reached = 0, -1  # servers before 1.31 may tell an index in both
    for first, last in sorted(spans):
        ended += max(0, last - max(first, reached + 1) + 1)
        reached = max(reached, last)
    return ended


def _span(text: str, most: int) -> tuple[int, int] | None:
    """`3` or `3-5`, as the Job controller writes them."""
    first, _, last = text.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal():
        return None
    return int(first), min(int(last or first), most)


def _count(job: Json) -> int:
    spec = _spec(job)
    parallelism = spec.get("parallelism")
    parallelism = 1 if parallelism is None else int(parallelism)
    completions = spec.get("completions")
    return parallelism if completions is None else min(parallelism, int(completions))


def _minimum(job: Json) -> int | None:
    text = _annotations(job).get(kueue_names.MIN_PARALLELISM, "")
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else None


def _kept(template: Json) -> Json:
    """What its pods will look like. The name of the Job stays: their affinity may ask for pods of the same Job."""
    metadata = template.get("metadata") or {}
    own = (metadata.get("labels") or {}).items()
    labels = {key: value for key, value in own if key == BATCH_JOB_NAME or key not in ADDED_LABELS}
    kept = {"labels": labels, "annotations": metadata.get("annotations")}
    made: Json = {"spec": copy.deepcopy(template.get("spec") or {})}
    if found := {name: value for name, value in kept.items() if value}:
        made["metadata"] = found
    return made


def _annotations(job: Json) -> Json:
    return (job.get("metadata") or {}).get("annotations") or {}


def _spec(job: Json) -> Json:
    return job.get("spec") or {}


def _status(job: Json) -> Json:
    return job.get("status") or {}
