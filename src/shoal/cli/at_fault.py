"""Which line of a manifest, or which flags, ask for what a gang can never get.

For `shoal submit --check`. The controller's answer says what is too much; here it is found where the user wrote it: in
the template that asks for most of it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.api.labels import KUEUE_QUEUE
from shoal.api.manifests import line_of
from shoal.api.meta import Json
from shoal.api.quantity import amount
from shoal.errors import BadInput

Path = tuple[str | int, ...]
FLAGS = {"cpu": "cpu", "memory": "memory", "nvidia.com/gpu": "gpu"}


def in_file(text: bytes, source: str, number: int, obj: Json, answer: Json) -> list[str]:
    """`job.yaml, line 17: cpu: 40`, for everything that is too much. `number`: of the object in the file, from 0."""
    found = []
    for path in _paths(obj, answer) or [("metadata", "labels", KUEUE_QUEUE)]:
        line = line_of(text, number, path)
        if line:
            found.append(f"{source}, line {line}: {path[-1]}: {_at(obj, path)}")
    return found


def in_flags(job: Json, answer: Json) -> list[str]:
    """`--workers 9 with --worker-cpu 1 each`, of a RayJob that flags made."""
    found = []
    for path in _paths(job, answer):
        flag, value = FLAGS.get(str(path[-1])), _at(job, path)
        if flag is None:
            continue
        if "headGroupSpec" in path:
            found.append(f"--head-{flag} {value}")
        else:
            workers = _at(job, ("spec", "rayClusterSpec", "workerGroupSpecs", 0, "replicas"))
            found.append(f"--workers {workers} with --worker-{flag} {value} each")
    queue = _at(job, ("metadata", "labels", KUEUE_QUEUE))
    return found or ([f"--queue {queue}"] if queue else [])


def _paths(obj: Json, answer: Json) -> list[Path]:
    """Where each resource that is short is asked for, by the template that asks for most of it."""
    short = [one for one in answer.get("shortfalls") or () if one.get("resource")]
    return [path for resource in dict.fromkeys(str(one["resource"]) for one in short) if (path := _most(obj, resource))]


def _most(obj: Json, resource: str) -> Path:
    from shoal.controllers.demand import templates

    largest = 0
    where: Path = ()
    try:
        for one in templates(obj):
            containers = _at(obj, (*one.path, "spec", "containers")) if one.is_inside else None
            for index, container in enumerate(containers if isinstance(containers, list) else ()):
                for part in ("requests", "limits"):
                    value = _at(container, ("resources", part, resource))
                    asked = one.count * amount(resource, value) if isinstance(value, (str, int, float)) else 0
                    if asked > largest:
                        largest, where = asked, (*one.path, "spec", "containers", index, "resources", part, resource)
    except (BadInput, KeyError, TypeError):
        return ()
    return where


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value
