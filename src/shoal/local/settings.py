"""What a user chooses for a one-machine cluster: nodes, pools, load, images. One typed object, read once.

Flags and the configuration file say the same things; a bad one is refused with the words that were written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from shoal.api import quantity
from shoal.errors import BadInput
from shoal.local.agent.nodes import NodeShape, RuntimeName

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


_FILE_FIELDS = {
    *("nodes", "pools", "baseLoad", "images", "runtime", "sandbox", "idleSeconds", "bookingSeconds"),
    *("supply", "policy", "preemption", "gangs"),
}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`nodes` empty means one node of this machine's own size."""

    nodes: tuple[NodeShape, ...] = ()
    pools: tuple[Pool, ...] = ()
    base_load: dict[str, str] = {}
    images: dict[str, str] = {}
    runtime: RuntimeName = "process"
    sandbox: str = "auto"
    idle_seconds: float = 600.0
    """After how long an empty node of a pool goes away."""
    booking_seconds: float = 600.0
    """How long provisioned room waits for its pods."""
    supply: Literal["fit", "aggregate"] = "fit"
    policy: str = "priority"
    preemption: bool = False
    gangs: dict[str, str] = {}
    """Further settings of the controller that starts gangs, by name."""


def parse_node(text: str, runtime: RuntimeName = "process", taken: int = 0) -> list[NodeShape]:
    """`cpu=8,memory=8Gi,nvidia.com/gpu=1,count=2,name=gpu,labels=a=b;c=d,taints=k=v:NoSchedule`."""
    fields = _fields(text, "node")
    count = _whole(fields.pop("count", "1"), "count", text)
    name, labels, taints = fields.pop("name", ""), _labels(fields.pop("labels", "")), _taints(fields.pop("taints", ""))
    chosen = _runtime(fields.pop("runtime", runtime), text)
    capacity = _capacity(fields, text)
    names = (
        [name] if name and count == 1 else [f"{name or 'node'}-{taken * (not name) + index}" for index in range(count)]
    )
    return [NodeShape(name=one, capacity=capacity, labels=labels, taints=taints, runtime=chosen) for one in names]


def parse_pool(text: str, runtime: RuntimeName = "process") -> Pool:
    """`name=gpu,cpu=4,memory=16Gi,nvidia.com/gpu=1,min=0,max=4,delay=2s`."""
    fields = _fields(text, "pool")
    name = fields.pop("name", "")
    if not name:
        raise BadInput(f"pool {text!r} has no name; write name=..., cpu=..., memory=..., max=...")
    least, most = _whole(fields.pop("min", "0"), "min", text, 0), _whole(fields.pop("max", "10"), "max", text, 0)
    if most < least:
        raise BadInput(f"pool {text!r}: max is below min")
    delay = parse_duration(fields.pop("delay", "2s"))
    labels, taints = _labels(fields.pop("labels", "")), _taints(fields.pop("taints", ""))
    chosen = _runtime(fields.pop("runtime", runtime), text)
    return Pool(
        name=name,
        capacity=_capacity(fields, text),
        labels=labels,
        taints=taints,
        least=least,
        most=most,
        delay=delay,
        runtime=chosen,
    )


def parse_base_load(text: str) -> dict[str, str]:
    """`cpu=3050m,memory=2918400Ki,limits.cpu=2200m,limits.memory=3020800Ki`."""
    fields = _fields(text, "base load")
    for name, amount in fields.items():
        quantity.amount(name.removeprefix("limits."), amount)
    return fields


def parse_duration(text: str) -> float:
    """`2s`, `500ms`, `1m`, or plain seconds."""
    for unit in sorted(_TIME_UNITS, key=len, reverse=True):
        if text.endswith(unit) and text[: -len(unit)].replace(".", "", 1).isdigit():
            return float(text[: -len(unit)]) * _TIME_UNITS[unit]
    if text.replace(".", "", 1).isdigit():
        return float(text)
    raise BadInput(f"{text!r} is not a duration; write 2s, 500ms or 1m")


def read_file(path: Path) -> Settings:
    """A configuration file. Nodes and pools are written as the flags are, or as mappings of the same fields."""
    try:
        found = yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise BadInput(f"{path} is not YAML: {error}") from error
    if not isinstance(found, dict):
        raise BadInput(f"{path} must hold a mapping with nodes, pools, baseLoad, images, runtime")
    unknown = set(found) - _FILE_FIELDS
    if unknown:
        raise BadInput(f"{path}: unknown field {sorted(unknown)[0]!r}")
    runtime = _runtime(str(found.get("runtime") or "process"), str(path))
    nodes: list[NodeShape] = []
    for entry in found.get("nodes") or []:
        nodes += parse_node(_as_flag(entry), runtime, len(nodes))
    return Settings(
        nodes=tuple(nodes),
        pools=tuple(parse_pool(_as_flag(entry), runtime) for entry in found.get("pools") or []),
        base_load=parse_base_load(_as_flag(found["baseLoad"])) if found.get("baseLoad") else {},
        images={str(name): str(target) for name, target in (found.get("images") or {}).items()},
        runtime=runtime,
        sandbox=str(found.get("sandbox") or "auto"),
        idle_seconds=_seconds(found, "idleSeconds", path),
        booking_seconds=_seconds(found, "bookingSeconds", path),
        supply=_supply(str(found.get("supply") or "fit"), path),
        policy=str(found.get("policy") or "priority"),
        preemption=bool(found.get("preemption")),
        gangs={str(name): str(value) for name, value in (found.get("gangs") or {}).items()},
    )


def _supply(text: str, path: Path) -> Literal["fit", "aggregate"]:
    if text == "fit" or text == "aggregate":
        return text
    raise BadInput(f"{path}: supply is {text!r}; choose fit or aggregate")


def _seconds(found: dict[str, Any], name: str, path: Path) -> float:
    value = found.get(name, 600.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise BadInput(f"{path}: {name} is {value!r}; write a number of seconds")
    return float(value)


def _as_flag(entry: Any) -> str:
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, dict):
        raise BadInput(f"{entry!r} must be text such as cpu=4,memory=8Gi or a mapping of the same fields")
    parts = []
    for name, value in entry.items():
        if name == "labels" and isinstance(value, dict):
            value = ";".join(f"{key}={text}" for key, text in value.items())
        elif name == "taints" and isinstance(value, list):
            value = ";".join(value)
        parts.append(f"{name}={value}")
    return ",".join(parts)


def _fields(text: str, what: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, sign, value = part.strip().partition("=")
        if not sign or not name or not value:
            raise BadInput(f"{what} {text!r}: {part!r} must read name=value")
        if name in fields:
            raise BadInput(f"{what} {text!r}: {name} is given twice")
        fields[name] = value
    return fields


def _capacity(fields: dict[str, str], text: str) -> dict[str, str]:
    for name in ("cpu", "memory"):
        if name not in fields:
            raise BadInput(f"{text!r} names no {name}; write cpu=4,memory=8Gi")
    for name, amount in fields.items():
        if quantity.amount(name, amount) < 0:
            raise BadInput(f"{text!r}: {name} is negative")
    return fields


def _labels(text: str) -> dict[str, str]:
    found = {}
    for part in filter(None, text.split(";")):
        key, sign, value = part.partition("=")
        if not sign:
            raise BadInput(f"label {part!r} must read key=value")
        found[key] = value
    return found


def _taints(text: str) -> tuple[dict[str, str], ...]:
    found = []
    for part in filter(None, text.split(";")):
        pair, sign, effect = part.rpartition(":")
        if not sign or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise BadInput(f"taint {part!r} must read key=value:NoSchedule")
        key, _, value = pair.partition("=")
        found.append({"key": key, "effect": effect, **({"value": value} if value else {})})
    return tuple(found)


def _runtime(text: str, where: str) -> RuntimeName:
    if text not in ("process", "simulated"):
        raise BadInput(f"{where!r}: runtime {text!r} must be process or simulated")
    return text  # type: ignore[return-value]


def _whole(text: str, name: str, where: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise BadInput(f"{where!r}: {name} must be a whole number from {least}")
    return int(text)
