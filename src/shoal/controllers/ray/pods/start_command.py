"""The `ray start` line of a head or worker: which flags, with which values, safely quoted.

Called by the pod builder. A value may name a variable (`$REDIS_PASSWORD`) as published manifests do; nothing else
in it is ever read as shell: separators, substitutions and stray quotes reach Ray as plain text.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from shoal.api import quantity
from shoal.api.gpus import is_gpu
from shoal.api.meta import Json
from shoal.controllers.ray import view
from shoal.controllers.ray.shell_text import words_of
from shoal.errors import BadInput

VALUE_FLAGS = frozenset({"log-color", "include-dashboard", "include-log-monitor"})
"""Flags that take the word true or false as their value."""

ACCELERATORS = {"aws.amazon.com/neuroncore": "neuron_cores", "google.com/tpu": "TPU"}

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]*", re.ASCII)
_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})", re.ASCII)
FLAG = re.compile(r"[a-z][a-z0-9_-]*", re.ASCII | re.IGNORECASE)
"""What a start parameter may be called; anything else is refused at validation and never printed."""

ULIMIT = "ulimit -n ${RAY_START_ULIMIT_OPEN_FILES:-65536}"


def parameters(cluster: Json, group: Json, *, is_head: bool, address: str) -> dict[str, str]:
    """All start parameters of one group: the user's, the group's resources and labels, then what is missing."""
    params = view.start_params(group)
    params.update(_from_group_resources(group.get("resources") or {}))
    if group.get("labels"):
        params["labels"] = ",".join(f"{key}={value}" for key, value in sorted(group["labels"].items()))
    if is_head:
        params.setdefault("dashboard-host", "0.0.0.0")
    else:
        params.setdefault("address", address)
    params.setdefault("metrics-export-port", "8080")
    params.setdefault("dashboard-agent-listen-port", "52365")
    params["block"] = "true"
    if is_head and view.autoscaling(cluster):
        params["no-monitor"] = "true"
    if is_head:
        options = view.spec(cluster).get("gcsFaultToleranceOptions") or {}
        if options.get("redisUsername"):
            params["redis-username"] = "$REDIS_USERNAME"
        if options.get("redisPassword"):
            params["redis-password"] = "$REDIS_PASSWORD"
    _add_container_resources(params, view.ray_container(group).get("resources") or {})
    return params


def command_line(params: dict[str, str], *, is_head: bool) -> str:
    """`ray start …` with its flags in key order."""
    words = ["ray start"] + (["--head"] if is_head else [])
    for key in sorted(params):
        value = params[key]
        if not FLAG.fullmatch(key):
            continue
        if value.lower() in ("true", "false") and key not in VALUE_FLAGS:
            if value.lower() == "true":
                words.append(f"--{key}")
        else:
            words.append(f"--{key}={quoted(value)}")
    return " ".join(words)


def quoted(value: str) -> str:
    """One shell word that stands for the value; only plain variables in it still expand.

    Values that bring their own quotes (`'{"A": 1}'`) are unquoted first, as a shell would have done.
    """
    text = value.strip()
    if _PLAIN.fullmatch(text):
        return text
    if text[0] in "'\"":
        words = words_of(text)
        if len(words) == 1:
            return _single_quoted(words[0]) if text[0] == "'" else _double_quoted(words[0])
    return _double_quoted(text)


def resources_json(text: str) -> dict[str, Any] | None:
    """The `resources` parameter as a mapping, in any of the quotings that manifests use; None if it is not one."""
    candidates = [text.strip(), *words_of(text)[:1]]
    candidates.append(text.strip().strip("'\"").replace('\\"', '"'))
    for candidate in candidates:
        try:
            found = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return None


def _single_quoted(text: str) -> str:
    return shlex.quote(text).replace("$(", "$''(")  # never the two characters that the kubelet would read


def _double_quoted(text: str) -> str:
    kept: list[str] = []
    position = 0
    while position < len(text):
        variable = _VARIABLE.match(text, position)
        if variable:
            kept.append(variable.group())
            position = variable.end()
            continue
        character = text[position]
        kept.append("\\" + character if character in '$`"\\' else character)
        position += 1
    return '"' + "".join(kept).replace("$(", '$""(') + '"'


def _from_group_resources(resources: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    custom: dict[str, int | float] = {}
    for name in sorted(resources):
        try:
            amount = quantity.parse(resources[name])
        except BadInput:
            continue  # validation names it; a pod is never built from it
        lowered = name.lower()
        if lowered == "cpu":
            found["num-cpus"] = str(amount.units)
        elif lowered == "memory":
            found["memory"] = str(amount.units)
        elif is_gpu(lowered):
            found["num-gpus"] = str(amount.units)
        else:
            custom[name] = _number(amount.nano)
    if custom:
        found["resources"] = "'" + _compact(custom) + "'"
    return found


def _add_container_resources(params: dict[str, str], resources: Json) -> None:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    if "num-cpus" not in params:
        cpu = _units(limits.get("cpu")) or _units(requests.get("cpu"))
        if cpu:
            params["num-cpus"] = str(cpu)
    if "memory" not in params and _units(limits.get("memory")):
        params["memory"] = str(_units(limits["memory"]))
    if "num-gpus" not in params:
        gpus = next((_units(limits[name]) for name in sorted(limits) if is_gpu(name) and _units(limits[name])), 0)
        if gpus:
            params["num-gpus"] = str(gpus)
    _add_accelerator(params, limits)


def _add_accelerator(params: dict[str, str], limits: Json) -> None:
    """One accelerator kind, the first by name, as KubeRay does; an entry the user made himself stays."""
    custom: dict[str, Any] | None = {}
    if params.get("resources"):
        custom = resources_json(params["resources"])
    if custom is None or any(ray_name in custom for ray_name in ACCELERATORS.values()):
        return
    for name in sorted(limits):
        ray_name = ACCELERATORS.get(name)
        if ray_name and _units(limits[name]):
            params["resources"] = "'" + _compact({**custom, ray_name: _units(limits[name])}) + "'"
            return


def _units(value: Any) -> int:
    if value is None:
        return 0
    try:
        return quantity.parse(value).units
    except BadInput:
        return 0


def _number(nano: int) -> int | float:
    return nano // quantity.NANO if nano % quantity.NANO == 0 else nano / quantity.NANO


def _compact(values: dict[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":"), sort_keys=True)
