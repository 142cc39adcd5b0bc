"""What the calls of the Python door take by name, for those that pass it on: an editor completes it, mypy checks it.

The calls of `aio` spell them out with their defaults; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict


class WhereOptions(TypedDict, total=False):
    """Which cluster and namespace, by the rule of the commands."""

    namespace: str
    kubeconfig: str | Path | None
    context: str | None
    cluster_name: str | None


class _ShapeOptions(WhereOptions, total=False):
    cpus: str | int | float
    memory: str
    gpus: int
    head_cpus: str | int | float
    head_memory: str
    env: Mapping[str, str] | None
    image: str
    ray_version: str
    queue: str
    priority: str
    name: str


class ClusterOptions(_ShapeOptions, total=False):
    timeout: float | None


class SubmitOptions(_ShapeOptions, total=False):
    workers: int
    working_dir: str | Path | None
    runtime_env: Mapping[str, Any] | None
    labels: Mapping[str, str] | None
    time_limit: int
    notify: str
