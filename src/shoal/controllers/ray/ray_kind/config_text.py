"""Reading the cluster-launcher configuration of a `Ray` object: YAML text in, settings and complaints out.

The historic schema, as far as it still means something. Every complaint names the line at fault. Pure; called by the
translation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from shoal.api.meta import Json
from shoal.controllers.ray import guarded_yaml, shell_text
from shoal.controllers.ray.guarded_yaml import Document
from shoal.controllers.ray.ray_kind import config_shape
from shoal.errors import BadInput

FIELD = "spec.configuration"
MODES = ("default", "aggressive")
_USUAL_TEXT = 32 * 1024

UNSUPPORTED = ("file_mounts", "auth", "docker", "cluster_synced_files", "file_mounts_sync_continuously")
COUNTS = ("min_workers", "max_workers", "initial_workers")
KNOWN = frozenset({
    *COUNTS, "cluster_name", "autoscaling_mode", "target_utilization_fraction", "idle_timeout_minutes",
    "upscaling_speed", "provider", "head_node", "worker_nodes", "available_node_types", "head_node_type",
    "initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands",
    "head_start_ray_commands", "worker_start_ray_commands",
})  # fmt: skip

_DROPPED_FLAGS = ("address", "head", "autoscaling-config", "block")
_KEEP_ALIVE = re.compile(r"\b(sleep\s+(infinity|inf|\d{4,})|tail\s+-f\s+/dev/null)\b")


def parse(text: str) -> Document:
    """Raises BadInput with the line at fault. Texts of a usual size are remembered between passes."""
    return _remembered(text) if len(text) <= _USUAL_TEXT else guarded_yaml.parse(text, FIELD)


@lru_cache(maxsize=16)
def _remembered(text: str) -> Document:
    return guarded_yaml.parse(text, FIELD)


def problems_of(document: Document, namespace: str) -> Iterator[str]:
    """What makes the text unusable."""
    data = document.data
    for path, line in document.twice:
        yield f"line {line}: {'.'.join(path)} is given twice; keep one"
    for key in COUNTS:
        yield from config_shape.problems_of_number(document, (key,), whole=True)
    for key in ("idle_timeout_minutes", "target_utilization_fraction", "upscaling_speed"):
        yield from config_shape.problems_of_number(document, (key,), whole=False)
    fraction = data.get("target_utilization_fraction")
    if isinstance(fraction, (int, float)) and not 0 < fraction <= 1:
        yield f"{document.at('target_utilization_fraction')}: target_utilization_fraction must be between 0 and 1"
    mode = data.get("autoscaling_mode")
    if mode not in (None, *MODES):
        yield f"{document.at('autoscaling_mode')}: autoscaling_mode {mode!r}: use {' or '.join(MODES)}"
    yield from _provider(document, namespace)
    for key in sorted(KNOWN):
        if key.endswith("_commands") and data.get(key) is not None:
            yield from _commands(document, key)
    for key in ("head_node", "worker_nodes"):
        yield from config_shape.problems_of_pod(document, (key,))
    types, head_type = data.get("available_node_types"), data.get("head_node_type")
    if types is not None:
        yield from config_shape.problems_of_types(document, types, head_type)


def _provider(document: Document, namespace: str) -> Iterator[str]:
    provider = document.data.get("provider")
    if provider is None:
        return
    if not isinstance(provider, dict):
        yield f"{document.at('provider')}: provider must be a mapping"
        return
    if provider.get("type") not in (None, "kubernetes"):
        yield f"{document.at('provider', 'type')}: provider.type {provider['type']!r} is not kubernetes"
    if provider.get("namespace") not in (None, namespace):
        yield (
            f"{document.at('provider', 'namespace')}: provider.namespace {provider['namespace']!r} "
            f"is not the object's namespace {namespace!r}"
        )
    for key in ("autoscaler_service_account", "autoscaler_role", "autoscaler_role_binding"):
        if provider.get(key) is not None:
            yield from config_shape.problems_of_named(document, ("provider", key), provider[key])


def _commands(document: Document, key: str) -> Iterator[str]:
    commands = document.data[key]
    if not isinstance(commands, list):
        yield f"{document.at(key)}: {key} must be a list of commands"
        return
    for index, command in enumerate(commands):
        if not isinstance(command, str):
            yield f"{document.at(key, index)}: {key} must be a list of commands, not {command!r:.60}"
        elif "ray start" in command:
            try:
                shell_text.read(_after_start(command))
            except BadInput as error:
                yield f"{document.at(key, index)}: {key}: the flags of `ray start` cannot be read: {error}"


def unsupported_in(document: Document) -> list[str]:
    """Keys that have no meaning here, with their lines."""
    found = [key for key in document.data if key in UNSUPPORTED or str(key).startswith("rsync") or key not in KNOWN]
    return [f"{key} ({document.at(str(key))})" for key in found if document.data[key] not in (None, {}, [])]


def start_params(commands: list[str]) -> dict[str, str]:
    """The flags of the last `ray start` line; what the operator decides itself is left out."""
    line = next((command for command in reversed(commands) if "ray start" in command), "")
    if not line:
        return {}
    words = shell_text.words_of(_after_start(line))
    params: dict[str, str] = {}
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word in ("&&", ";", "||", "|", "&") or word.endswith(";"):
            break
        if not word.startswith("--"):
            continue
        key, equals, value = word[2:].partition("=")
        if (
            not equals
            and index < len(words)
            and not words[index].startswith("-")
            and words[index] not in ("&&", ";", "|")
        ):
            value, index = words[index], index + 1
        key = {"redis-port": "port"}.get(key, key)
        if key not in _DROPPED_FLAGS and "$RAY_HEAD_IP" not in value:
            params[key] = value if value or equals else "true"
    return params


def commands_before_start(commands: list[str]) -> list[str]:
    """Start commands that are neither `ray start` nor `ray stop`."""
    return [command for command in commands if "ray start" not in command and "ray stop" not in command]


def is_keep_alive(container: Json) -> bool:
    """A command of that era that only keeps the container up for a launcher to log in; it never returns."""
    text = " ".join(str(part) for part in [*(container.get("command") or []), *(container.get("args") or [])])
    return _KEEP_ALIVE.search(text) is not None and "ray start" not in text


def _after_start(command: str) -> str:
    return command[command.index("ray start") + len("ray start") :]
