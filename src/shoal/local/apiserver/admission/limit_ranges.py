"""LimitRange, as far as pods at creation are concerned: what it fills in, and what it refuses.

Admission calls `fill` while the pod may still change and `check` when it no longer does. Pure: both get the stored
limit ranges of the pod's namespace.
"""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.api.quantity import NANO, Quantity
from shoal.local.apiserver.admission.limits import amounts_of, containers_of, usage_of
from shoal.local.apiserver.primitives.status import forbidden
from shoal.local.apiserver.requests.call import decoded
from shoal.local.apiserver.storage.collection import StoredObject

ANNOTATION = "kubernetes.io/limit-ranger"


def fill(pod: Json, ranges: list[StoredObject]) -> None:
    """Missing limits from `default`, missing requests from `defaultRequest`; the pod is told what was set."""
    for record in ranges:
        requests: Json = {}
        limits: Json = {}
        for item in _items(record):
            if item.get("type") == "Container":
                requests.update(item.get("defaultRequest") or {})
                limits.update(item.get("default") or {})
        told: list[str] = []
        for part, words in (("containers", "container"), ("initContainers", "init container")):
            for container in containers_of(pod, part):
                told += _complete(container, {"requests": requests, "limits": limits}, words)
        if told:
            annotations = pod["metadata"].setdefault("annotations", {})
            annotations[ANNOTATION] = f"LimitRanger plugin set: {'; '.join(told)}"


def _complete(container: Json, wanted: Json, words: str) -> list[str]:
    resources = container.get("resources")
    if type(resources) is not dict:
        resources = container["resources"] = {}
    told = []
    for part, word in (("requests", "request"), ("limits", "limit")):
        present = resources.get(part)
        present = present if type(present) is dict else {}
        added = {name: text for name, text in wanted[part].items() if name not in present}
        if added:
            resources[part] = {**present, **added}
            told.append(f"{', '.join(sorted(added))} {word} for {words} {container.get('name')}")
    return told


def check(pod: Json, ranges: list[StoredObject]) -> None:
    """Refuse what is outside the bounds of a container or of the whole pod."""
    for record in ranges:
        faults: list[str] = []
        for item in _items(record):
            if item.get("type") == "Container":
                for container in (*containers_of(pod), *containers_of(pod, "initContainers")):
                    resources = container.get("resources") or {}
                    faults += _faults(
                        item, amounts_of(resources.get("requests")), amounts_of(resources.get("limits")), "Container"
                    )
            elif item.get("type") == "Pod":
                usage = usage_of(pod)
                faults += _faults(item, _part(usage, "requests."), _part(usage, "limits."), "Pod")
        if faults:
            words = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
            raise forbidden("", "pods", pod["metadata"].get("name", ""), words)


def _items(record: StoredObject) -> list[Json]:
    return [item for item in (decoded(record).get("spec") or {}).get("limits") or () if type(item) is dict]


def _part(usage: dict[str, int], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): value for name, value in usage.items() if name.startswith(prefix)}


def _faults(item: Json, requests: dict[str, int], limits: dict[str, int], where: str) -> list[str]:
    found = []
    for name, least in amounts_of(item.get("min")).items():
        words = f"minimum {name} usage per {where} is {item['min'][name]}"
        if name not in requests:
            found.append(f"{words}.  No request is specified")
        elif requests[name] < least:
            found.append(f"{words}, but request is {_shown(name, requests[name])}")
        elif limits.get(name, least) < least:
            found.append(f"{words}, but limit is {_shown(name, limits[name])}")
    for name, most in amounts_of(item.get("max")).items():
        words = f"maximum {name} usage per {where} is {item['max'][name]}"
        if name not in limits:
            found.append(f"{words}.  No limit is specified")
        elif limits[name] > most:
            found.append(f"{words}, but limit is {_shown(name, limits[name])}")
        elif requests.get(name, most) > most:
            found.append(f"{words}, but request is {_shown(name, requests[name])}")
    for name, ratio in amounts_of(item.get("maxLimitRequestRatio")).items():
        words = f"{name} max limit to request ratio per {where} is {item['maxLimitRequestRatio'][name]}, but"
        if not requests.get(name):
            found.append(f"{words} no request is specified or request is 0")
        elif not limits.get(name):
            found.append(f"{words} no limit is specified or limit is 0")
        elif limits[name] * NANO > ratio * requests[name]:
            found.append(f"{words} provided ratio is {limits[name] / requests[name]:f}")
    return found


def _shown(name: str, value: int) -> str:
    return str(Quantity(value, "binary" if "memory" in name or "storage" in name else "decimal"))
