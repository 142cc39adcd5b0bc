"""What happened in a run of bench/jobs.py: when pods were bound, and how much quota was in use at every instant.

Pods and Workloads are watched from before the first submission. Each event carries the revision at which etcd stored
it, and revisions of all kinds are one count: put in that order they are the history, and after every entry the sum of
what is held must be within the quota. A watch that had to start over with a list would have lost entries: that ends the
run.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
from jobs_objects import CPU, JOB, PODS, RAY_JOB

from shoal.api.kind import Kind
from shoal.api.kinds import POD, WORKLOAD
from shoal.api.quantity import amount
from shoal.kube.client import Client

WRITES = ("create", "update", "patch", "delete", "deletecollection")


class Metadata(msgspec.Struct, rename="camel", frozen=True):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None


class Resources(msgspec.Struct, frozen=True):
    requests: dict[str, str] | None = None


class Container(msgspec.Struct, frozen=True):
    resources: Resources = Resources()


class Spec(msgspec.Struct, rename="camel", frozen=True):
    node_name: str = ""
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None


class Assignment(msgspec.Struct, rename="camel", frozen=True):
    name: str = ""
    count: int = 1
    resource_usage: dict[str, str] | None = None


class Reclaimable(msgspec.Struct, frozen=True):
    name: str = ""
    count: int = 0


class Admission(msgspec.Struct, rename="camel", frozen=True):
    pod_set_assignments: list[Assignment] | None = None


class Condition(msgspec.Struct, frozen=True):
    type: str
    status: str


class Status(msgspec.Struct, rename="camel", frozen=True):
    phase: str = ""
    admission: Admission | None = None
    conditions: list[Condition] | None = None
    reclaimable_pods: list[Reclaimable] | None = None


class Seen(msgspec.Struct, frozen=True):
    """What is read of a pod, or of a Workload."""

    metadata: Metadata = Metadata()
    spec: Spec = Spec()
    status: Status = Status()


class Entry(msgspec.Struct, frozen=True):
    """From this revision on `holder` holds so many millicores."""

    revision: int
    what: str
    holder: str
    held: int


class Record:
    """Watches until cancelled. `expected` are the names of all jobs."""

    def __init__(self, client: Client, expected: Iterable[str]) -> None:
        self._client = client
        self._bound: dict[str, set[str]] = {name: set() for name in expected}
        self._left = len(self._bound)
        self._decoder = msgspec.json.Decoder(Seen)
        self.entries: list[Entry] = []
        self.bound_at: dict[str, float] = {}
        """By the name of a job: when its last pod was bound, by the monotonic clock."""
        self.done = asyncio.Event()
        self.strangers: set[str] = set()
        """Pods that belong to no job, or to one that has all of its pods already."""

    async def run(self, kind: Kind, ready: asyncio.Event) -> None:
        """All events of a kind from now on. Raises where the history has a gap."""
        page = await self._client.list_raw(kind, limit=1)
        revision = page.metadata.resource_version
        while True:
            events = self._client.watch(kind, resource_version=revision, opened=ready.set)
            async with aclosing(events):
                async for event in events:
                    seen = self._decoder.decode(event.object)
                    revision = seen.metadata.resource_version or revision
                    if event.type != "BOOKMARK":
                        self._note(kind, event.type, seen)

    def _note(self, kind: Kind, event: str, seen: Seen) -> None:
        held = 0
        if event != "DELETED":
            held = held_by_pod(seen) if kind is POD else held_by_workload(seen)
        self.entries.append(Entry(int(seen.metadata.resource_version), kind.resource, seen.metadata.uid, held))
        if kind is POD and seen.spec.node_name:
            self._note_bound(seen)

    def _note_bound(self, pod: Seen) -> None:
        name = job_of(pod.metadata.labels or {})
        pods = self._bound.get(name)
        if pods is None or (len(pods) == PODS and pod.metadata.uid not in pods):
            self.strangers.add(pod.metadata.name)
        elif pod.metadata.uid not in pods:
            pods.add(pod.metadata.uid)
            if len(pods) == PODS:
                self.bound_at[name] = time.monotonic()
                self._left -= 1
                if not self._left:
                    self.done.set()

    @property
    def unbound(self) -> list[str]:
        return sorted(name for name in self._bound if name not in self.bound_at)


def job_of(labels: Mapping[str, str]) -> str:
    """The name of the job that a pod was made for. A RayCluster has its RayJob's name and a suffix."""
    cluster = labels.get("ray.io/cluster", "")
    if cluster.startswith(RAY_JOB):
        return cluster.rpartition("-")[0]
    name = labels.get("batch.kubernetes.io/job-name", "")
    return name if name.startswith(JOB) else ""


def held_by_pod(pod: Seen) -> int:
    """Millicores that a pod keeps from others, bound or not, until it has ended."""
    if pod.status.phase in ("Succeeded", "Failed"):
        return 0
    together = sum(map(_cpu, pod.spec.containers or ()))
    return max([together, *map(_cpu, pod.spec.init_containers or ())])


def held_by_workload(workload: Seen) -> int:
    """Millicores of the quota that its status reserves, until it is finished, less those of pods that are done."""
    status = workload.status
    finished = any(one.type == "Finished" and one.status == "True" for one in status.conditions or ())
    if status.admission is None or finished:
        return 0
    done = {one.name: one.count for one in status.reclaimable_pods or ()}
    held = 0
    for one in status.admission.pod_set_assignments or ():
        of_all = amount("cpu", (one.resource_usage or {}).get("cpu", "0"))
        held += of_all * max(0, one.count - done.get(one.name, 0)) // max(1, one.count)
    return held


def _cpu(container: Container) -> int:
    return amount("cpu", (container.resources.requests or {}).get("cpu", "0"))


def highest(entries: Iterable[Entry]) -> dict[str, int]:
    """The most millicores that pods, and that Workloads, held at any instant."""
    held: dict[tuple[str, str], int] = {}
    sums: Counter[str] = Counter()
    most: dict[str, int] = {}
    for entry in sorted(entries, key=lambda one: one.revision):
        key = (entry.what, entry.holder)
        sums[entry.what] += entry.held - held.get(key, 0)
        held[key] = entry.held
        most[entry.what] = max(most.get(entry.what, 0), sums[entry.what])
    return most


def nominal(jobs_at_once: int) -> int:
    """Millicores of the ClusterQueue."""
    return jobs_at_once * PODS * CPU


def requests(audit_log: Path, users: Iterable[str], since: str = "", until: str = "") -> dict[str, Counter[str]]:
    """What each user asked of the API server, by verb and resource, as its audit log says; watches are left out."""
    found: dict[str, Counter[str]] = {user: Counter() for user in users}
    if not audit_log.exists():
        return found
    with audit_log.open("rb") as lines:
        for line in lines:
            event: dict[str, Any] = msgspec.json.decode(line)
            user = event["user"]["username"]
            if event["stage"] != "ResponseComplete" or user not in found or event["verb"] == "watch":
                continue
            at = event["requestReceivedTimestamp"]
            if at < since or (until and at > until):
                continue
            about = event.get("objectRef") or {}
            parts = [about.get("resource") or event["requestURI"].partition("?")[0]]
            parts += [about["subresource"]] if about.get("subresource") else []
            code = int((event.get("responseStatus") or {}).get("code") or 0)
            refused = f" ({code})" if code >= 400 else ""
            found[user][f"{event['verb']} {'/'.join(parts)}{refused}"] += 1
    return found


def writes(asked: Mapping[str, int]) -> dict[str, int]:
    """Those that change something, or tried to."""
    return {
        what: count
        for what, count in asked.items()
        if what.partition(" ")[0] in WRITES and not what.startswith(_REVIEWS)
    }


_REVIEWS = ("create subjectaccessreviews", "create tokenreviews", "create selfsubject")
"""Questions that are asked with a create: nothing is stored."""

WATCHED = (POD, WORKLOAD)
