"""Labels, taints and terms: does this one match?

Called by the fit code for nodes and pods, and by the dialects for flavors and namespaces. Matching follows Kubernetes
exactly. Terms are read once with `parse_…`, which raises BadInput naming the field at fault; matching never raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from shoal.api.labels import (
    NODE_DISK_PRESSURE,
    NODE_MEMORY_PRESSURE,
    NODE_NOT_READY,
    NODE_PID_PRESSURE,
    NODE_UNREACHABLE,
    NODE_UNSCHEDULABLE,
)
from shoal.engine.model import Taint, Toleration
from shoal.errors import BadInput

BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
UNSCHEDULABLE = Taint(NODE_UNSCHEDULABLE, "", "NoSchedule")
NOT_READY = Taint(NODE_NOT_READY, "", "NoSchedule")
STANDARD_TAINTS = frozenset(
    {
        "node-role.kubernetes.io/control-plane",
        "node-role.kubernetes.io/master",
        NODE_NOT_READY,
        NODE_UNREACHABLE,
        NODE_UNSCHEDULABLE,
        "node.kubernetes.io/network-unavailable",
        NODE_DISK_PRESSURE,
        NODE_MEMORY_PRESSURE,
        NODE_PID_PRESSURE,
        "node.cloudprovider.kubernetes.io/uninitialized",
    }
)
"""Taints that ordinary work does not tolerate: even pods of which we know nothing but their amounts keep off them."""

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


class Requirement(msgspec.Struct, frozen=True):
    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return self.accepts(labels.get(self.key))

    def accepts(self, value: str | None) -> bool:
        """Does a label with this value (None: absent) satisfy the requirement? An absent label satisfies NotIn."""
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case _:
                return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        number, limit = _integer(value), _integer(self.values[0] if self.values else None)
        if number is None or limit is None:
            return False
        return number > limit if self.operator == "Gt" else number < limit


class Selector(msgspec.Struct, frozen=True):
    """Requirements that must all hold; with none of them everything matches. `nothing` is a null selector."""

    requirements: tuple[Requirement, ...] = ()
    nothing: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        return not self.nothing and all(requirement.matches(labels) for requirement in self.requirements)


class NodeTerm(msgspec.Struct, frozen=True):
    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        if not self.labels and not self.fields:
            return False  # as Kubernetes: an empty term matches no node
        return all(requirement.matches(labels) for requirement in self.labels) and all(
            requirement.accepts(name) for requirement in self.fields
        )


class PodTerm(msgspec.Struct, frozen=True):
    """One required pod (anti-)affinity term. The caller of `covers` knows the labels of the namespace."""

    selector: Selector
    topology_key: str
    namespaces: tuple[str, ...] = ()
    namespace_selector: Selector | None = None
    own_namespace: str = ""

    def covers(self, namespace: str, namespace_labels: Mapping[str, str]) -> bool:
        if namespace in self.namespaces:
            return True
        if self.namespace_selector is not None:
            return self.namespace_selector.matches(namespace_labels)
        return not self.namespaces and namespace == self.own_namespace


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def untolerated(tolerations: Iterable[Toleration], taints: Iterable[Taint], opaque: bool = False) -> Taint | None:
    """The first taint that keeps such a pod off the node, or None. `opaque` pods may tolerate any custom taint."""
    known = tuple(tolerations)
    for taint in taints:
        if taint.effect not in BLOCKING_EFFECTS or (opaque and taint.key not in STANDARD_TAINTS):
            continue
        if not tolerates(known, taint):
            return taint
    return None


def parse_selector(stanza: Any, where: str) -> Selector:
    """A LabelSelector. Null selects nothing, an empty one everything, as Kubernetes."""
    if stanza is None:
        return Selector(nothing=True)
    stanza = _mapping(stanza, where)
    wanted = [
        Requirement(key, "In", (str(value),))
        for key, value in sorted(_mapping(stanza.get("matchLabels") or {}, where).items())
    ]
    wanted += _requirements(stanza.get("matchExpressions"), f"{where}.matchExpressions")
    return Selector(tuple(wanted))


def parse_node_terms(affinity: Mapping[str, Any]) -> tuple[NodeTerm, ...] | None:
    """The required node affinity of a pod: terms of which one must match, or None when nothing is required."""
    if affinity == {}:
        return None
    where = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    node = _mapping(_mapping(affinity, "affinity").get("nodeAffinity") or {}, "affinity.nodeAffinity")
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return None
    terms = _list(_mapping(required, where).get("nodeSelectorTerms"), f"{where}.nodeSelectorTerms")
    return tuple(
        NodeTerm(
            tuple(_requirements(_mapping(term, where).get("matchExpressions"), f"{where}.matchExpressions")),
            tuple(_requirements(_mapping(term, where).get("matchFields"), f"{where}.matchFields")),
        )
        for term in terms
    )


def parse_pod_terms(
    affinity: Mapping[str, Any], stanza: str, namespace: str, labels: Mapping[str, str] | None = None
) -> tuple[PodTerm, ...]:
    """The required terms of `podAffinity` or `podAntiAffinity`. `labels` are the pod's own, for `matchLabelKeys`."""
    where = f"affinity.{stanza}.requiredDuringSchedulingIgnoredDuringExecution"
    block = _mapping(_mapping(affinity, "affinity").get(stanza) or {}, f"affinity.{stanza}")
    found = []
    for term in _list(block.get("requiredDuringSchedulingIgnoredDuringExecution"), where):
        term = _mapping(term, where)
        topology_key = term.get("topologyKey")
        if not isinstance(topology_key, str) or not topology_key:
            raise BadInput(f"{where}: a term needs a topologyKey")
        namespace_selector = term.get("namespaceSelector")
        selector = _with_label_keys(parse_selector(term.get("labelSelector"), where), term, labels or {}, where)
        found.append(
            PodTerm(
                selector,
                topology_key,
                tuple(str(name) for name in _list(term.get("namespaces"), f"{where}.namespaces")),
                None if namespace_selector is None else parse_selector(namespace_selector, where),
                namespace,
            )
        )
    return tuple(found)


def _with_label_keys(selector: Selector, term: Mapping[str, Any], labels: Mapping[str, str], where: str) -> Selector:
    """`matchLabelKeys` and `mismatchLabelKeys` add the pod's own values to the selector."""
    extra = []
    for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        for key in _list(term.get(field), f"{where}.{field}"):
            if key in labels:
                extra.append(Requirement(key, operator, (labels[key],)))
    return Selector(selector.requirements + tuple(extra), selector.nothing) if extra else selector


def _requirements(stanza: Any, where: str) -> list[Requirement]:
    found = []
    for entry in _list(stanza, where):
        entry = _mapping(entry, where)
        key, operator = entry.get("key"), entry.get("operator")
        if not isinstance(key, str) or operator not in _OPERATORS:
            raise BadInput(f"{where}: a requirement needs a key and an operator of {', '.join(_OPERATORS)}")
        values = tuple(str(value) for value in _list(entry.get("values"), f"{where}.values"))
        found.append(Requirement(key, operator, values))
    return found


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadInput(f"{where} must be an object")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        raise BadInput(f"{where} must be a list")
    return list(value)


def _integer(text: str | None) -> int | None:
    if text is None or len(text) > 20:
        return None
    try:
        return int(text)
    except ValueError:
        return None
