"""The world at one revision: gangs, their pods, the nodes and the quota trees, read from stored objects alone.

It recomputes everything from scratch, by sums over plain dictionaries; no engine, no controller, no cache is asked. The
rules in `gang_rules` walk a history of changes over it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from shoal.api.gang import CREATED_BY, GANG_UID
from shoal.api.quantity import amount
from shoal.errors import BadInput
from tests.checker.preemptors import mark_of

Json = dict[str, Any]
Sums = dict[str, int]

TERMINAL = frozenset({"Completed", "Failed", "Deleted"})
ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Change:
    """One revision: what was there before and after. `at` is 0 where the time is not known."""

    revision: int
    collection: str
    """The plural, such as `pods`."""
    old: Json | None
    new: Json | None
    at: int = 0

    @property
    def obj(self) -> Json:
        found = self.new or self.old
        assert found is not None
        return found


@dataclass(frozen=True)
class Seen:
    """One AppWrapper as stored."""

    obj: Json

    @property
    def uid(self) -> str:
        return str(self.obj["metadata"]["uid"])

    @property
    def name(self) -> str:
        return f"{self.obj['metadata'].get('namespace', '')}/{self.obj['metadata']['name']}"

    @property
    def status(self) -> Json:
        return self.obj.get("status") or {}

    @property
    def labels(self) -> dict[str, str]:
        return self.obj["metadata"].get("labels") or {}

    @property
    def priority(self) -> int:
        return int(self.obj["spec"].get("priority") or 0)

    @property
    def first(self) -> str:
        return str(self.status.get("controllerfirsttimestamp") or "")

    @property
    def is_components(self) -> bool:
        return "components" in self.obj["spec"]

    @property
    def admission(self) -> Json:
        try:
            found = msgspec.json.decode((self.status.get("admission") or "{}").encode())
        except msgspec.DecodeError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def creator(self) -> str:
        """The user that admission recorded as the one who answers for it."""
        stamp = (self.obj["metadata"].get("annotations") or {}).get(CREATED_BY)
        try:
            return str(msgspec.json.decode(stamp.encode())["user"]) if stamp else ""
        except (msgspec.DecodeError, KeyError, TypeError):
            return ""

    @property
    def is_admitted(self) -> bool:
        if self.is_components:
            return self.status.get("phase") in ("Resuming", "Running", "Resetting")
        return bool(self.status.get("canrun"))

    @property
    def is_terminal(self) -> bool:
        return self.status.get("state") in TERMINAL or self.status.get("phase") in ("Succeeded", "Failed")

    @property
    def is_stopping(self) -> bool:
        if self.is_admitted or self.is_terminal:
            return False
        if self.is_components:
            return self.status.get("phase") in ("Suspending", "Terminating")
        return self.status.get("state", "") not in ("", "Pending") or bool(self.admission.get("stopping"))

    @property
    def is_waiting(self) -> bool:
        held = self.is_admitted or self.is_terminal or self.is_stopping or self.obj["spec"].get("suspend")
        return not held and not self.obj["metadata"].get("deletionTimestamp")

    @property
    def charge(self) -> Sums:
        """What its stored admission was given."""
        total: Sums = {}
        for given in (self.admission.get("sets") or {}).values():
            add(total, given[1] if len(given) > 1 else {})
        return total

    @property
    def pods(self) -> list[Sums] | None:
        """One entry per pod it asks for; None where a kind is wrapped whose pods this program cannot read."""
        try:
            return None if self.is_components else self._pods()
        except (BadInput, TypeError, ValueError, AttributeError):
            return None

    def _pods(self) -> list[Sums] | None:
        found: list[Sums] = []
        resources = self.obj["spec"].get("resources") or {}
        if resources.get("Items"):
            return None
        for item in resources.get("GenericItems") or ():
            template = item.get("generictemplate") or {}
            if item.get("custompodresources"):
                for declared in item["custompodresources"]:
                    limits, requests = sums(declared.get("limits")), sums(declared.get("requests"))
                    chosen = {name: requests.get(name) or limits.get(name, 0) for name in {**limits, **requests}}
                    found += [chosen] * int(declared.get("replicas") or 0)
            elif template.get("kind") == "Pod":
                found.append(requests_of(template))
            elif template.get("kind") not in ("ConfigMap", "Secret", "Service"):
                return None
        return found

    @property
    def demand(self) -> Sums | None:
        pods = self.pods
        if pods is None:
            return None
        total: Sums = {}
        for one in pods:
            add(total, one)
        return total

    @property
    def components(self) -> list[tuple[str, str]]:
        """Kind and name of everything it was admitted with."""
        return [(name[1], name[2]) for name in self.admission.get("objects") or ()]


@dataclass(frozen=True)
class Tree:
    """One quota tree: quotas, hard nodes, and each node's parent; the parentless one of the first name is the root."""

    quotas: dict[str, Sums]
    hard: frozenset[str]
    parents: dict[str, str]
    disabled: frozenset[str] = frozenset()
    """Nodes whose quota does not count."""

    @property
    def root(self) -> str:
        return min((name for name, parent in self.parents.items() if not parent), default="")

    @property
    def dimensions(self) -> set[str]:
        return {"cpu", "memory", "nvidia.com/gpu"} | {name for quota in self.quotas.values() for name in quota}

    def path(self, name: str) -> list[str]:
        """From this node up to the root; empty when it is not below the root."""
        found: list[str] = []
        while name and name in self.parents and name not in found:
            found.append(name)
            name = self.parents[name]
        return found if found and found[-1] == self.root else []

    def is_leaf(self, name: str) -> bool:
        return bool(self.path(name)) and name not in self.parents.values()


class World:
    """Objects by collection and name; `apply` moves it one revision on."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[tuple[str, str], Json]] = {}

    def apply(self, change: Change) -> None:
        metadata = change.obj["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        kept = self.objects.setdefault(change.collection, {})
        if change.new is None:
            kept.pop(key, None)
        else:
            kept[key] = change.new

    def all(self, collection: str) -> Iterator[Json]:
        yield from self.objects.get(collection, {}).values()

    def gangs(self) -> list[Seen]:
        return [Seen(obj) for obj in self.all("appwrappers")]

    def gang(self, uid: str) -> Seen | None:
        """By its UID, or by the mark that stands for it in other namespaces."""
        return next((one for one in self.gangs() if uid in (one.uid, mark_of(one.uid))), None)

    def owner_of(self, obj: Json) -> Seen | None:
        for reference in obj["metadata"].get("ownerReferences") or ():
            if reference.get("kind") == "AppWrapper" and reference.get("controller"):
                return self.gang(reference["uid"])
        return None

    def live_pods(self) -> list[Json]:
        return [pod for pod in self.all("pods") if (pod.get("status") or {}).get("phase") not in ENDED]

    def pods_of(self, uid: str) -> list[Json]:
        return [pod for pod in self.live_pods() if gang_of(pod) == uid]

    def is_idle(self, gang: Seen) -> bool:
        """It runs, and every pod it wrapped has ended or is gone: it needs nothing more."""
        items = (gang.obj["spec"].get("resources") or {}).get("GenericItems") or ()
        wrapped = [one.get("generictemplate") or {} for one in items]
        made = [one for one in wrapped if one.get("kind") in ("Pod", "Job")]
        others = any(one.get("custompodresources") and obj not in made for one, obj in zip(items, wrapped, strict=True))
        if gang.is_components or not made or others or gang.status.get("state") != "Running":
            return False
        jobs = {obj["metadata"]["name"]: obj for obj in self.all("jobs") if gang_of(obj) == gang.uid}
        for job in jobs.values():
            conditions = (job.get("status") or {}).get("conditions") or ()
            if not any(one["type"] in ("Complete", "Failed") and one["status"] == "True" for one in conditions):
                return False
        return gang.is_admitted and not self.pods_of(gang.uid)

    def capacity(self) -> Sums:
        total: Sums = {}
        for node in self.all("nodes"):
            if usable(node):
                add(total, sums((node.get("status") or {}).get("allocatable")))
        return total

    def held(self) -> Sums:
        """What is taken of the usable nodes: the pods on them, and what admitted gangs still have to get, wherever."""
        nodes = {node["metadata"]["name"] for node in self.all("nodes") if usable(node)}
        total: Sums = {}
        pods: dict[str, Sums] = {}
        for pod in self.all("pods"):
            phase = (pod.get("status") or {}).get("phase")
            if phase != "Failed" or _is_wrapped(pod):  # one that is not made again has had its turn
                add(pods.setdefault(gang_of(pod), {}), requests_of(pod))
            if phase not in ENDED and (pod.get("spec") or {}).get("nodeName") in nodes:
                add(total, requests_of(pod))
        for one in self.gangs():
            if (one.is_admitted and not self.is_idle(one)) or one.is_stopping:
                there = pods.setdefault(one.uid, {})
                for lost in self._lost(one):
                    add(there, requests_of(lost))
                to_come = {name: max(0, value - there.get(name, 0)) for name, value in one.charge.items()}
                add(total, to_come)
                for pod in self.pods_of(one.uid):
                    if not (pod.get("spec") or {}).get("nodeName"):
                        add(total, requests_of(pod))
        return total

    def _lost(self, gang: Seen) -> Iterator[Json]:
        """Pods that a running gang wrapped as they are, and that are gone: no controller makes them again."""
        if gang.status.get("state") != "Running" or gang.is_components:
            return
        names = {pod["metadata"]["name"] for pod in self.all("pods") if gang_of(pod) == gang.uid}
        for item in (gang.obj["spec"].get("resources") or {}).get("GenericItems") or ():
            template = item.get("generictemplate") or {}
            if template.get("kind") == "Pod" and template["metadata"].get("name") not in names:
                yield template

    def trees(self) -> dict[str, Tree]:
        parts: dict[str, tuple[dict[str, Sums], set[str], dict[str, str]]] = {}
        disabled: dict[str, set[str]] = {}
        for obj in self.all("quotasubtrees"):
            name = (obj["metadata"].get("labels") or {}).get("tree")
            if not name:
                continue
            quotas, hard, parents = parts.setdefault(name, ({}, set(), {}))
            parent = obj["spec"].get("parent") or ""
            for child in obj["spec"].get("children") or ():
                given = child.get("quotas") or {}
                quotas[child["name"]] = sums(given.get("requests"))
                parents[child["name"]] = "" if parent == "nil" else parent
                if given.get("hardLimit"):
                    hard.add(child["name"])
                if given.get("disabled"):
                    disabled.setdefault(name, set()).add(child["name"])
        found = {
            name: Tree(quotas, frozenset(hard), parents, frozenset(disabled.get(name, ())))
            for name, (quotas, hard, parents) in parts.items()
        }
        return {name: tree for name, tree in found.items() if tree.root}

    def members(self, tree: str, *, admitted: bool = True) -> list[tuple[str, Seen]]:
        """Leaf and gang of everyone who holds quota of this tree."""
        found = [one for one in self.gangs() if one.is_admitted is admitted and not self.is_idle(one)]
        return [(one.labels.get(tree, "default"), one) for one in found]


def _is_wrapped(pod: Json) -> bool:
    """Was it wrapped as it is, and not made by a controller that would make it again?"""
    references = pod["metadata"].get("ownerReferences") or ()
    return any(one.get("kind") == "AppWrapper" and one.get("controller") for one in references)


def gang_of(pod: Json) -> str:
    """UID of the AppWrapper that the pod was made for, or an empty text. Orphaned on purpose: still its mark."""
    for reference in pod["metadata"].get("ownerReferences") or ():
        if reference.get("kind") == "AppWrapper" and reference.get("controller"):
            return str(reference["uid"])
    return str((pod["metadata"].get("annotations") or {}).get(GANG_UID, ""))


def requests_of(pod: Json) -> Sums:
    total: Sums = {}
    for container in (pod.get("spec") or {}).get("containers") or ():
        resources = container.get("resources") or {}
        add(total, {**sums(resources.get("limits")), **sums(resources.get("requests"))})
    return total


def usable(node: Json) -> bool:
    if (node.get("spec") or {}).get("unschedulable"):
        return False
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def sums(resources: Json | None) -> Sums:
    return {name: amount(name, text) for name, text in (resources or {}).items()}


def add(total: Sums, more: Sums) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def over(taken: Sums, limit: Sums, names: set[str] | None = None) -> dict[str, int]:
    """By how much something is exceeded, per resource; `pods` counts only where it is limited."""
    chosen = names if names is not None else {name for name in taken if name != "pods"}
    return {name: taken.get(name, 0) - limit.get(name, 0) for name in chosen if taken.get(name, 0) > limit.get(name, 0)}


def packs(pods: list[Sums], free: list[Sums]) -> bool:
    """Whether these pods certainly find nodes: largest first, each on the first that takes it."""
    left = [dict(one) for one in free]
    for pod in sorted(pods, key=lambda one: -sum(one.values())):
        for node in left:
            if all(node.get(name, 0) >= value for name, value in pod.items()) and node.get("pods", 1) > 0:
                for name, value in pod.items():
                    node[name] -= value
                if "pods" in node:
                    node["pods"] -= 1
                break
        else:
            return False
    return True
