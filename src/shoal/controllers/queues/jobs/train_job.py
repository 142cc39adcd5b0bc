"""A TrainJob of Kubeflow Trainer as a gang: one pod set for each replicated job of its runtime.

A TrainJob has no pod templates: they are those of the runtime that it names, with what it says itself laid over
(`training_runtime`). What an admission adds goes into a patch of the runtime that is ours alone, as Kueue's is. Trainer
takes no change of patches while pods run: to stop is to suspend, and to take our patch out once it stands still.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.manifests import read
from shoal.api.meta import Json
from shoal.api.objects import controller_of
from shoal.controllers.queues.inject import InjectedInfo, StartError, merged
from shoal.controllers.queues.jobs.base import End, GangJob, Suspendable
from shoal.controllers.queues.jobs.blueprint import BlueprintName, NoBlueprint
from shoal.controllers.queues.jobs.job_set import JobSets
from shoal.controllers.queues.jobs.training_runtime import (
    MERGES,
    PATCHED_BY_US,
    as_trainer_writes,
    patched_jobs,
    patches,
    replicas,
    replicated_jobs,
)
from shoal.errors import BadInput

REFERENCE = "spec.runtimeRef"
SNAPSHOT = "-runtime-snapshot"
"""Ends the name of the ConfigMap in which Trainer keeps a TrainJob's runtime."""
LONGEST_SNAPSHOT = 256 * 1024
_RUNTIMES = {one.kind: one for one in (kinds.CLUSTER_TRAINING_RUNTIME, kinds.TRAINING_RUNTIME)}


class TrainJobs(Suspendable):
    kind: Kind = kinds.TRAIN_JOB
    blueprint_kinds = tuple(_RUNTIMES.values())
    between = (kinds.JOB_SET,)
    required_fields = ("spec.runtimePatches",)

    def __init__(self, runtime: Json | None = None, recorded: Sequence[Json] = ()) -> None:
        self._runtime = runtime
        self._recorded = recorded

    # --- its runtime

    def blueprint_name(self, job: Json) -> BlueprintName | None:
        reference = (job.get("spec") or {}).get("runtimeRef") or {}
        group, name = reference.get("apiGroup") or self.kind.group, str(reference.get("name") or "")
        kind = _RUNTIMES.get(str(reference.get("kind") or kinds.CLUSTER_TRAINING_RUNTIME.kind))
        if kind is None or group != self.kind.group or not name:
            return None
        return BlueprintName(kind, Key(job["metadata"].get("namespace", "") if kind.namespaced else "", name))

    def knowing(self, blueprint: Json | None, recorded: Sequence[Json]) -> GangJob:
        return TrainJobs(blueprint, recorded)

    def copy_name(self, job: Json) -> BlueprintName:
        """From 2.3 on Trainer goes by the runtime as it was when it first saw the TrainJob."""
        metadata = job["metadata"]
        return BlueprintName(kinds.CONFIG_MAP, Key(metadata.get("namespace", ""), f"{metadata['name']}{SNAPSHOT}"))

    def may_have_copy(self, job: Json) -> bool:
        return self.is_suspended(job) and bool((job.get("status") or {}).get("conditions"))

    def from_copy(self, kept: Json, job: Json) -> Json | None:
        owner, name = controller_of(kept), self.blueprint_name(job)
        text = str((kept.get("data") or {}).get("runtime") or "")
        if owner is None or owner.get("uid") != job["metadata"]["uid"] or name is None or len(text) > LONGEST_SNAPSHOT:
            return None
        try:
            found = next(iter(read(text)), {})
        except BadInput:
            return None
        named = (found.get("kind"), (found.get("metadata") or {}).get("name"))
        return {**found, MERGES: True} if named == (name.kind.kind, name.key.name) else None

    def is_on_hold(self, job: Json) -> bool:
        """Without its runtime Trainer makes no pods."""
        return self._runtime is None and self.is_suspended(job) and not self.is_active(job)

    def pod_sets(self, job: Json) -> list[Json]:
        if self._recorded and not self.is_suspended(job):
            return copy.deepcopy(list(self._recorded))
        return JobSets().pod_sets(self._job_set(job))

    def _job_set(self, job: Json) -> Json:
        """The JobSet that Trainer makes of it."""
        name = self.blueprint_name(job)
        if name is None:
            raise BadInput(f"{REFERENCE} must name a {' or a '.join(_RUNTIMES)} of {self.kind.group}")
        if self._runtime is None:
            raise NoBlueprint(name, REFERENCE)
        return {"spec": {"replicatedJobs": replicated_jobs(self._runtime, job)}}

    # --- how it fares

    def is_active(self, job: Json) -> bool:
        return any(one.get("active") for one in _statuses(job).values())

    def end(self, job: Json) -> End | None:
        for wanted in ("Complete", "Failed"):
            for one in (job.get("status") or {}).get("conditions") or ():
                if one.get("type") == wanted and one.get("status") == "True":
                    return End(wanted == "Complete", str(one.get("message") or ""))
        return None

    def are_pods_ready(self, job: Json, counts: Mapping[str, int]) -> bool:
        """Its status counts jobs, each of which is ready with all of its pods."""
        told = _statuses(job)
        return bool(told) and all(_done(told.get(name) or {}) >= replicas(self._runtime, name) for name in counts)

    def reclaimable(self, job: Json) -> dict[str, int]:
        """Pods of jobs that have succeeded."""
        found = {}
        for entry in self._recorded:
            name, count = str(entry.get("name")), int(entry.get("count") or 0)
            done = int((_statuses(job).get(name) or {}).get("succeeded") or 0)
            if 0 < done <= (every := replicas(self._runtime, name)):
                found[name] = count * done // every
        return found

    # --- start and stop

    def prepared(self, job: Json) -> Json:
        """With its amounts as Trainer's webhook writes them once a patch has come: what it says of the trainer must not
        change, and an amount such as `1` or `1024Mi` would make every start a change of it. And with our patch, empty:
        Kueue starts no TrainJob without."""
        made = {**job, "spec": as_trainer_writes(job.get("spec") or {})}
        return made if any(_is_ours(one) for one in patches(made)) else _with_patch(made, [])

    def started(self, job: Json, infos: Sequence[InjectedInfo]) -> Json:
        sets = self.pod_sets(job)
        if [one["name"] for one in sets] != [info.name for info in infos]:
            raise StartError("the admission has other pod sets than its runtime; recreate it")
        listed = [_patch_of(one.get("template") or {}, info) for one, info in zip(sets, infos, strict=True)]
        made = _with_patch(job, listed)
        made["spec"]["suspend"] = False
        return made

    def stopped(self, job: Json, pod_sets: Sequence[Json]) -> Json:
        return self.suspended(job)

    def is_half_stopped(self, job: Json) -> bool:
        return self.is_suspended(job) and any(patched_jobs(one) for one in patches(job) if _is_ours(one))

    def is_winding_down(self, job: Json) -> bool:
        """Trainer says that it has seen the suspension, and none of its jobs has pods."""
        conditions = (job.get("status") or {}).get("conditions") or ()
        seen = any(one.get("type") == "Suspended" and one.get("status") == "True" for one in conditions)
        return self.is_active(job) or not seen

    def restored(self, job: Json, pod_sets: Sequence[Json]) -> Json:
        return _with_patch(job, [])

    def copied(self, spec: Json) -> Json:
        made: Json = copy.deepcopy(spec)
        kept = [one for one in patches({"spec": made}) if not _is_ours(one)]
        made.pop("runtimePatches", None)
        return {**made, "runtimePatches": kept} if kept else made


JOBS = (TrainJobs(),)


def _statuses(job: Json) -> dict[str, Json]:
    return {str(one.get("name")): one for one in (job.get("status") or {}).get("jobsStatus") or ()}


def _done(told: Json) -> int:
    return int(told.get("ready") or 0) + int(told.get("succeeded") or 0)


def _is_ours(patch: Json) -> bool:
    return patch.get("manager") == PATCHED_BY_US


def _patch_of(template: Json, info: InjectedInfo) -> Json:
    """What the admission adds to one replicated job. Raises StartError where that contradicts its template."""
    whole = merged(template, info)["spec"]
    metadata = {"labels": info.labels, "annotations": info.annotations}
    spec = {
        "nodeSelector": info.node_selector,
        # a patch replaces all tolerations: those that are there already stay only where they are named again
        "tolerations": list(whole.get("tolerations") or ()) if info.tolerations else [],
        "schedulingGates": [{"name": name} for name in info.scheduling_gates],
    }
    parts = {"metadata": _set(metadata), "spec": _set(spec)}
    return {"name": info.name, "template": {"spec": {"template": _set(parts)}}}


def _set(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value}


def _with_patch(job: Json, listed: list[Json]) -> Json:
    """The job with this as our patch, in the place of the one that it has."""
    made: Json = copy.deepcopy(job)
    spec = made.setdefault("spec", {})
    body = {"template": {"spec": {"replicatedJobs": listed} if listed else {}}}
    if not any(_is_ours(one) for one in patches(made)):
        ours = {"manager": PATCHED_BY_US, "trainingRuntimeSpec": body}
        spec["runtimePatches"] = [*patches(made), ours]
        return made
    spec["runtimePatches"] = [{**one, "trainingRuntimeSpec": body} if _is_ours(one) else one for one in patches(made)]
    return made
