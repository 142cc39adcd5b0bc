"""What a user chooses for a one-machine cluster: nodes, pools, load, images. One typed object, read once.

Flags and the configuration file say the same things; a bad one is refused with its place and the words that were
written, before anything starts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import yaml

from shoal.api import quantity
from shoal.api.names import check_label_value, check_qualified, check_subdomain
from shoal.errors import BadInput
from shoal.local.images import parse_mapping
from shoal.local.shapes import NodeShape, RuntimeName

T = TypeVar("T")

SANDBOXES = ("auto", "netns", "mounts", "loopback")
"""How pods can be kept apart, best first."""
_Choice = TypeVar("_Choice", bound=str)

_TIME_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that the autoscaler may add: between `least` and `most`, `delay` seconds after they were asked for."""

    name: str
    capacity: dict[str, str]
    labels: dict[str, str] = {}
    taints: tuple[dict[str, str], ...] = ()
    least: int = 0
    most: int = 10
    delay: float = 2.0
    runtime: RuntimeName = "process"


_PLAIN_RESOURCES = {"cpu", "memory", "pods", "ephemeral-storage"}
FILE_FIELDS = {
    *("nodes", "pools", "baseLoad", "images", "runtime", "sandbox", "idleSeconds", "bookingSeconds"),
    *("durability", "supply", "policy", "preemption", "gangs"),
}


class LocalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`nodes` empty means one node of this machine's own size."""

    nodes: tuple[NodeShape, ...] = ()
    removed: tuple[str, ...] = ()
    """Names of declared nodes that were removed by hand: they stay so until nodes are declared again."""
    pools: tuple[Pool, ...] = ()
    base_load: dict[str, str] = {}
    images: dict[str, str] = {}
    runtime: RuntimeName = "process"
    sandbox: str = "auto"
    idle_seconds: float = 600.0
    """After how long an empty node of a pool goes away."""
    booking_seconds: float = 600.0
    """How long provisioned room waits for its pods."""
    durability: Literal["full", "normal"] = "full"
    """Whether an acknowledged write survives a power loss, or only the end of the process."""
    supply: Literal["fit", "aggregate"] = "fit"
    policy: str = "priority"
    preemption: bool = False
    gangs: dict[str, str] = {}
    """Further settings of the controller that starts gangs, by name."""


def parse_node(text: str, runtime: RuntimeName = "process", taken: int = 0) -> list[NodeShape]:
    """`cpu=8,memory=8Gi,nvidia.com/gpu=1,count=2,name=gpu,labels=a=b;c=d,taints=k=v:NoSchedule`."""
    fields = _fields(text)
    count = _whole(fields.pop("count", "1"), "count")
    name, labels, taints = fields.pop("name", ""), _labels(fields.pop("labels", "")), _taints(fields.pop("taints", ""))
    chosen: RuntimeName = _one_of(fields.pop("runtime", runtime), "runtime", ("process", "simulated"))
    capacity = _capacity(fields, "count, name, labels, taints and runtime")
    if name and (wrong := check_subdomain(name)):
        raise BadInput(f"name {name!r}: {wrong}")
    names = (
        [name] if name and count == 1 else [f"{name or 'node'}-{taken * (not name) + index}" for index in range(count)]
    )
    return [NodeShape(name=one, capacity=capacity, labels=labels, taints=taints, runtime=chosen) for one in names]


def parse_pool(text: str, runtime: RuntimeName = "process") -> Pool:
    """`name=gpu,cpu=4,memory=16Gi,nvidia.com/gpu=1,min=0,max=4,delay=2s`."""
    fields = _fields(text)
    name = fields.pop("name", "")
    if not name:
        raise BadInput("a pool needs a name; write name=gpu,cpu=4,memory=16Gi,max=4")
    if wrong := check_subdomain(name):
        raise BadInput(f"name {name!r}: {wrong}")
    least, most = _whole(fields.pop("min", "0"), "min", 0), _whole(fields.pop("max", "10"), "max", 0)
    if most < least:
        raise BadInput(f"max={most} is below min={least}")
    delay = parse_duration(fields.pop("delay", "2s"), "delay")
    labels, taints = _labels(fields.pop("labels", "")), _taints(fields.pop("taints", ""))
    chosen: RuntimeName = _one_of(fields.pop("runtime", runtime), "runtime", ("process", "simulated"))
    return Pool(
        name=name,
        capacity=_capacity(fields, "name, min, max, delay, labels, taints and runtime"),
        labels=labels,
        taints=taints,
        least=least,
        most=most,
        delay=delay,
        runtime=chosen,
    )


def parse_base_load(text: str) -> dict[str, str]:
    """`cpu=3050m,memory=2918400Ki,limits.cpu=2200m,limits.memory=3020800Ki`."""
    fields = _fields(text)
    for name, amount in fields.items():
        _check_resource(name.removeprefix("limits."), amount, "limits.*")
    return fields


def parse_duration(text: str, name: str = "duration") -> float:
    """`2s`, `500ms`, `1m`, or plain seconds."""
    for unit in sorted(_TIME_UNITS, key=len, reverse=True):
        if text.endswith(unit) and _is_number(text[: -len(unit)]):
            return float(text[: -len(unit)]) * _TIME_UNITS[unit]
    if _is_number(text):
        return float(text)
    raise BadInput(f"{name} {text!r} is not a duration; write 2s, 500ms or 1m")


def check_names(settings: LocalSettings) -> LocalSettings:
    """No two nodes and no two pools of one name."""
    for what, names in (
        ("node", [shape.name for shape in settings.nodes]),
        ("pool", [pool.name for pool in settings.pools]),
    ):
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise BadInput(f"two {what}s are called {twice}; give each a name of its own with name=…")
    return settings


def read_file(path: Path) -> LocalSettings:
    """A configuration file. Nodes and pools are written as the flags are, or as mappings of the same fields."""
    try:
        found = yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = " ".join(str(error).split()).replace(' in "<unicode string>",', ": see")
        raise BadInput(f"{path} is not YAML: {where}") from None
    if not isinstance(found, dict):
        raise BadInput(f"{path} must hold a mapping with {', '.join(sorted(FILE_FIELDS))}")
    unknown = {str(name) for name in found} - FILE_FIELDS
    if unknown:
        raise BadInput(f"{path}: unknown field {min(unknown)!r}; there are {', '.join(sorted(FILE_FIELDS))}")
    try:
        return check_names(_settings(found))
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def _settings(found: dict[str, Any]) -> LocalSettings:
    runtime: RuntimeName = _one_of(found.get("runtime") or "process", "runtime", ("process", "simulated"))
    nodes: list[NodeShape] = []
    for place, entry in _entries(found, "nodes"):
        nodes += _at(place, parse_node, entry, runtime, len(nodes))
    preemption = found.get("preemption") or False
    if not isinstance(preemption, bool):
        raise BadInput(f"preemption is {preemption!r}; write true or false")
    return LocalSettings(
        nodes=tuple(nodes),
        pools=tuple(_at(place, parse_pool, entry, runtime) for place, entry in _entries(found, "pools")),
        base_load=_at("baseLoad", lambda: parse_base_load(_as_flag(found["baseLoad"])))
        if found.get("baseLoad")
        else {},
        images=dict(_at("images", parse_mapping, f"{name}={to}") for name, to in _mapping(found, "images").items()),
        runtime=runtime,
        sandbox=_one_of(found.get("sandbox") or "auto", "sandbox", SANDBOXES),
        idle_seconds=_seconds(found, "idleSeconds"),
        booking_seconds=_seconds(found, "bookingSeconds"),
        durability=_one_of(found.get("durability") or "full", "durability", ("full", "normal")),
        supply=_one_of(found.get("supply") or "fit", "supply", ("fit", "aggregate")),
        policy=str(found.get("policy") or "priority"),
        preemption=preemption,
        gangs=_mapping(found, "gangs"),
    )


def _at(place: str, read: Callable[..., T], *arguments: Any) -> T:
    """What `read` makes of it; what it refuses is refused with its place in the file."""
    try:
        return read(*arguments)
    except BadInput as error:
        raise BadInput(f"{place}: {error}") from None


def _entries(found: dict[str, Any], name: str) -> list[tuple[str, str]]:
    entries = found.get(name) or []
    if not isinstance(entries, list):
        raise BadInput(f"{name} must be a list, such as [{{cpu: 4, memory: 8Gi}}]")
    return [(f"{name}[{index}]", _at(f"{name}[{index}]", _as_flag, entry)) for index, entry in enumerate(entries)]


def _mapping(found: dict[str, Any], name: str) -> dict[str, str]:
    value = found.get(name) or {}
    if not isinstance(value, dict):
        raise BadInput(f"{name} must be a mapping of names to values")
    return {str(key): _written(text) for key, text in value.items()}


def _seconds(found: dict[str, Any], name: str) -> float:
    value = found.get(name, 600.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise BadInput(f"{name} is {value!r}; write a number of seconds")
    return float(value)


def _as_flag(entry: Any) -> str:
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, dict):
        raise BadInput(f"{entry!r} must be text such as cpu=4,memory=8Gi or a mapping of the same fields")
    parts = []
    for name, value in entry.items():
        if name == "labels" and isinstance(value, dict):
            value = ";".join(f"{key}={_written(text)}" for key, text in value.items())
        elif name == "taints" and isinstance(value, list):
            value = ";".join(_taint_flag(taint) for taint in value)
        elif isinstance(value, dict | list):
            raise BadInput(f"{name} must be a plain value, not {value!r}")
        parts.append(f"{name}={_written(value)}")
    return ",".join(parts)


def _taint_flag(taint: Any) -> str:
    """As a flag writes it, or as Kubernetes does."""
    if isinstance(taint, str):
        return taint
    if not isinstance(taint, dict) or set(taint) - {"key", "value", "effect"} or not {"key", "effect"} <= set(taint):
        raise BadInput(f"taint {taint!r} must read key=value:NoSchedule or {{key: k, value: v, effect: NoSchedule}}")
    return f"{taint['key']}={_written(taint.get('value') or '')}:{taint['effect']}"


def _written(value: Any) -> str:
    """YAML's true is what a label calls true."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, sign, value = part.strip().partition("=")
        if not sign or not name or not value:
            raise BadInput(f"{part!r} must read name=value, as in cpu=4,memory=8Gi")
        if name in fields:
            raise BadInput(f"{name} is given twice")
        fields[name] = value
    return fields


def _capacity(fields: dict[str, str], others: str) -> dict[str, str]:
    for name, amount in fields.items():
        _check_resource(name, amount, others)
    for name in ("cpu", "memory"):
        if name not in fields:
            raise BadInput(f"{name} is missing; write cpu=4,memory=8Gi")
    return fields


def _check_resource(name: str, amount: str, others: str) -> None:
    """Resources of Kubernetes' own have plain names, everyone else's a domain: whatever is neither was misspelt."""
    known = name in _PLAIN_RESOURCES or name.startswith("hugepages-")
    if not known and "/" not in name:
        raise BadInput(
            f"there is no field {name!r}: resources are {', '.join(sorted(_PLAIN_RESOURCES))}, hugepages-2Mi and the "
            f"like, or have a domain, such as nvidia.com/gpu; other fields are {others}"
        )
    if wrong := check_qualified(name):
        raise BadInput(f"resource {name!r}: {wrong}")
    try:
        value = quantity.amount(name, amount)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None
    if value < 0:
        raise BadInput(f"{name} is negative")


def _labels(text: str) -> dict[str, str]:
    found = {}
    for part in filter(None, text.split(";")):
        key, sign, value = part.partition("=")
        if not sign:
            raise BadInput(f"label {part!r} must read key=value")
        if wrong := check_qualified(key) or check_label_value(value):
            raise BadInput(f"label {part!r}: {wrong}")
        found[key] = value
    return found


def _taints(text: str) -> tuple[dict[str, str], ...]:
    found = []
    for part in filter(None, text.split(";")):
        pair, sign, effect = part.rpartition(":")
        if not sign or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise BadInput(f"taint {part!r} must read key=value:NoSchedule")
        key, _, value = pair.partition("=")
        if wrong := check_qualified(key) or check_label_value(value):
            raise BadInput(f"taint {part!r}: {wrong}")
        found.append({"key": key, "effect": effect, **({"value": value} if value else {})})
    return tuple(found)


def _one_of(text: Any, name: str, allowed: tuple[_Choice, ...]) -> _Choice:
    for one in allowed:
        if text == one:
            return one
    raise BadInput(f"{name} is {text!r}; choose from {', '.join(allowed)}")


def _whole(text: str, name: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10) or int(text) < least:
        raise BadInput(f"{name} is {text!r}; write a whole number from {least}")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.replace(".", "", 1).isdecimal()
