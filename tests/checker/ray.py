"""Invariants on Ray clusters and jobs: I32 to I37.

Judged from an operator's requests and from what its watches told it. Pods live from their first revision to the one at
which they ended or were gone, so a create or delete of the operator's is judged by the world at that very revision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.checker.record import Json, Record, Violation

PODS = "api/v1/pods"
CLUSTERS = "apis/ray.io/v1/rayclusters"
JOBS = "apis/ray.io/v1/rayjobs"
FINALIZERS = ("ray.io/gcs-ft-redis-cleanup-finalizer", "ray.io/idle-termination-cleanup-finalizer",
              "ray.io/rayjob-finalizer")  # fmt: skip
RECENT = 4
"""Versions of a spec that an operator with a cache may still act on."""
FOREVER = 1 << 62
RELEASE_SECONDS = 900


@dataclass
class _Pod:
    born: int
    ended: int = FOREVER
    dead: int = FOREVER
    last: Json = field(default_factory=dict)

    def lives(self, revision: int) -> bool:
        return self.born <= revision < min(self.ended, self.dead)


class _World:
    """Pods and specs by revision."""

    def __init__(self, records: list[Record]) -> None:
        self.pods: dict[str, _Pod] = {}
        self.specs: dict[str, dict[int, Json]] = {}
        for record in records:
            for path, obj in _objects(record):
                if path == PODS:
                    self._pod(record, obj)
                elif path == CLUSTERS:
                    self.specs.setdefault(_uid(obj), {})[_revision(obj)] = obj
        self._ended_unseen(records)

    def _ended_unseen(self, records: list[Record]) -> None:
        """No watch tells of what went while it was cut: a list without it does, and its name when it is given again."""
        for record in records:
            if record.path == PODS and record.verb == "list" and record.outcome == "done" and _is_whole(record):
                listed = {item.get("uid") for item in (record.new or {}).get("items") or ()}
                for uid, pod in self.pods.items():
                    there = record.namespace in ("", pod.last["metadata"].get("namespace", ""))
                    if there and uid not in listed and pod.born <= record.revision:
                        pod.ended = min(pod.ended, record.revision)
        names: dict[tuple[str, str], _Pod] = {}
        for pod in sorted(self.pods.values(), key=lambda one: one.born):
            metadata = pod.last["metadata"]
            before = names.get((metadata.get("namespace", ""), metadata["name"]))
            if before is not None:
                before.ended = min(before.ended, pod.born)
            names[metadata.get("namespace", ""), metadata["name"]] = pod

    def _pod(self, record: Record, obj: Json) -> None:
        revision = _revision(obj)
        pod = self.pods.setdefault(_uid(obj), _Pod(revision))
        pod.born = min(pod.born, revision)
        pod.last = obj
        if record.event == "DELETED":
            pod.ended = min(pod.ended, revision)
        if (obj.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
            pod.dead = min(pod.dead, revision)

    def living(self, cluster: str, revision: int, **labels: str) -> list[_Pod]:
        return [
            pod
            for pod in self.pods.values()
            if pod.lives(revision) and _owner(pod.last) == cluster and _labels(pod.last, labels)
        ]

    def recent(self, cluster: str, revision: int) -> list[Json]:
        """The last few versions of a cluster that an operator may have seen by then, newest last."""
        held = self.specs.get(cluster, {})
        return [held[number] for number in sorted(held) if number <= revision][-RECENT:]


def one_head(records: list[Record]) -> Iterator[Violation]:
    """I32: no operator makes a head beside a living one."""
    world = _World(records)
    for record in _creates(records):
        if record.new is not None and _label(record.new, "ray.io/node-type") == "head":
            heads = world.living(_owner(record.new), record.revision, node_type="head")
            if len(heads) > 1:
                yield Violation("I32", f"a head was made beside {len(heads) - 1} living", (record,))


def wanted_workers(records: list[Record]) -> Iterator[Violation]:
    """I33: no operator makes a worker that was not wanted at some recent revision."""
    world = _World(records)
    for record in _creates(records):
        if record.new is None or _label(record.new, "ray.io/node-type") != "worker":
            continue
        cluster, group = _owner(record.new), _label(record.new, "ray.io/group")
        wanted = [_wanted(spec, group) for spec in world.recent(cluster, record.revision)]
        living = world.living(cluster, record.revision, node_type="worker", group=group)
        if wanted and len(living) > max(wanted):
            yield Violation("I33", f"{len(living)} workers in {group}, wanted at most {max(wanted)}", (record,))


def rightful_deletes(records: list[Record]) -> Iterator[Violation]:
    """I34: under an autoscaler only named or dead workers go; without, exactly the excess; under strategy Rolling also
    those that differ from their template."""
    world = _World(records)
    for record in records:
        if record.path != PODS or record.verb != "delete" or record.outcome != "done" or record.old is None:
            continue
        pod, cluster = record.old, _owner(record.old)
        specs = world.recent(cluster, _now(record))
        if _label(pod, "ray.io/node-type") != "worker" or not specs or _is_dead(pod):
            continue
        if not any(_may_go(world, record, pod, spec) for spec in specs):
            yield Violation("I34", f"worker {pod['metadata'].get('name')} was deleted without a reason", (record,))


def _may_go(world: _World, record: Record, pod: Json, cluster: Json) -> bool:
    spec, group = cluster.get("spec") or {}, _group(cluster, _label(pod, "ray.io/group"))
    whole = spec.get("suspend") or spec.get("idleSuspend") or cluster["metadata"].get("deletionTimestamp")
    suspending = any(
        one.get("type") == "RayClusterSuspending" and one.get("status") == "True"
        for one in (cluster.get("status") or {}).get("conditions") or ()
    )
    recreated = (spec.get("upgradeStrategy") or {}).get("type") == "Recreate"
    if whole or suspending or recreated or group is None or group.get("suspend"):
        return True
    if (spec.get("upgradeStrategy") or {}).get("type") == "Rolling" and _differs(pod, group):
        return True
    if int(group.get("numOfHosts") or 1) > 1:
        return True  # a replica goes whole; which one is I33's matter
    if pod["metadata"].get("name") in ((group.get("scaleStrategy") or {}).get("workersToDelete") or ()):
        return True
    living = world.living(_owner(pod), _now(record), node_type="worker", group=_label(pod, "ray.io/group"))
    return not spec.get("enableInTreeAutoscaling") and len(living) > _wanted(cluster, _label(pod, "ray.io/group"))


def _differs(pod: Json, group: Json) -> bool:
    """Was the pod built from another template than the group has now, as far as its Ray container tells?"""
    wanted = (((group.get("template") or {}).get("spec") or {}).get("containers") or [{}])[0]
    held = ((pod.get("spec") or {}).get("containers") or [{}])[0]
    return any(held.get(field) != wanted.get(field) for field in ("image", "resources") if field in wanted)


def one_submission(records: list[Record]) -> Iterator[Violation]:
    """I35: every attempt has an id of its own; one that was given up never returns, unless the user insists on it."""
    versions: dict[str, dict[int, tuple[Record, Json]]] = {}
    for record in records:
        for path, obj in _objects(record):
            if path == JOBS:
                versions.setdefault(_uid(obj), {})[_revision(obj)] = (record, obj)
    for held in versions.values():
        past: set[str] = set()
        before = ""
        for _, (record, obj) in sorted(held.items()):
            current = str((obj.get("status") or {}).get("jobId") or "")
            if current != before:
                past.add(before)
                if current in past and current and current != (obj.get("spec") or {}).get("jobId"):
                    yield Violation("I35", f"id {current} was used again", (record,))
            before = current


def evidence(records: list[Record]) -> Iterator[Violation]:
    """I36: a job that has ended says how, and why when it failed."""
    for record in _status_writes(records, JOBS):
        assert record.new is not None
        status = record.new.get("status") or {}
        stage = status.get("jobDeploymentStatus")
        if stage == "Complete" and status.get("jobStatus") not in ("SUCCEEDED", "STOPPED"):
            yield Violation("I36", f"Complete, but Ray said {status.get('jobStatus')!r}", (record,))
        if stage == "Failed" and not (status.get("reason") and status.get("message")):
            yield Violation("I36", "Failed without a reason or a message", (record,))
        if stage in ("Complete", "Failed") and not status.get("endTime"):
            yield Violation("I36", f"{stage} without an end", (record,))


def released(records: list[Record]) -> Iterator[Violation]:
    """I37: our finalizers go soon after the deletion, whatever cannot be reached."""
    last: dict[str, Record] = {}
    for record in records:
        for path, obj in _objects(record):
            before = last.get(_uid(obj))  # an answer may come later than a watch that says it is gone
            if path in (CLUSTERS, JOBS) and (before is None or before.revision <= _revision(obj)):
                last[_uid(obj)] = record
    end = max((record.ended for record in records), default=0)
    for record in last.values():
        metadata = (record.new or {}).get("metadata") or {}
        held = [name for name in metadata.get("finalizers") or () if name in FINALIZERS]
        asked = metadata.get("deletionTimestamp")
        if record.event != "DELETED" and held and asked and end - _micros(asked) > RELEASE_SECONDS * 1_000_000:
            yield Violation("I37", f"{', '.join(held)} is still held", (record,))


CHECKS: dict[str, Callable[[list[Record]], Iterator[Violation]]] = {
    "I32": one_head,
    "I33": wanted_workers,
    "I34": rightful_deletes,
    "I35": one_submission,
    "I36": evidence,
    "I37": released,
}


def _objects(record: Record) -> Iterator[tuple[str, Json]]:
    if record.new is None or not isinstance(record.new.get("metadata"), dict):
        return
    if record.verb == "list":
        for item in record.new.get("items") or ():
            if isinstance(item.get("metadata"), dict):
                yield record.path, item
    elif record.new["metadata"].get("uid") and record.outcome == "done":
        yield record.path, record.new


def _is_whole(record: Record) -> bool:
    picky = ("labelSelector", "fieldSelector", "limit", "continue", "resourceVersion")
    return bool(record.revision) and not any(record.query.get(name) for name in picky)


def _creates(records: list[Record]) -> Iterator[Record]:
    yield from (one for one in records if one.path == PODS and one.verb == "create" and one.outcome == "done")


def _status_writes(records: list[Record], path: str) -> Iterator[Record]:
    for record in records:
        if record.path == path and record.is_done_write and record.subresource == "status":
            yield record


def _now(record: Record) -> int:
    """The revision just before a delete."""
    return (record.revision or _revision(record.old or {}) or FOREVER) - 1


def _is_dead(pod: Json) -> bool:
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    if status.get("phase") in ("Failed", "Succeeded"):
        return True
    ray = ((spec.get("containers") or [{}])[0]).get("name")
    ended = any(
        one.get("name") == ray and (one.get("state") or {}).get("terminated")
        for one in status.get("containerStatuses") or ()
    )
    return ended and spec.get("restartPolicy") == "Never"


def _wanted(cluster: Json, name: str) -> int:
    group = _group(cluster, name)
    if group is None or group.get("suspend"):
        return 0
    low, high = int(group.get("minReplicas") or 0), group.get("maxReplicas")
    asked = group.get("replicas")
    replicas = max(low, min(low if asked is None else int(asked), FOREVER if high is None else int(high)))
    return replicas * max(1, int(group.get("numOfHosts") or 1))


def _group(cluster: Json, name: str) -> Json | None:
    groups = (cluster.get("spec") or {}).get("workerGroupSpecs") or ()
    return next((group for group in groups if group.get("groupName") == name), None)


def _owner(pod: Json) -> str:
    owners = (pod.get("metadata") or {}).get("ownerReferences") or ()
    return next((str(one.get("uid")) for one in owners if one.get("kind") == "RayCluster"), "")


def _label(obj: Json, name: str) -> str:
    return str(((obj.get("metadata") or {}).get("labels") or {}).get(name) or "")


def _labels(obj: Json, wanted: dict[str, str]) -> bool:
    return all(_label(obj, f"ray.io/{key.replace('_', '-')}") == value for key, value in wanted.items())


def _uid(obj: Json) -> str:
    return str((obj.get("metadata") or {}).get("uid") or "")


def _revision(obj: Json) -> int:
    text = str((obj.get("metadata") or {}).get("resourceVersion") or "")
    return int(text) if text.isdigit() else 0


def _micros(text: str) -> int:
    from datetime import datetime

    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)
