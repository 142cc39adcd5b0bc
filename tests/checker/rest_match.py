"""Do pods and nodes, or pods and flavors, go together? Taints, selectors and required node affinity, plainly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]
HARD = ("NoSchedule", "NoExecute")


def tolerates(tolerations: Iterable[Json], taint: Json) -> bool:
    return any(_covers(one, taint) for one in tolerations)


def _covers(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    same_value = (toleration.get("value") or "") == (taint.get("value") or "")
    return toleration.get("key") == taint.get("key") and same_value


def untolerated(tolerations: list[Json], taints: Iterable[Json]) -> bool:
    return any(one.get("effect") in HARD and not tolerates(tolerations, one) for one in taints)


def matches_labels(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool | None:
    """A label selector as of namespaces; none selects nothing. None: it says what this program cannot read."""
    if selector is None:
        return False
    if any(labels.get(name) != value for name, value in (selector.get("matchLabels") or {}).items()):
        return False
    found = [_requirement(one, labels) for one in selector.get("matchExpressions") or ()]
    return False if False in found else None if None in found else True


def fits_node(spec: Json, node: Json) -> bool | None:
    """May the pod go there, whatever is free? None: it asks for what this program does not judge."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return False
    own = node.get("spec") or {}
    tolerations = list(spec.get("tolerations") or ())
    cordoned = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    if own.get("unschedulable") and not tolerates(tolerations, cordoned):
        return False
    if untolerated(tolerations, own.get("taints") or ()):
        return False
    return _required(spec, labels, node["metadata"]["name"])


def fits_flavor(spec: Json, flavor: Json) -> bool | None:
    """As Kueue: selectors count only for the keys that the flavor names."""
    own = flavor.get("spec") or {}
    labels = own.get("nodeLabels") or {}
    tolerations = [*(spec.get("tolerations") or ()), *(own.get("tolerations") or ())]
    if untolerated(tolerations, own.get("nodeTaints") or ()):
        return False
    if any(name in labels and labels[name] != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return False
    terms = _terms(spec)
    if not terms:
        return True
    verdicts = []
    for term in terms:
        asked = [one for one in term.get("matchExpressions") or () if one.get("key") in labels]
        verdicts.append(_all(_requirement(one, labels) for one in asked))
    return True if True in verdicts else None if None in verdicts else False


def _terms(spec: Json) -> list[Json]:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or []


def _required(spec: Json, labels: Mapping[str, str], name: str) -> bool | None:
    affinity = spec.get("affinity") or {}
    if affinity.get("podAffinity") or affinity.get("podAntiAffinity") or spec.get("topologySpreadConstraints"):
        return None
    if spec.get("resourceClaims") or spec.get("schedulingGates") or _has_host_ports(spec):
        return None
    terms = _terms(spec)
    if not terms:
        return True
    verdicts = []
    for term in terms:
        asked = [_requirement(one, labels) for one in term.get("matchExpressions") or ()]
        fields = [_requirement(one, {"metadata.name": name}) for one in term.get("matchFields") or ()]
        verdicts.append(_all([*asked, *fields]) if asked or fields else False)
    return True if True in verdicts else None if None in verdicts else False


def _has_host_ports(spec: Json) -> bool:
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    return any(port.get("hostPort") for one in containers for port in one.get("ports") or ())


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    found = list(verdicts)
    return False if False in found else None if None in found else True


def _requirement(one: Json, labels: Mapping[str, str]) -> bool | None:
    key, values = str(one.get("key")), one.get("values") or ()
    match one.get("operator"):
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case _:
            return None
