"""From flags to a RayJob or RayCluster: what a user says in a line, as the manifest that goes to the server.

Pure. Used by `shoal submit`, `shoal free` and the Python door. Nothing is left to guess for the server: every pod says
what it needs, and requests equal limits.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
from collections.abc import Sequence

import msgspec

from shoal.api.gang import NOTIFY
from shoal.api.labels import KUEUE_PRIORITY_CLASS, KUEUE_QUEUE
from shoal.api.meta import Json
from shoal.errors import BadInput

RAY_VERSION = "2.60.0"
"""Of the image, where the user names neither image nor version."""
GPU = "nvidia.com/gpu"
LONGEST_NAME = 47
"""Of a RayJob, as KubeRay allows."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


class PodShape(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod of a Ray cluster needs, as people write amounts."""

    cpu: str = "1"
    memory: str = "2Gi"
    gpu: str = "0"
    resources: dict[str, str] = {}
    """Further resources, such as `example.com/tpu`."""

    def amounts(self) -> dict[str, str]:
        found = {"cpu": self.cpu, "memory": self.memory, **self.resources}
        return {**found, GPU: self.gpu} if self.gpu not in ("", "0") else found


class ClusterShape(msgspec.Struct, frozen=True, kw_only=True):
    workers: int = 1
    head: PodShape = PodShape()
    worker: PodShape = PodShape()
    image: str = ""
    ray_version: str = ""
    environment: dict[str, str] = {}
    head_selector: dict[str, str] = {}
    worker_selector: dict[str, str] = {}
    """Labels of the nodes where they run."""

    @property
    def container_image(self) -> str:
        return self.image or f"rayproject/ray:{self.ray_version or RAY_VERSION}"


class JobShape(msgspec.Struct, frozen=True, kw_only=True):
    entrypoint: str
    cluster: ClusterShape = ClusterShape()
    name: str = ""
    queue: str = ""
    priority: str = ""
    """Name of a WorkloadPriorityClass."""
    notify: str = ""
    """Address that gets notices, where an administrator allows it."""
    labels: dict[str, str] = {}
    runtime_env: Json = {}
    metadata: dict[str, str] = {}
    submission_id: str = ""
    entrypoint_cpus: float = 0
    entrypoint_gpus: float = 0
    entrypoint_resources: Json = {}
    deadline_seconds: int = 0
    keep_cluster: bool = False
    ttl_seconds: int = 0
    backoff_limit: int = 0


def entrypoint_of(words: Sequence[str]) -> str:
    """The shell command that these words are; one word with spaces is a command already."""
    if len(words) == 1:
        return words[0]
    return " ".join(map(shlex.quote, words))


def name_for(entrypoint: str) -> str:
    """A name from the script that is run, with a few letters that make it new: `train-x7k2p`."""
    words = entrypoint.split()
    script = next((word for word in words if word.endswith((".py", ".sh"))), "")
    stem = script.rsplit("/", 1)[-1].rpartition(".")[0] or (words[0].rsplit("/", 1)[-1] if words else "")
    return renamed(re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "job")


def renamed(name: str) -> str:
    """The same name with new letters at its end; those of an earlier time are dropped."""
    stem = re.sub(r"-[a-z0-9]{5}$", "", name) if re.search(r"-(?=[a-z0-9]*\d)[a-z0-9]{5}$", name) else name
    stem = stem if stem[:1].isalpha() else f"job-{stem}"
    end = "".join(secrets.choice(_LETTERS) for _ in range(4)) + secrets.choice("0123456789")
    return f"{stem[: LONGEST_NAME - 6].rstrip('-')}-{end}"


def ray_job(shape: JobShape, namespace: str) -> Json:
    """Raises BadInput for what could never be a RayJob."""
    name = shape.name or name_for(shape.entrypoint)
    if not shape.entrypoint.strip():
        raise BadInput("the command is empty; write it after --, such as: -- python train.py")
    _check_name(name)
    spec: Json = {
        "entrypoint": shape.entrypoint,
        "submissionMode": "K8sJobMode",
        "shutdownAfterJobFinishes": not shape.keep_cluster,
        "rayClusterSpec": cluster_spec(shape.cluster),
    }
    spec |= driver_fields(
        runtime_env=shape.runtime_env, metadata=shape.metadata, submission_id=shape.submission_id,
        cpus=shape.entrypoint_cpus, gpus=shape.entrypoint_gpus, resources=shape.entrypoint_resources,
    )  # fmt: skip
    optional = {
        "activeDeadlineSeconds": shape.deadline_seconds,
        "ttlSecondsAfterFinished": shape.ttl_seconds,
        "backoffLimit": shape.backoff_limit,
    }
    spec.update({field: value for field, value in optional.items() if value})
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": _metadata(shape, name, namespace), "spec": spec}


def driver_fields(
    *, runtime_env: Json, metadata: Json, submission_id: str, cpus: float, gpus: float, resources: Json
) -> Json:
    """How a RayJob's command is run: fields of its spec, those that are given."""
    found = {
        "jobId": submission_id,
        "runtimeEnvYAML": json.dumps(runtime_env, sort_keys=True) if runtime_env else "",
        "metadata": {str(key): str(value) for key, value in metadata.items()},
        "entrypointNumCpus": cpus,
        "entrypointNumGpus": gpus,
        "entrypointResources": json.dumps(resources) if resources else "",
    }
    return {field: value for field, value in found.items() if value}


def ray_cluster(shape: ClusterShape, name: str, namespace: str, *, queue: str = "", priority: str = "") -> Json:
    _check_name(name)
    labels = JobShape(entrypoint="", queue=queue, priority=priority)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": _metadata(labels, name, namespace),
        "spec": cluster_spec(shape),
    }


def cluster_spec(shape: ClusterShape) -> Json:
    if shape.workers < 0:
        raise BadInput(f"--workers {shape.workers} must be 0 or more")
    found: Json = {
        "headGroupSpec": {
            "rayStartParams": {},
            "template": _template("ray-head", shape.head, shape, shape.head_selector),
        }
    }
    if shape.ray_version or not shape.image:
        found["rayVersion"] = shape.ray_version or RAY_VERSION
    if shape.workers:
        found["workerGroupSpecs"] = [
            {
                "groupName": "workers",
                "replicas": shape.workers,
                "minReplicas": shape.workers,
                "maxReplicas": shape.workers,
                "rayStartParams": {},
                "template": _template("ray-worker", shape.worker, shape, shape.worker_selector),
            }
        ]
    return found


def _template(name: str, pod: PodShape, shape: ClusterShape, selector: dict[str, str]) -> Json:
    amounts = pod.amounts()
    container: Json = {
        "name": name,
        "image": shape.container_image,
        "resources": {"requests": amounts, "limits": dict(amounts)},
    }
    if shape.environment:
        container["env"] = [{"name": key, "value": value} for key, value in shape.environment.items()]
    spec: Json = {"containers": [container]}
    if selector:
        spec["nodeSelector"] = dict(selector)
    return {"spec": spec}


def _metadata(shape: JobShape, name: str, namespace: str) -> Json:
    labels = dict(shape.labels)
    if shape.queue:
        labels[KUEUE_QUEUE] = shape.queue
    if shape.priority:
        labels[KUEUE_PRIORITY_CLASS] = shape.priority
    found: Json = {"name": name, "namespace": namespace, **({"labels": labels} if labels else {})}
    return {**found, "annotations": {NOTIFY: shape.notify}} if shape.notify else found


def _check_name(name: str) -> None:
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} is no name of a Ray job or cluster: lower-case letters, digits and -, "
            f"a letter first, at most {LONGEST_NAME}"
        )
