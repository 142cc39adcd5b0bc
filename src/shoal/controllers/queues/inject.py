"""What an admission writes into pod templates, and how it is taken out again.

As Kueue: additions only. A key that is there with another value is a contradiction that no retry resolves. Pure.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.api.meta import Json
from shoal.errors import ShoalError


class InjectedInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an admission adds to the pods of one pod set."""

    name: str
    count: int
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: tuple[Json, ...] = ()
    scheduling_gates: tuple[str, ...] = ()


class StartError(ShoalError):
    """The admission and the job contradict each other: it can never start."""


def merged(template: Json, info: InjectedInfo) -> Json:
    """The template with all that the info adds."""
    made: Json = copy.deepcopy(template)
    where = f"pod set {info.name}"
    metadata = made["metadata"] = dict(made.get("metadata") or {})
    _add(metadata, "labels", info.labels, where)
    _add(metadata, "annotations", info.annotations, where)
    spec = made.setdefault("spec", {})
    _add(spec, "nodeSelector", info.node_selector, where)
    extra = [one for one in info.tolerations if one not in (spec.get("tolerations") or ())]
    if extra:
        spec["tolerations"] = [*(spec.get("tolerations") or ()), *extra]
    held = [one.get("name") for one in spec.get("schedulingGates") or ()]
    gates = [{"name": name} for name in info.scheduling_gates if name not in held]
    if gates:
        spec["schedulingGates"] = [*(spec.get("schedulingGates") or ()), *gates]
    return made


def restored(template: Json, recorded: Json) -> Json:
    """The template with labels, annotations, node selector, tolerations and gates as the Workload recorded them."""
    made: Json = copy.deepcopy(template)
    before = recorded.get("metadata") or {}
    metadata = dict(made.get("metadata") or {})
    for name in ("labels", "annotations"):
        _put(metadata, name, before.get(name))
    _put(made, "metadata", metadata)
    spec = made.setdefault("spec", {})
    for name in ("nodeSelector", "tolerations", "schedulingGates"):
        _put(spec, name, (recorded.get("spec") or {}).get(name))
    return made


def _add(holder: Json, name: str, extra: Mapping[str, str], where: str) -> None:
    if not extra:
        return
    found: dict[str, Any] = dict(holder.get(name) or {})
    for key, value in extra.items():
        if found.get(key, value) != value:
            raise StartError(
                f"{where}: {name} {key} is {found[key]!r} in the template and would become {value!r};"
                " remove one of the two"
            )
        found[key] = value
    holder[name] = found


def _put(holder: Json, name: str, value: Any) -> None:
    if value:
        holder[name] = copy.deepcopy(value)
    else:
        holder.pop(name, None)
