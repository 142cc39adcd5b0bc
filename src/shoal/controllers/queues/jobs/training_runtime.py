"""The JobSet that Kubeflow Trainer will make of a TrainJob and its runtime, as far as a queue has to know it.

What the TrainJob says is laid over the runtime's template in Trainer's order: patches, then the number of nodes, then
what it says of its initializers and its trainer. Of what Trainer adds by itself (addresses, ranks, keys, volumes)
nothing needs quota, and nothing is here. Pure; called by the kind of job.
"""

from __future__ import annotations

import copy
from typing import Any

from shoal.api.meta import Json
from shoal.api.quantity import parse
from shoal.controllers.queues.jobs.templated import found_at
from shoal.errors import BadInput

PATCHED_BY_US = "kueue.x-k8s.io/manager"
"""Who patches runtimes for an admission: the name that Kueue has there, too."""
ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
TRAINER, NODE = "trainer", "node"
INITIALIZERS = {"dataset-initializer": "dataset", "model-initializer": "model"}
"""Step, which is also the name of its container, to the field of `spec.initializer`."""
MERGES = "shoal.dev/merges"
"""Set in a runtime that a Trainer of 2.3 or newer has kept: those add what a TrainJob asks for to what its runtime
does, where older ones replaced it."""
_STORAGE = "STORAGE_URI"
_MERGED_BY = {
    "volumes": "name",
    "containers": "name",
    "initContainers": "name",
    "imagePullSecrets": "name",
    "schedulingGates": "name",
    "env": "name",
    "volumeMounts": "mountPath",
}
"""Lists that a patch adds to, and the field that says which entry is meant; any other list it replaces."""


def replicated_jobs(runtime: Json, job: Json) -> list[Json]:
    """The replicated jobs of the JobSet, whole. Raises BadInput where the runtime cannot be read."""
    spec = runtime.get("spec") or {}
    listed = found_at(spec, ("template", "spec", "replicatedJobs"))
    if not isinstance(listed, list) or not listed or not all(isinstance(one, dict) for one in listed):
        where = f"{runtime.get('kind')} {(runtime.get('metadata') or {}).get('name')}"
        raise BadInput(f"{where}: spec.template.spec.replicatedJobs must list the jobs of a JobSet")
    jobs = [_patched(one, job) for one in listed]
    policy, trainer = spec.get("mlPolicy"), (job.get("spec") or {}).get("trainer") or {}
    for one, count in zip(jobs, _counts(jobs, policy, trainer.get("numNodes")), strict=True):
        inner = one["template"].setdefault("spec", {})
        inner["parallelism"] = inner["completions"] = count
        if _step(one) in (TRAINER, *INITIALIZERS):
            one["replicas"] = 1
        _initialize(one, (job.get("spec") or {}).get("initializer") or {})
        _train(one, trainer, launches=bool(_mpi(policy).get("runLauncherAsNode")), merges=bool(runtime.get(MERGES)))
    return jobs


def replicas(runtime: Json | None, name: str) -> int:
    """How many jobs of this name there are; one, where the runtime is gone."""
    listed = found_at(runtime, ("spec", "template", "spec", "replicatedJobs")) or ()
    named = next((one for one in listed if isinstance(one, dict) and one.get("name") == name), {})
    return 1 if _step(named) in (TRAINER, *INITIALIZERS) else max(int(named.get("replicas") or 1), 1)


def patches(job: Json) -> list[Json]:
    """`spec.runtimePatches`, as far as they are objects."""
    return [one for one in (job.get("spec") or {}).get("runtimePatches") or () if isinstance(one, dict)]


def patched_jobs(patch: Json) -> list[Json]:
    """The replicated jobs that a patch names."""
    return list(found_at(patch, ("trainingRuntimeSpec", "template", "spec", "replicatedJobs")) or ())


def as_trainer_writes(spec: Json) -> Json:
    """The spec of a TrainJob with amounts in their canonical form, as typed clients of Go write them."""
    made: Json = copy.deepcopy(spec)
    trainer, steps = made.get("trainer"), made.get("initializer")
    said = [one for one in (trainer, *(steps.values() if isinstance(steps, dict) else ())) if isinstance(one, dict)]
    for one in said:
        for env in one.get("env") or ():
            field = found_at(env, ("valueFrom", "resourceFieldRef"))
            if isinstance(field, dict):
                field["divisor"] = _canonical(field.get("divisor") or "0")
    resources = found_at(trainer, ("resourcesPerNode",)) or {}
    for field in ("limits", "requests"):
        if isinstance(resources.get(field), dict):
            resources[field] = {name: _canonical(value) for name, value in resources[field].items()}
    return made


def _canonical(value: Any) -> Any:
    try:
        return str(parse(value))
    except BadInput:
        return value  # what its schema says of it is the server's to say


def _patched(replicated: Json, job: Json) -> Json:
    """With the patches of everyone but us: what an admission adds is not what the job asks for."""
    made: Json = copy.deepcopy(replicated)
    template = made.get("template") or {}
    for patch in patches(job):
        for one in patched_jobs(patch) if patch.get("manager") != PATCHED_BY_US else ():
            if one.get("name") == made.get("name") and one.get("template"):
                template = _merged(template, one["template"])
    return {**made, "template": template}


def _merged(before: Any, patch: Any, name: str = "") -> Any:
    """As a strategic merge patch: fields by their names, some lists by a field of their entries."""
    if isinstance(before, dict) and isinstance(patch, dict):
        made = dict(before)
        for key, value in patch.items():
            made[key] = _merged(before.get(key), value, key)
        return made
    by = _MERGED_BY.get(name)
    if by is None or not isinstance(before, list) or not isinstance(patch, list):
        return copy.deepcopy(patch)
    changed = {one.get(by): one for one in patch if isinstance(one, dict)}
    known = [one.get(by) for one in before]
    return [_merged(one, changed[one.get(by)]) if one.get(by) in changed else one for one in before] + [
        copy.deepcopy(one) for key, one in changed.items() if key not in known
    ]


def _counts(jobs: list[Json], policy: Any, nodes: Any) -> list[int]:
    """Pods of one job of each: as the runtime says, or its policy, or the TrainJob."""
    counts = []
    for one in jobs:
        count = found_at(one, ("template", "spec", "parallelism"))
        if _step(one) == TRAINER and policy is not None:
            count = policy.get("numNodes")
        counts.append(max(1 if count is None else int(count), 1))
    if nodes is None:
        return counts
    mpi = _mpi(policy)
    meant = [index for index, one in enumerate(jobs) if (one.get("name") == NODE if mpi else _step(one) == TRAINER)]
    for index in meant[:1]:
        counts[index] = max(int(nodes) - 1, 1) if mpi.get("runLauncherAsNode") else int(nodes)
    return counts


def _initialize(replicated: Json, said: Json) -> None:
    step = _step(replicated)
    given: Json = said.get(INITIALIZERS.get(step, "")) or {}
    for container in _containers(replicated, step) if given else ():
        uri = [{"name": _STORAGE, "value": given["storageUri"]}] if given.get("storageUri") is not None else []
        _set_env(container, [*uri, *(given.get("env") or ())])
        if given.get("secretRef"):
            container["envFrom"] = [*(container.get("envFrom") or ()), {"secretRef": dict(given["secretRef"])}]


def _train(replicated: Json, said: Json, *, launches: bool, merges: bool) -> None:
    """`launches`: its launcher is a node as well, so that the nodes beside it are as that one."""
    trains = _step(replicated) == TRAINER
    for container in _containers(replicated, NODE):
        if trains:
            container.update({name: said[name] for name in ("image", "command", "args") if said.get(name) is not None})
        if trains or (launches and replicated.get("name") == NODE):
            resources = said.get("resourcesPerNode") or {}
            if resources.get("limits") is not None or resources.get("requests") is not None:
                container["resources"] = _merged(container.get("resources") if merges else None, resources)
            _set_env(container, said.get("env") or ())


def _containers(replicated: Json, name: str) -> list[Json]:
    listed = found_at(replicated, ("template", "spec", "template", "spec", "containers")) or ()
    return [one for one in listed if isinstance(one, dict) and one.get("name") == name]


def _set_env(container: Json, given: Any) -> None:
    if given:
        container["env"] = _merged(container.get("env") or [], list(given), "env")


def _step(replicated: Json) -> str:
    return str(found_at(replicated, ("template", "metadata", "labels", ANCESTOR)) or "")


def _mpi(policy: Any) -> Json:
    """What a policy for MPI says; empty where it is for something else. An MPI policy always says something."""
    found = policy.get("mpi") if isinstance(policy, dict) else None
    return {"numProcPerNode": 1, **found} if isinstance(found, dict) else {}
