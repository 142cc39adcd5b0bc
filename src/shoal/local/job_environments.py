"""Python environments that a RayJob's runtime environment names on this machine: there, and with the Ray of its head.

Asked at admission where pods are processes. `py_executable` and `conda` with an absolute path are environments that
Ray itself would only find missing, without Ray, or too old when the job's first worker has died. Reads directories.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from shoal.api.labels import IMAGE_ENVIRONMENT
from shoal.api.meta import Json
from shoal.local import environments
from shoal.local.images import ImageTable


def problems(job: Json, runtime_env: Json, images: ImageTable) -> list[str]:
    """Each with its field."""
    cluster = _head(job, images)
    return [
        f"spec.runtimeEnvYAML: {field}: {problem}"
        for field, path in _named(runtime_env)
        for problem in _of_one(path, cluster)
    ]


def _named(runtime_env: Json) -> Iterator[tuple[str, Path]]:
    """Prefixes of environments, by the field that names them."""
    program, conda = runtime_env.get("py_executable"), runtime_env.get("conda")
    if isinstance(program, str):
        try:
            words = shlex.split(program)
        except ValueError:
            words = []
        if words and words[0].startswith("/"):
            yield "py_executable", Path(words[0])
    if isinstance(conda, str) and conda.startswith("/"):
        yield "conda", Path(conda)


def _of_one(path: Path, cluster: environments.Environment | None) -> Iterator[str]:
    if not path.exists():
        yield f"{path} is not on this machine"
        return
    prefix = path if path.is_dir() else path.parent.parent
    found = environments.read(str(prefix))
    if not found.python:
        return  # a wrapper, or an interpreter of the system: only Ray can tell
    wanted = f"{prefix}/bin/python -m pip install 'ray[default]{'==' + cluster.ray if cluster and cluster.ray else ''}'"
    if not found.ray:
        yield f"{prefix} has no Ray; install it: {wanted}"
    elif cluster is not None and cluster.ray and found.ray != cluster.ray:
        yield f"{prefix} has Ray {found.ray} and the head {cluster.ray}; they need the same: {wanted}"


def _head(job: Json, images: ImageTable) -> environments.Environment | None:
    """What the job's head runs with; None where the manifest does not tell."""
    try:
        template = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
        reference = template["spec"]["containers"][0]["image"]
    except (KeyError, IndexError, TypeError):
        return None
    marked = (job.get("metadata") or {}, template.get("metadata") or {})
    if any(IMAGE_ENVIRONMENT in (one.get("annotations") or {}) for one in marked) or not isinstance(reference, str):
        return None
    image = images.find(reference)
    return images.versions(image) if image is not None else None
