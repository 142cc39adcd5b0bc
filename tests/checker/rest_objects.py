"""All that a server stores at one moment, and the plain questions that rules at rest ask of it.

Built from dictionaries alone: no engine, no controller, no cache is asked. Amounts are exact (cpu in milli, all else
in units).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shoal.api.quantity import amount
from shoal.api.times import parse_time
from tests.checker.rest_pods import Counting

Json = dict[str, Any]
Sums = dict[str, int]

ENDED = ("Succeeded", "Failed")
SECOND = 1_000_000
SIDECAR = "Always"


@dataclass(frozen=True)
class Rules:
    """What administrators chose; stored objects do not tell. The defaults are those of the programs."""

    supply: str = "fit"
    """`off`: room on nodes is not asked for queued jobs."""
    wrapper_supply: str = "fit"
    policy: str = "priority"
    head_hold: bool = False
    """May the first AppWrapper in line hold others up for a while?"""
    counting: Counting = field(default_factory=Counting)
    wrapper_quota: bool = True
    """Do quota trees count for AppWrappers?"""
    preemption: bool = False
    """May AppWrappers take the place of others of lower priority?"""
    fair_sharing: bool = False
    blocks_until_ready: bool = False
    partial_admission: bool = True
    recovery_seconds: float = 300.0
    now: int = 0
    """Microseconds since the epoch; 0 where the time is not known."""
    queues: bool = True
    wrappers: bool = True
    ray: bool = True
    """Which controllers are at work: the judge asks nothing of what none of them looks after."""
    jobs: bool = True
    """Does a Job controller make and count pods?"""
    binds: bool | None = None
    """Does a scheduler bind pods? None: where any pod is bound."""
    skipped: frozenset[str] = field(default_factory=frozenset)
    """Invariants that a test breaks on purpose, each for a reason that stands beside it."""


class Stored:
    """Objects by plural, namespace and name."""

    def __init__(self, objects: Mapping[str, Iterable[Json]]) -> None:
        self.objects = {plural: list(found) for plural, found in objects.items()}

    def all(self, plural: str) -> list[Json]:
        return self.objects.get(plural, [])

    def get(self, plural: str, name: str, namespace: str = "") -> Json | None:
        return self._names.get((plural, namespace, name))

    @cached_property
    def _names(self) -> dict[tuple[str, str, str], Json]:
        return {
            (plural, one["metadata"].get("namespace", ""), one["metadata"]["name"]): one
            for plural, found in self.objects.items()
            for one in found
        }

    @cached_property
    def by_uid(self) -> dict[str, Json]:
        return {uid_of(one): one for found in self.objects.values() for one in found}

    @cached_property
    def owned(self) -> dict[str, list[Json]]:
        """UID of an owner to the live pods below it, however far."""
        found: dict[str, list[Json]] = {}
        for pod in self.all("pods"):
            if is_live(pod):
                for uid in self.line_of(pod):
                    found.setdefault(uid, []).append(pod)
        return found

    def line_of(self, obj: Json) -> list[str]:
        """UIDs of its controlling owner, that one's owner, and so on."""
        found: list[str] = []
        while obj is not None and (uid := owner_uid(obj)) and uid not in found:
            found.append(uid)
            obj = self.by_uid.get(uid) or {"metadata": {}}
        return found

    @cached_property
    def overheads(self) -> dict[str, Sums]:
        """RuntimeClass name to what a pod of it costs beside its containers."""
        return {
            one["metadata"]["name"]: sums((one.get("overhead") or {}).get("podFixed"))
            for one in self.all("runtimeclasses")
        }

    def requests_of(self, spec: Json) -> Sums:
        """What one pod asks for, as schedulers count it: the larger of start and run, and its overhead."""
        together: Sums = {}
        for container in spec.get("containers") or ():
            add(together, container_requests(container))
        peak: Sums = {}
        sidecars: Sums = {}
        for container in spec.get("initContainers") or ():
            asked = container_requests(container)
            if container.get("restartPolicy") == SIDECAR:
                add(sidecars, asked)
                asked = {}
            for name, value in {**sidecars, **plus(sidecars, asked)}.items():
                peak[name] = max(peak.get(name, 0), value)
        add(together, sidecars)
        total = {name: max(together.get(name, 0), peak.get(name, 0)) for name in {**together, **peak}}
        total.update({name: max(value, total.get(name, 0)) for name, value in pod_level(spec).items()})
        overhead = sums(spec["overhead"]) if spec.get("overhead") else None
        add(total, overhead if overhead is not None else self.overheads.get(spec.get("runtimeClassName") or "", {}))
        return total


def pod_level(spec: Json) -> Sums:
    resources = spec.get("resources") or {}
    return {**sums(resources.get("limits")), **sums(resources.get("requests"))}


def container_requests(container: Json) -> Sums:
    resources = container.get("resources") or {}
    return {**sums(resources.get("limits")), **sums(resources.get("requests"))}


def uid_of(obj: Json) -> str:
    return str(obj["metadata"].get("uid") or "")


def name_of(obj: Json) -> str:
    metadata = obj["metadata"]
    return "/".join(part for part in (metadata.get("namespace", ""), metadata["name"]) if part)


def owner_of(obj: Json) -> Json | None:
    references = obj["metadata"].get("ownerReferences") or ()
    return next((one for one in references if one.get("controller")), None)


def owner_uid(obj: Json) -> str:
    return str((owner_of(obj) or {}).get("uid") or "")


def condition(obj: Json, kind: str) -> Json:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == kind), {})


def is_true(obj: Json, kind: str) -> bool:
    return bool(condition(obj, kind).get("status") == "True")


def is_leaving(obj: Json) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def is_live(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") not in ENDED


def is_bound(pod: Json) -> bool:
    return bool((pod.get("spec") or {}).get("nodeName"))


def label(obj: Json, name: str) -> str:
    return str((obj["metadata"].get("labels") or {}).get(name) or "")


def annotation(obj: Json, name: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(name) or "")


def moment(text: Any) -> int:
    return parse_time(str(text)) if text else 0


def sums(resources: Any) -> Sums:
    return {name: amount(name, text) for name, text in (resources or {}).items()}


def add(total: Sums, more: Mapping[str, int]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def plus(one: Mapping[str, int], other: Mapping[str, int]) -> Sums:
    total = dict(one)
    add(total, other)
    return total


def times(one: Mapping[str, int], count: int) -> Sums:
    return {name: value * count for name, value in one.items()}
