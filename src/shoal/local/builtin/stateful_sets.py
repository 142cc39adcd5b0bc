"""StatefulSets: pods with fixed names, made and removed in order, each with its own claims.

A template is kept as a ControllerRevision, so that pods below the partition of a rolling update can still be made
from the one they had.
"""

from __future__ import annotations

import copy

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.kube.errors import AlreadyExists
from shoal.kube.runtime import Controller
from shoal.local.builtin import pods, revisions
from shoal.local.builtin.context import WorkloadContext, number, run_sets
from shoal.local.builtin.deployments import template_hash

REVISION = revisions.HASH
POD_NAME, POD_INDEX = "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"


class StatefulSetController:
    def __init__(self, context: WorkloadContext) -> None:
        self._context = context
        self._sets = context.cache(kinds.STATEFUL_SET)
        self._claims = context.cache(kinds.PERSISTENT_VOLUME_CLAIM)
        self.controller: Controller[Key] = Controller("statefulsets", self.reconcile, workers=4, clock=context.clock)

    async def run(self) -> None:
        await run_sets(self._context, self.controller, kinds.STATEFUL_SET, self._sets, pods.matches)

    async def reconcile(self, key: Key) -> float | None:
        owner = self._sets.get(key)
        if owner is None:
            return None
        mine = {place: pod for pod in await pods.claim(self._context, kinds.STATEFUL_SET, owner)
                if (place := _ordinal(owner, pod)) is not None}  # fmt: skip
        digest = template_hash(owner["spec"].get("template") or {})
        revision = f"{key.name}-{digest}"
        if not pods.is_deleting(owner):
            if (owner.get("status") or {}).get("updateRevision") != revision:
                await revisions.keep(self._context, kinds.STATEFUL_SET, owner, digest)
            await self._step(owner, mine, revision)
        await self._publish(owner, revision)
        return None

    async def _step(self, owner: Json, mine: dict[int, Json], revision: str) -> None:
        """One step: fill the first gap, or remove the last surplus, or exchange the last old pod."""
        spec = owner["spec"]
        ordered = spec.get("podManagementPolicy") != "Parallel"
        first = number((spec.get("ordinals") or {}).get("start"))
        wanted = range(first, first + number(spec.get("replicas"), 1))
        made = 0
        for place in wanted:
            pod = mine.get(place)
            if pod is None:
                await self._make(owner, place, revision)
                made += 1
                if made == pods.MOST_AT_ONCE:
                    return  # their events bring us back
            elif pods.is_terminal(pod) and not pods.is_deleting(pod):
                await self._context.delete_pods(owner, [pod])
            elif pods.is_active(pod) and pods.is_ready(pod):
                continue
            if ordered:
                return  # the next one waits until this one is ready
        surplus = [mine[place] for place in sorted(mine, reverse=True) if place not in wanted]
        doomed = [pod for pod in surplus if not pods.is_deleting(pod)]
        if surplus:
            if ordered and len(doomed) < len(surplus):
                return
            await self._context.delete_pods(owner, doomed[:1] if ordered else doomed)
            return
        await self._exchange(owner, mine, wanted, revision)

    async def _exchange(self, owner: Json, mine: dict[int, Json], wanted: range, revision: str) -> None:
        strategy = owner["spec"].get("updateStrategy") or {}
        if strategy.get("type") == "OnDelete":
            return
        partition = number((strategy.get("rollingUpdate") or {}).get("partition"))
        for place in reversed(wanted):
            pod = mine.get(place)
            if place < partition or pod is None:
                continue
            if _revision(pod) != revision:
                if not pods.is_deleting(pod):
                    await self._context.delete_pods(owner, [pod])
                return
            if not pods.is_ready(pod):
                return

    async def _make(self, owner: Json, place: int, revision: str) -> None:
        strategy = owner["spec"].get("updateStrategy") or {}
        template = owner["spec"].get("template") or {}
        current = (owner.get("status") or {}).get("currentRevision") or revision
        partition = number((strategy.get("rollingUpdate") or {}).get("partition"))
        if place < partition and current != revision:
            template = await revisions.template_of(self._context, current, owner["metadata"]["namespace"]) or template
            revision = current
        name = f"{owner['metadata']['name']}-{place}"
        body = pods.from_template(kinds.STATEFUL_SET, owner, template, name)
        body["metadata"]["labels"].update({POD_NAME: name, POD_INDEX: str(place), REVISION: revision})
        spec = body["spec"]
        spec.setdefault("hostname", name[:63])
        if owner["spec"].get("serviceName"):
            spec.setdefault("subdomain", owner["spec"]["serviceName"])
        await self._claim_volumes(owner, name, spec)
        try:
            await self._context.create_pods(owner, [body])
        except AlreadyExists:
            return  # a stranger has the name; its end brings us back

    async def _claim_volumes(self, owner: Json, pod_name: str, spec: Json) -> None:
        namespace = owner["metadata"]["namespace"]
        for claim in owner["spec"].get("volumeClaimTemplates") or ():
            volume = claim["metadata"]["name"]
            name = f"{volume}-{pod_name}"
            volumes = [v for v in spec.get("volumes") or () if v.get("name") != volume]
            spec["volumes"] = [*volumes, {"name": volume, "persistentVolumeClaim": {"claimName": name}}]
            if self._claims.get(Key(namespace, name)) is not None:
                continue
            labels = {
                **(claim["metadata"].get("labels") or {}),
                **((owner["spec"].get("selector") or {}).get("matchLabels") or {}),
            }
            body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": copy.deepcopy(claim.get("spec") or {}),
                    "metadata": {"name": name, "namespace": namespace, "labels": labels}}  # fmt: skip
            try:
                await self._context.create(kinds.PERSISTENT_VOLUME_CLAIM, body)
            except AlreadyExists:
                continue  # a claim outlives its set on purpose

    async def _publish(self, owner: Json, revision: str) -> None:
        active = [pod for pod in self._context.owned_pods(owner) if not pods.is_terminal(pod)]
        status = owner.get("status") or {}
        current = status.get("currentRevision") or revision
        updated = sum(_revision(pod) == revision and not pods.is_deleting(pod) for pod in active)
        ready = sum(pods.is_ready(pod) for pod in active)
        if updated == len(active) == number(owner["spec"].get("replicas"), 1) and ready == len(active):
            current = revision
        kept = sum(_revision(pod) == current and not pods.is_deleting(pod) for pod in active)
        change = {
            "observedGeneration": owner["metadata"]["generation"], "replicas": len(active),
            "readyReplicas": ready or None, "availableReplicas": ready, "currentReplicas": kept or None,
            "updatedReplicas": updated or None, "currentRevision": current, "updateRevision": revision,
            "collisionCount": 0,
        }  # fmt: skip
        await self._context.patch(kinds.STATEFUL_SET, owner, {"status": change}, status=True)


def _ordinal(owner: Json, pod: Json) -> int | None:
    text = pod["metadata"]["name"].removeprefix(owner["metadata"]["name"] + "-")
    return int(text) if text.isdecimal() else None


def _revision(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get(REVISION) or "")
