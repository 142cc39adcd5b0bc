"""Deployments: one ReplicaSet per template, exchanged step by step without falling below what must stay available."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.labels import LAST_APPLIED
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.kube.errors import AlreadyExists
from shoal.kube.runtime import Controller
from shoal.local.builtin import pods
from shoal.local.builtin.context import (
    WorkloadContext,
    controller_of,
    number,
    reference_to,
    watch_orphans,
    watch_own,
    watch_owned,
)
from shoal.local.builtin.rollout import RolloutShare, bounds, next_scale, rescaled

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MOST = "deployment.kubernetes.io/max-replicas"


class DeploymentController:
    def __init__(self, context: WorkloadContext) -> None:
        self._context = context
        self._deployments = context.cache(kinds.DEPLOYMENT)
        self._sets = context.cache(kinds.REPLICA_SET)
        self._progress: dict[str, tuple[int, ...]] = {}  # by UID: the counts last seen, to tell a rollout that moves
        self.controller: Controller[Key] = Controller("deployments", self.reconcile, workers=4, clock=context.clock)

    async def run(self) -> None:
        watch_own(self.controller, self._deployments)
        self._deployments.subscribe(self._on_own)
        watch_owned(self.controller, self._sets, kinds.DEPLOYMENT)
        watch_orphans(self.controller, self._sets, self._deployments, pods.matches)
        self._context.pods.subscribe(self._on_pod)
        await self._context.caches.ready.wait()
        await self.controller.run()

    def _on_own(self, change: Any) -> None:
        if change.kind == "removed":
            self._progress.pop(change.old["metadata"]["uid"], None)

    def _on_pod(self, change: Any) -> None:
        """The last old pod going lets a Recreate deployment go on."""
        if change.kind != "removed":
            return
        owner = controller_of(change.old)
        found = self._sets.get(Key(change.key.namespace, owner["name"])) if owner else None
        above = controller_of(found) if found else None
        if above is not None:
            self.controller.enqueue(Key(change.key.namespace, above["name"]))

    async def reconcile(self, key: Key) -> float | None:
        deployment = self._deployments.get(key)
        if deployment is None or pods.is_deleting(deployment):
            return None
        await pods.claim(self._context, kinds.DEPLOYMENT, deployment, kinds.REPLICA_SET)
        current, old = self._split(deployment)
        paused = deployment["spec"].get("paused")
        if current is None and not paused:
            current = await self._make(deployment, old)
        elif current is not None:
            current = await self._number(deployment, current, old)
        if paused or _is_resized(deployment, [*old, *([current] if current else ())]):
            await self._rescale(deployment, current, old)
        elif current is not None:
            await self._step(deployment, current, old)
        current, old = self._split(deployment)
        await self._forget_history(deployment, old)
        return await self._publish(deployment, current, old)

    # --- sets

    def _split(self, deployment: Json) -> tuple[Json | None, list[Json]]:
        """The set of the present template, and all others, oldest first."""
        owned = self._sets.by_index("owner", deployment["metadata"]["uid"])
        owned.sort(key=lambda one: (one["metadata"].get("creationTimestamp") or "", one["metadata"]["name"]))
        wanted = _bare(deployment["spec"].get("template") or {})
        current = next((one for one in owned if _bare(one["spec"].get("template") or {}) == wanted), None)
        return current, [one for one in owned if one is not current]

    async def _make(self, deployment: Json, old: list[Json]) -> Json:
        template = copy.deepcopy(deployment["spec"].get("template") or {})
        digest = template_hash(template)
        labels = template.setdefault("metadata", {}).setdefault("labels", {})
        labels[HASH] = digest
        selector = copy.deepcopy(deployment["spec"].get("selector") or {})
        selector.setdefault("matchLabels", {})[HASH] = digest
        metadata = deployment["metadata"]
        annotations = _annotations(deployment, _next_revision(old)) | _sizes(deployment)
        replicas = self._next_sizes(deployment, RolloutShare(0, 0), old).get(None, 0)
        body: Json = {
            "apiVersion": kinds.REPLICA_SET.api_version, "kind": "ReplicaSet",
            "metadata": {"name": f"{metadata['name']}-{digest}", "namespace": metadata["namespace"], "labels": labels,
                         "annotations": annotations, "ownerReferences": [reference_to(kinds.DEPLOYMENT, deployment)]},
            "spec": {"replicas": replicas, "selector": selector, "template": template,
                     "minReadySeconds": number(deployment["spec"].get("minReadySeconds"))},
        }  # fmt: skip
        try:
            made = await self._context.create(kinds.REPLICA_SET, body)
            self._record_size(deployment, made, 0, replicas)
            return made
        except AlreadyExists:
            # Ours from before the cache saw it, or a stranger's of the same name: only the server can tell.
            found = await self._context.client.get(kinds.REPLICA_SET, body["metadata"]["name"], metadata["namespace"])
            owner = controller_of(found)
            if owner is None or owner["uid"] != metadata["uid"]:
                raise
            return found

    async def _number(self, deployment: Json, current: Json, old: list[Json]) -> Json:
        """A set that becomes current again (a rollback) gets the next revision."""
        highest = max((_revision(one) for one in old), default=0)
        revision = _revision(current) if _revision(current) > highest else highest + 1
        change = {"metadata": {"annotations": _annotations(deployment, revision)}}
        return await self._context.patch(kinds.REPLICA_SET, current, change)

    async def _step(self, deployment: Json, current: Json, old: list[Json]) -> None:
        """One step of the exchange; the sets' own changes bring us back for the next."""
        for place, replicas in self._next_sizes(deployment, _share(current), old).items():
            await self._resize(deployment, current if place is None else old[place], replicas)

    def _next_sizes(self, deployment: Json, current: RolloutShare, old: list[Json]) -> dict[int | None, int]:
        old_pods_left = any(self._context.owned_pods(one) for one in old)
        return next_scale(deployment["spec"], current, [_share(one) for one in old], old_pods_left)

    async def _rescale(self, deployment: Json, current: Json | None, old: list[Json]) -> None:
        """A number changed in the middle of an exchange, or while it is paused, holds at once."""
        if current is None and not old:
            return
        total = number((deployment.get("status") or {}).get("replicas"))
        share = _share(current) if current is not None else None
        for place, replicas in rescaled(deployment["spec"], share, [_share(one) for one in old], total).items():
            found = current if place is None else old[place]
            assert found is not None
            await self._resize(deployment, found, replicas, noted=True)

    async def _resize(self, deployment: Json, replica_set: Json, replicas: int, *, noted: bool = False) -> None:
        before = number(replica_set["spec"].get("replicas"))
        if before == replicas and not noted:
            return
        change = {"metadata": {"annotations": _sizes(deployment)}, "spec": {"replicas": replicas}}
        await self._context.patch(kinds.REPLICA_SET, replica_set, change)
        self._record_size(deployment, replica_set, before, replicas)

    def _record_size(self, deployment: Json, replica_set: Json, before: int, replicas: int) -> None:
        if before == replicas:
            return
        way = "up" if replicas > before else "down"
        words = f"Scaled {way} replica set {replica_set['metadata']['name']} from {before} to {replicas}"
        self._context.events.event(deployment, "Normal", "ScalingReplicaSet", words)

    async def _forget_history(self, deployment: Json, old: list[Json]) -> None:
        kept = number(deployment["spec"].get("revisionHistoryLimit"), 10)
        idle = [one for one in old if not number(one["spec"].get("replicas")) and not number(
            (one.get("status") or {}).get("replicas")) and not pods.is_deleting(one)]  # fmt: skip
        idle.sort(key=_revision)
        for one in idle[: max(0, len(idle) - kept)]:
            await self._context.delete(kinds.REPLICA_SET, one)

    # --- status

    async def _publish(self, deployment: Json, current: Json | None, old: list[Json]) -> float | None:
        every = [one for one in (current, *old) if one is not None]
        wanted = number(deployment["spec"].get("replicas"), 1)
        total = sum(_counted(one, "replicas") for one in every)
        available = sum(_counted(one, "availableReplicas") for one in every)
        ready = sum(_counted(one, "readyReplicas") for one in every)
        updated = _counted(current, "replicas")
        conditions, again = self._conditions(deployment, current, wanted, total, updated, available)
        status = {
            "observedGeneration": deployment["metadata"]["generation"], "replicas": total or None,
            "updatedReplicas": updated or None, "readyReplicas": ready or None, "availableReplicas": available or None,
            "unavailableReplicas": max(0, max(total, wanted) - available) or None, "conditions": conditions,
        }  # fmt: skip
        change: Json = {"status": status}
        if current is not None and _revision(current):
            # with the status, as Kubernetes does it: there an annotation does not count as a new generation
            change["metadata"] = {"annotations": {REVISION: str(_revision(current))}}
        await self._context.patch(kinds.DEPLOYMENT, deployment, change, status=True)
        return again

    def _conditions(
        self, deployment: Json, current: Json | None, wanted: int, total: int, updated: int, available: int
    ) -> tuple[list[Json], float | None]:
        held = {c["type"]: c for c in (deployment.get("status") or {}).get("conditions") or ()}
        enough = available >= wanted - max_unavailable(deployment["spec"])
        found = [self._condition(held, "Available", enough, "MinimumReplicasAvailable" if enough else
                                 "MinimumReplicasUnavailable", "Deployment has minimum availability." if enough else
                                 "Deployment does not have minimum availability.")]  # fmt: skip
        name = current["metadata"]["name"] if current is not None else ""
        done = updated == wanted == total and available >= wanted
        before = held.get("Progressing")
        limit = number(deployment["spec"].get("progressDeadlineSeconds"), 600)
        again: float | None = None
        if done:
            words = f'ReplicaSet "{name}" has successfully progressed.'
            found.append(self._condition(held, "Progressing", True, "NewReplicaSetAvailable", words))
        elif deployment["spec"].get("paused"):
            words = "Deployment is paused"
            found.append(self._condition(held, "Progressing", None, "DeploymentPaused", words))
        else:
            uid = deployment["metadata"]["uid"]
            moved = self._progress.get(uid, (updated, available, total)) != (updated, available, total)
            self._progress[uid] = (updated, available, total)
            idle = 0.0 if moved or before is None else self._since(str(before.get("lastUpdateTime")))
            if idle >= limit:
                words = f'ReplicaSet "{name}" has timed out progressing.'
                found.append(self._condition(held, "Progressing", False, "ProgressDeadlineExceeded", words))
            elif before is not None and before.get("reason") == "ProgressDeadlineExceeded" and not moved:
                found.append(before)
            else:
                words = f'ReplicaSet "{name}" is progressing.'
                found.append(self._condition(held, "Progressing", True, "ReplicaSetUpdated", words, moved=moved))
                again = limit - idle
        return found, again

    def _since(self, moment: str) -> float:
        return (self._context.clock.now() - parse_time(moment)) / 1_000_000

    def _condition(
        self, held: dict[str, Json], kind: str, good: bool | None, reason: str, message: str, *, moved: bool = False
    ) -> Json:
        status = "Unknown" if good is None else "True" if good else "False"
        before = held.get(kind)
        same = before is not None and (before["status"], before.get("reason"), before.get("message")) == (
            status, reason, message)  # fmt: skip
        if before is not None and same and not moved:
            return before
        now = self._context.now()
        since = before["lastTransitionTime"] if before is not None and before["status"] == status else now
        return {"type": kind, "status": status, "reason": reason, "message": message, "lastUpdateTime": now,
                "lastTransitionTime": since}  # fmt: skip


def max_unavailable(spec: Json) -> int:
    """How many may be missing, at most."""
    strategy = spec.get("strategy") or {}
    wanted = number(spec.get("replicas"), 1)
    if strategy.get("type") == "Recreate":
        return 0
    return min(bounds(spec)[1], wanted)


def template_hash(template: Json) -> str:
    text = json.dumps(template, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).digest()
    letters = "bcdfghjklmnpqrstvwxz2456789"
    return "".join(letters[byte % len(letters)] for byte in digest[:10])


def _bare(template: Json) -> Json:
    """A template without the label that only the set's copy has."""
    metadata = template.get("metadata") or {}
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != HASH}
    rest = {key: value for key, value in metadata.items() if key not in ("labels", "creationTimestamp")}
    return {**template, "metadata": {**rest, "labels": labels}}


def _share(replica_set: Json) -> RolloutShare:
    most = (replica_set["metadata"].get("annotations") or {}).get(MOST, "")
    return RolloutShare(
        number(replica_set["spec"].get("replicas")),
        _counted(replica_set, "availableReplicas"),
        int(most) if most.isdecimal() else 0,
    )


def _is_resized(deployment: Json, sets: list[Json]) -> bool:
    """Whether a set that has pods was last resized for another number than the one wanted now."""
    wanted = str(number(deployment["spec"].get("replicas"), 1))
    noted = [(one["metadata"].get("annotations") or {}).get(DESIRED) for one in sets if one["spec"].get("replicas")]
    return any(one is not None and one != wanted for one in noted)


def _counted(replica_set: Json | None, name: str) -> int:
    return number(((replica_set or {}).get("status") or {}).get(name))


def _revision(replica_set: Json | None) -> int:
    text = ((replica_set or {"metadata": {}})["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(text) if text.isdecimal() else 0


def _next_revision(old: list[Json]) -> int:
    return max((_revision(one) for one in old), default=0) + 1


def _annotations(deployment: Json, revision: int) -> Json:
    skipped = (LAST_APPLIED, REVISION, DESIRED, MOST)
    own = {k: v for k, v in (deployment["metadata"].get("annotations") or {}).items() if k not in skipped}
    return {**own, REVISION: str(revision)}


def _sizes(deployment: Json) -> dict[str, str]:
    """What a set remembers of the Deployment when it is resized."""
    wanted = number(deployment["spec"].get("replicas"), 1)
    recreate = (deployment["spec"].get("strategy") or {}).get("type") == "Recreate"
    return {DESIRED: str(wanted), MOST: str(wanted + (0 if recreate else bounds(deployment["spec"])[0]))}
