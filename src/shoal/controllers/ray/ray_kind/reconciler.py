"""The reconciler of `Ray` (ray.k8s.io): a child RayCluster, a launcher that reports, a status in the proposal's shape.

Everything that runs is the child's; this only translates, creates and tells. Changing counts scales in place; changing
anything else recreates the pods and launches again.
"""

from __future__ import annotations

import logging

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.controllers.ray import view
from shoal.controllers.ray.caches import BY_OWNER, Caches
from shoal.controllers.ray.owned_writer import OwnedWriter, Stranger, merge_patch, owned_by
from shoal.controllers.ray.ray_kind import launcher, ray_status
from shoal.controllers.ray.ray_kind.launcher import launcher_pod
from shoal.controllers.ray.ray_kind.translation import LABEL, SUSPEND, Translation, translate
from shoal.controllers.ray.settings import RaySettings
from shoal.kube.clock import Clock
from shoal.kube.errors import ApiError
from shoal.kube.events import EventType, Recorder

log = logging.getLogger(__name__)

HASH = "ray.k8s.io/configuration-hash"
COUNTS = "ray.k8s.io/worker-counts"


class RayReconciler:
    def __init__(
        self, writer: OwnedWriter, caches: Caches, recorder: Recorder, settings: RaySettings, clock: Clock
    ) -> None:
        self._writer, self._caches, self._recorder = writer, caches, recorder
        self._settings, self._clock = settings, clock

    async def reconcile(self, key: Key) -> float | None:
        ray = self._caches.rays.get(key)
        if ray is None or view.deleting(ray):
            return None
        translation = translate(ray, self._settings)
        trouble = ""
        if not translation.problems:
            try:
                await self._realise(ray, translation)
            except Stranger as error:
                trouble = str(error)
            except ApiError as error:
                await self._publish(ray, translation, str(error))
                raise
        await self._publish(ray, translation, trouble)
        return None

    async def _realise(self, ray: Json, translation: Translation) -> None:
        """Launcher's ConfigMap, child cluster, launcher: in that order, each only once."""
        cluster = self._child(ray)
        wanted = self._wanted(ray, translation)
        if cluster is None or view.annotations_of(cluster).get(HASH) != translation.hash:
            await self._store_configuration(ray, translation)
            if translation.service_account:
                await self._service_account(ray, translation.service_account)
        if cluster is None:
            if await self._writer.create(kinds.RAY_CLUSTER, wanted, ray, self._caches.clusters):
                self._recorder.event(ray, "Normal", "CreatedRayCluster", f"Created RayCluster {view.name(wanted)}")
        else:
            change = child_change(cluster, wanted)
            if change is not None:
                await self._writer.patch(kinds.RAY_CLUSTER, cluster, change, self._caches.clusters)
                self._recorder.event(ray, "Normal", "UpdatedRayCluster", f"Updated RayCluster {view.name(cluster)}")
        await self._launch(ray, wanted, translation)

    async def _launch(self, ray: Json, cluster: Json, translation: Translation) -> None:
        """One launcher per configuration; those of earlier ones go."""
        if view.spec(cluster).get("suspend") is True:
            return
        pod = launcher_pod(ray, cluster, translation, self._settings)
        held = self._caches.launchers.by_index(BY_OWNER, view.uid(ray))
        for other in held:
            if view.name(other) != view.name(pod) and not view.deleting(other):
                await self._writer.delete(kinds.POD, other, self._caches.launchers)
        if any(view.name(other) == view.name(pod) for other in held):
            return
        if await self._writer.create(kinds.POD, pod, ray, self._caches.launchers):
            self._recorder.event(ray, "Normal", "CreatedLauncher", f"Created launcher {view.name(pod)}")

    async def _store_configuration(self, ray: Json, translation: Translation) -> None:
        wanted = launcher.config_map(ray, translation)
        if await self._writer.create(kinds.CONFIG_MAP, wanted, ray):
            return
        held = await self._writer.client.get(kinds.CONFIG_MAP, view.name(wanted), view.namespace(wanted))
        if held.get("data") != wanted["data"]:
            await self._writer.patch(kinds.CONFIG_MAP, held, {"data": wanted["data"]})

    async def _service_account(self, ray: Json, name: str) -> None:
        """The old launcher made the account that its configuration named; one of another owner is used as it is."""
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {
                "name": name,
                "namespace": view.namespace(ray),
                "labels": {LABEL: view.name(ray)},
                "ownerReferences": [view.owner_reference(ray, "ray.k8s.io/v1alpha1", "Ray")],
            },
        }
        try:
            await self._writer.create(kinds.SERVICE_ACCOUNT, account, ray)
        except Stranger:
            return

    def _child(self, ray: Json) -> Json | None:
        found = self._caches.clusters.get(Key(view.namespace(ray), view.name(ray)))
        return found if found is not None and owned_by(found, ray) else None

    def _wanted(self, ray: Json, translation: Translation) -> Json:
        spec = view.clone(translation.spec)
        if view.annotations_of(ray).get(SUSPEND, "").lower() == "true":
            spec["suspend"] = True
        passed_on = {
            key: value
            for key, value in view.annotations_of(ray).items()
            if not key.startswith(("ray.k8s.io/", "kubectl.kubernetes.io/"))
        }
        return {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {
                "name": view.name(ray),
                "namespace": view.namespace(ray),
                "labels": {**view.labels(ray), LABEL: view.name(ray)},
                "annotations": {**passed_on, HASH: translation.hash, COUNTS: translation.counts},
                "ownerReferences": [view.owner_reference(ray, "ray.k8s.io/v1alpha1", "Ray")],
            },
            "spec": spec,
        }

    async def _publish(self, ray: Json, translation: Translation, trouble: str) -> None:
        cluster = self._child(ray)
        pods = self._caches.pods_of(cluster) if cluster is not None else []
        launchers = [
            pod
            for pod in self._caches.launchers.by_index(BY_OWNER, view.uid(ray))
            if not view.deleting(pod) and (translation.problems or translation.hash in view.name(pod))
        ]
        new = ray_status.compute(ray, translation, cluster, pods, launchers, trouble, self._clock.now())
        old = ray.get("status") or {}
        if ray_status.same(old, new):
            return
        new["lastReconcileTime"] = seconds_text(self._clock.now())
        await self._writer.replace_status(kinds.RAY, ray, new, self._caches.rays)
        told = {one["type"] for one in old.get("conditions") or [] if one["status"] == "True"}
        for one in new["conditions"]:
            if one["status"] == "True" and one["type"] not in told:
                kind: EventType = "Warning" if one["type"] in ray_status.BAD else "Normal"
                self._recorder.event(ray, kind, one["type"], one.get("message") or one["type"])


def child_change(held: Json, wanted: Json) -> Json | None:
    """What to patch in the child: all of it for a new configuration, else only counts and suspension."""
    spec: Json = {}
    marks = view.annotations_of(held)
    if marks.get(HASH) != view.annotations_of(wanted)[HASH]:
        spec = merge_patch(view.spec(held), view.clone(wanted["spec"]))
        spec.update({key: None for key in ("enableInTreeAutoscaling", "autoscalerOptions") if key not in spec})
    elif marks.get(COUNTS) != view.annotations_of(wanted)[COUNTS]:
        counts = {view.group_name(group): group for group in view.groups(wanted)}
        groups = view.clone(view.groups(held))
        for group in groups:
            for field in ("replicas", "minReplicas", "maxReplicas"):
                group[field] = counts[view.group_name(group)][field]
        spec = {"workerGroupSpecs": groups}
        for key in ("enableInTreeAutoscaling", "autoscalerOptions"):
            if view.spec(held).get(key) != wanted["spec"].get(key):
                spec[key] = wanted["spec"].get(key)
    asked, is_so = wanted["spec"].get("suspend") is True, view.spec(held).get("suspend") is True
    queued = any(label.startswith("kueue.x-k8s.io/") for label in view.labels(held))
    if asked and not is_so:
        spec["suspend"] = True
    elif is_so and not asked and not queued:  # a queue that holds the child clears this itself
        spec["suspend"] = False
    if not spec:
        return None
    fresh = {key: view.annotations_of(wanted)[key] for key in (HASH, COUNTS)}
    return {"metadata": {"annotations": fresh}, "spec": spec}
