"""Reading the cluster-launcher configuration of a `Ray` object: YAML text in, settings and complaints out.

The historic schema, as far as it still means something. Every complaint names the line at fault. Pure; called by the
translation.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml  # type: ignore[import-untyped]

from shoal.api.meta import Json
from shoal.errors import BadInput

LARGEST_TEXT = 512 * 1024
MOST_NODES = 20_000

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


class Document(msgspec.Struct, frozen=True):
    """The text as data, with the line of every key."""

    data: Json
    lines: dict[tuple[str, ...], int]

    def at(self, *path: str) -> str:
        """`line 12`, of the nearest key on the way that is in the text."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return f"line {self.lines[path[:length]]}"
        return "line 1"


def parse(text: str) -> Document:
    """Raises BadInput with the line at fault."""
    if len(text) > LARGEST_TEXT:
        raise BadInput(f"spec.configuration has {len(text)} characters; at most {LARGEST_TEXT} are read")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise BadInput(f"spec.configuration, {where}{error.problem or 'not YAML'}") from None
    except yaml.YAMLError as error:
        raise BadInput(f"spec.configuration is not YAML: {error}") from None
    if not isinstance(root, yaml.MappingNode):
        raise BadInput("spec.configuration, line 1: a mapping such as `max_workers: 2` is expected")
    lines: dict[tuple[str, ...], int] = {}
    _note_lines(root, (), lines, [0])
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise BadInput(f"spec.configuration cannot be read: {str(error)[:200]}") from None
    return Document(data, lines)


def problems_of(document: Document, namespace: str) -> Iterator[str]:
    """What makes the text unusable."""
    data = document.data
    for key in COUNTS:
        yield from _check_number(document, key, whole=True)
    for key in ("idle_timeout_minutes", "target_utilization_fraction", "upscaling_speed"):
        yield from _check_number(document, key, whole=False)
    fraction = data.get("target_utilization_fraction")
    if isinstance(fraction, (int, float)) and not 0 < fraction <= 1:
        yield f"{document.at('target_utilization_fraction')}: target_utilization_fraction must be between 0 and 1"
    provider = data.get("provider")
    if provider is not None and not isinstance(provider, dict):
        yield f"{document.at('provider')}: provider must be a mapping"
    elif provider:
        if provider.get("type") not in (None, "kubernetes"):
            yield f"{document.at('provider', 'type')}: provider.type {provider['type']!r} is not kubernetes"
        if provider.get("namespace") not in (None, namespace):
            yield (
                f"{document.at('provider', 'namespace')}: provider.namespace {provider['namespace']!r} "
                f"is not the object's namespace {namespace!r}"
            )
    for key in ("head_node", "worker_nodes", "available_node_types"):
        if data.get(key) is not None and not isinstance(data[key], dict):
            yield f"{document.at(key)}: {key} must be a mapping"
    for key in KNOWN:
        if key.endswith("_commands") and data.get(key) is not None and not _is_texts(data[key]):
            yield f"{document.at(key)}: {key} must be a list of commands"
    types, head_type = data.get("available_node_types"), data.get("head_node_type")
    if isinstance(types, dict):
        if head_type not in types:
            yield f"{document.at('head_node_type')}: head_node_type {head_type!r} is not one of available_node_types"
        for name, kind in types.items():
            if not isinstance(kind, dict):
                yield f"{document.at('available_node_types', str(name))}: {name} must be a mapping"


def unsupported_in(document: Document) -> list[str]:
    """Keys that have no meaning here, with their lines."""
    found = [key for key in document.data if key in UNSUPPORTED or str(key).startswith("rsync") or key not in KNOWN]
    return [f"{key} ({document.at(str(key))})" for key in found if document.data[key] not in (None, {}, [])]


def start_params(commands: list[str]) -> dict[str, str]:
    """The flags of the last `ray start` line; what the operator decides itself is left out."""
    line = next((command for command in reversed(commands) if "ray start" in command), "")
    if not line:
        return {}
    try:
        words = shlex.split(line[line.index("ray start") + len("ray start") :], comments=False)
    except ValueError:
        return {}
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


def _check_number(document: Document, key: str, *, whole: bool) -> Iterator[str]:
    value = document.data.get(key)
    if value is None:
        return
    right = isinstance(value, int) if whole else isinstance(value, (int, float))
    if isinstance(value, bool) or not right or value < 0:
        kind = "a whole number" if whole else "a number"
        yield f"{document.at(key)}: {key} must be {kind} of at least 0, not {value!r}"


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _note_lines(node: yaml.Node, path: tuple[str, ...], lines: dict[tuple[str, ...], int], seen: list[int]) -> None:
    seen[0] += 1
    if seen[0] > MOST_NODES or len(path) > 60:
        raise BadInput("spec.configuration is nested too deeply or repeats itself too often")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            lines[here] = key.start_mark.line + 1
            _note_lines(value, here, lines, seen)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _note_lines(value, path, lines, seen)
