"""From the flags of `shoal submit`, and a manifest where there is one, to the RayJob that goes to the server.

Reads files, sends nothing. A flag that would do nothing is refused: it would mislead.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from shoal.api import manifests
from shoal.api.gang import NOTIFY
from shoal.api.labels import KUEUE_PRIORITY_CLASS, KUEUE_QUEUE
from shoal.api.meta import Json
from shoal.cli import spellings
from shoal.errors import BadInput
from shoal.sdk import shapes
from shoal.sdk.shapes import ClusterShape, JobShape, PodShape

OF_ANY = ("filename", "words", "queue", "priority", "label", "notify", "no_wait", "check", "dry_run", "namespace")
WHERE = ("kubeconfig", "context", "name")


def marks_of(options: dict[str, Any], allowed: tuple[str, ...] = ()) -> Json:
    """Labels and annotations that flags add to the gangs of a manifest. Raises BadInput for a flag of the shape: that
    is the manifest's to say, and a flag that does nothing would mislead."""
    context = click.get_current_context()
    typed = [
        one for one in context.command.params
        if one.name not in (*OF_ANY, *WHERE, *spellings.UNNEEDED, *allowed) and one.name is not None
        and context.get_parameter_source(one.name) is ParameterSource.COMMANDLINE
    ]  # fmt: skip
    if typed:
        raise BadInput(f"{typed[0].opts[0]} is for a command; with a manifest, write it there")
    labels = {KUEUE_QUEUE: options["queue"], KUEUE_PRIORITY_CLASS: options["priority"], **options["label"]}
    notify = {NOTIFY: options["notify"]} if options["notify"] else {}
    return {"labels": {key: value for key, value in labels.items() if value}, "annotations": notify}


def marked(obj: Json, marks: Json) -> Json:
    metadata = dict(obj.get("metadata") or {})
    for part, added in marks.items():
        if added:
            metadata[part] = {**(metadata.get(part) or {}), **added}
    return {**obj, "metadata": metadata}


def job_shape(words: tuple[str, ...], options: dict[str, Any]) -> tuple[JobShape, Path | None]:
    """What the flags say, and the folder that travels."""
    if not words:
        raise BadInput("nothing to submit; give a manifest, or a command after --, such as: -- python train.py")
    runtime_env, directory = _travels(words, options, {})
    pods = {
        role: PodShape(**{name: options[f"{role}_{name}"] for name in ("cpu", "memory", "gpu")})
        for role in ("head", "worker")
    }
    cluster = ClusterShape(
        workers=options["workers"], head=pods["head"], worker=pods["worker"], image=options["image"],
        ray_version=options["ray_version"], environment=options["environment"],
        head_selector={**options["node_selector"], **options["head_node_selectors"]},
        worker_selector={**options["node_selector"], **options["worker_node_selectors"]},
    )  # fmt: skip
    shape = JobShape(
        entrypoint=shapes.entrypoint_of(words), cluster=cluster, name=options["job_name"], queue=options["queue"],
        notify=options["notify"], priority=options["priority"], labels=options["label"], runtime_env=runtime_env,
        metadata=options["metadata_json"],
        submission_id=options["submission_id"], entrypoint_cpus=options["entrypoint_num_cpus"],
        entrypoint_gpus=options["entrypoint_num_gpus"], entrypoint_resources=options["entrypoint_resources"],
        deadline_seconds=options["time_limit"], keep_cluster=options["keep_cluster"],
        ttl_seconds=options["ttl_seconds_after_finished"], backoff_limit=options["backoff_limit"],
    )  # fmt: skip
    return shape, directory


def _travels(words: tuple[str, ...], options: dict[str, Any], written: Json) -> tuple[Json, Path | None]:
    """The runtime environment, flags before what is written, and the folder that is packed."""
    runtime_env = {**written, **dict(options["runtime_env_json"])}
    if options["runtime_env"] is not None:
        runtime_env = {**written, **_runtime_env(options["runtime_env"]), **dict(options["runtime_env_json"])}
    chosen = options["working_dir"] or runtime_env.pop("working_dir", None)
    directory: Path | None = None
    if chosen and "://" in str(chosen):
        runtime_env["working_dir"] = chosen
    elif chosen:
        directory = Path(str(chosen))
    elif any(Path(word).is_file() and not Path(word).is_absolute() for word in _split(words)):
        directory = Path()
    return runtime_env, directory


OF_A_COMMAND = ("working_dir", "runtime_env_json", "runtime_env", "metadata_json", "submission_id",
                "entrypoint_num_cpus", "entrypoint_num_gpus", "entrypoint_resources")  # fmt: skip
"""Flags that say how a command is run, wherever its Ray cluster is described."""


def filled(file: Path, words: tuple[str, ...], options: dict[str, Any]) -> tuple[Json, Path | None]:
    """The manifest's RayJob with this command in it, as `kubectl ray job submit -f FILE -- COMMAND` has it, and the
    folder that travels. Raises BadInput where the file is not one RayJob."""
    marks = marks_of(options, allowed=OF_A_COMMAND)
    objects = manifests.read(read_file(file), str(file))
    if len(objects) != 1 or objects[0].get("kind") != "RayJob":
        raise BadInput(f"{file}: with a command after --, the manifest must be one RayJob")
    job = marked(objects[0], marks)
    job["metadata"].setdefault("namespace", options["namespace"])
    spec = dict(job.get("spec") or {})
    if not isinstance(spec.get("rayClusterSpec"), dict):
        raise BadInput(f"{file}: spec.rayClusterSpec is missing: a command needs a Ray cluster of its own")
    if not job["metadata"].get("name"):
        job["metadata"]["name"] = shapes.renamed(str(job["metadata"].pop("generateName", "job")).rstrip("-"))
    written = spec.pop("runtimeEnvYAML", "")
    read = manifests.read(str(written), f"{file}, spec.runtimeEnvYAML") if written else []
    runtime_env, directory = _travels(words, options, dict(read[0]) if read else {})
    said = shapes.driver_fields(
        runtime_env=runtime_env, metadata=options["metadata_json"], submission_id=options["submission_id"],
        cpus=options["entrypoint_num_cpus"], gpus=options["entrypoint_num_gpus"],
        resources=options["entrypoint_resources"],
    )  # fmt: skip
    if directory is not None and spec.get("submitterPodTemplate"):
        raise BadInput(f"{file}: spec.submitterPodTemplate is written, and a folder that travels needs one of its own")
    mode = spec.get("submissionMode")
    spec |= {"entrypoint": shapes.entrypoint_of(words), **said}
    spec["submissionMode"] = "K8sJobMode" if mode in (None, "InteractiveMode") or directory is not None else mode
    return {**job, "spec": spec}, directory


def _split(words: tuple[str, ...]) -> list[str]:
    """The words of the command, also where it was given as one text."""
    import shlex

    try:
        return [part for word in words for part in shlex.split(word)]
    except ValueError:
        return list(words)


def _runtime_env(path: Path) -> Json:
    found = manifests.read(read_file(path), str(path))
    return found[0] if found else {}


def read_file(path: Path) -> bytes:
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read(manifests.MOST_BYTES + 1)
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None
