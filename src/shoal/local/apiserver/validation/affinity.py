"""Where a pod wants to be, and beside which pods: affinity and spread of a pod's spec, judged as Kubernetes judges
them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.local.apiserver.primitives import names
from shoal.local.apiserver.primitives.field_errors import InvalidField, forbidden, invalid, not_supported, required

Json = dict[str, Any]

_REQUIRED, _PREFERRED = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))


def validate_affinity(affinity: Json, path: str) -> list[InvalidField]:
    errors: list[InvalidField] = []
    if node := affinity.get("nodeAffinity"):
        errors += _node_affinity(node, f"{path}.nodeAffinity")
    for name in ("podAffinity", "podAntiAffinity"):
        part = affinity.get(name) or {}
        for index, term in enumerate(part.get(_REQUIRED) or ()):
            errors += _pod_term(term, f"{path}.{name}.{_REQUIRED}[{index}]")
        for index, weighted in enumerate(part.get(_PREFERRED) or ()):
            where = f"{path}.{name}.{_PREFERRED}[{index}]"
            errors += _weight(weighted, where)
            errors += _pod_term(weighted.get("podAffinityTerm") or {}, f"{where}.podAffinityTerm")
    return errors


def _node_affinity(part: Json, path: str) -> list[InvalidField]:
    errors: list[InvalidField] = []
    wanted = part.get(_REQUIRED)
    if wanted is not None:
        terms = wanted.get("nodeSelectorTerms") or []
        where = f"{path}.{_REQUIRED}.nodeSelectorTerms"
        if not terms:
            errors.append(required(where, "must have at least one node selector term"))
        for index, term in enumerate(terms):
            errors += _node_term(term, f"{where}[{index}]")
    for index, weighted in enumerate(part.get(_PREFERRED) or ()):
        where = f"{path}.{_PREFERRED}[{index}]"
        errors += _weight(weighted, where)
        errors += _node_term(weighted.get("preference") or {}, f"{where}.preference")
    return errors


def _node_term(term: Json, path: str) -> Iterator[InvalidField]:
    for index, item in enumerate(term.get("matchExpressions") or ()):
        yield from _expression(item, f"{path}.matchExpressions[{index}]", compares=True)


def _expression(item: Json, path: str, *, compares: bool = False) -> Iterator[InvalidField]:
    """One requirement of a selector; those of nodes may compare numbers, too."""
    operator, values, key = item.get("operator"), item.get("values") or [], item.get("key") or ""
    if operator in ("In", "NotIn"):
        if not values:
            yield required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            yield forbidden(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
    elif compares and operator in ("Gt", "Lt"):
        if len(values) != 1:
            yield required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    else:
        yield invalid(f"{path}.operator", operator or "", "not a valid selector operator")
    yield from (invalid(f"{path}.key", key, complaint) for complaint in names.qualified_name(key))


def _pod_term(term: Json, path: str) -> Iterator[InvalidField]:
    key = term.get("topologyKey") or ""
    if not key:
        yield required(f"{path}.topologyKey", "can not be empty")
    yield from (invalid(f"{path}.topologyKey", key, complaint) for complaint in names.qualified_name(key))
    for name in ("labelSelector", "namespaceSelector"):
        if term.get(name):
            yield from selector_errors(term[name], f"{path}.{name}")


def _weight(weighted: Json, path: str) -> list[InvalidField]:
    weight = weighted.get("weight") or 0
    return [] if 1 <= weight <= 100 else [invalid(f"{path}.weight", weight, "must be in the range 1-100")]


def validate_spread(constraints: list[Json], path: str) -> Iterator[InvalidField]:
    for index, one in enumerate(constraints):
        where = f"{path}[{index}]"
        if (one.get("maxSkew") or 0) <= 0:
            yield invalid(f"{where}.maxSkew", one.get("maxSkew") or 0, "must be greater than zero")
        if not one.get("topologyKey"):
            yield required(f"{where}.topologyKey", "can not be empty")
        action = one.get("whenUnsatisfiable")
        if action not in ("DoNotSchedule", "ScheduleAnyway"):
            yield not_supported(f"{where}.whenUnsatisfiable", action or "", ["DoNotSchedule", "ScheduleAnyway"])
        if one.get("labelSelector"):
            yield from selector_errors(one["labelSelector"], f"{where}.labelSelector")


def selector_errors(found: Json, path: str) -> list[InvalidField]:
    """What is wrong with a label selector."""
    errors: list[InvalidField] = []
    for key, value in (found.get("matchLabels") or {}).items():
        errors += [invalid(f"{path}.matchLabels", key, complaint) for complaint in names.qualified_name(key)]
        errors += [invalid(f"{path}.matchLabels", value, complaint) for complaint in names.label_value(value)]
    for index, item in enumerate(found.get("matchExpressions") or ()):
        errors += _expression(item, f"{path}.matchExpressions[{index}]")
    return errors
