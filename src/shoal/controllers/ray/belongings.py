"""What a Ray cluster needs besides pods: Services, the autoscaler's identity, token, Ingress, claim.

Called by the cluster reconciler before it touches pods. Services are compared on every pass (they are cached); the
rest is made once per generation, so a cluster at rest costs no request.
"""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.controllers.ray import auth, autoscaler, fault_tolerance, network_policy, pod_group, services, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.settings import Settings
from shoal.controllers.ray.writes import Stranger, Writes, owned_by
from shoal.kube.errors import NotFound
from shoal.kube.events import Recorder


class AccountMissing(Stranger):
    """The user named a service account that does not exist."""


class Belongings:
    def __init__(self, writes: Writes, caches: Caches, recorder: Recorder, settings: Settings) -> None:
        self._writes, self._caches, self._recorder, self._settings = writes, caches, recorder, settings
        self._made: dict[str, int] = {}

    async def ensure(self, cluster: Json) -> None:
        if self._made.get(view.uid(cluster)) != view.generation(cluster):
            if view.autoscaling(cluster):
                await self._identity(cluster)
            if view.head(cluster).get("enableIngress") is True:
                await self._ingress(cluster)
            if auth.needs_secret(cluster, self._settings):
                await self._writes.create(kinds.SECRET, auth.token_secret(cluster), cluster)
            for policy in network_policy.network_policies(cluster):
                await self._follow_part(cluster, kinds.NETWORK_POLICY, policy, "spec")
            if pod_group.wants_pod_group(cluster, self._settings):
                await self._follow_part(cluster, kinds.POD_GROUP, pod_group.pod_group(cluster, self._settings), "spec")
            claim = fault_tolerance.volume_claim(cluster)
            if claim is not None and await self._create_claim(claim):
                self._tell(cluster, "CreatedPVC", claim)
            self._made[view.uid(cluster)] = view.generation(cluster)
        await self._service(cluster, services.head_service(cluster, self._settings))
        if services.wants_headless_service(cluster):
            await self._service(cluster, services.headless_service(cluster))
        if services.wants_serve_service(cluster):
            serve = services.serve_service(cluster)
            if serve is not None:
                await self._service(cluster, serve)

    def forget(self, uid: str) -> None:
        self._made.pop(uid, None)

    def head_service(self, cluster: Json) -> Json | None:
        found = self._caches.services.get(Key(view.namespace(cluster), view.head_service_name(cluster)))
        return found if found is not None and owned_by(found, cluster) else None

    async def _service(self, cluster: Json, wanted: Json) -> None:
        held = self._caches.services.get(Key(view.namespace(wanted), view.name(wanted)))
        if held is None or view.deleting(held):
            if await self._writes.create(kinds.SERVICE, wanted, cluster, self._caches.services):
                self._tell(cluster, "CreatedService", wanted)
            return
        if not owned_by(held, cluster):
            raise Stranger(
                f"Service {view.name(wanted)} exists and belongs to someone else; delete or rename it, "
                f"or set spec.headGroupSpec.headService.metadata.name"
            )
        change = service_change(held, wanted)
        if change is None:
            return
        if (held["spec"].get("type") or "ClusterIP") != wanted["spec"]["type"]:
            await self._writes.delete(kinds.SERVICE, held, self._caches.services)  # a cluster IP cannot be changed
            await self._writes.create(kinds.SERVICE, wanted, cluster, self._caches.services)
        else:
            await self._writes.patch(kinds.SERVICE, held, change, self._caches.services)
        self._tell(cluster, "UpdatedService", wanted)

    async def _identity(self, cluster: Json) -> None:
        if autoscaler.brings_own_account(cluster):
            account = autoscaler.service_account_name(cluster)
            try:
                await self._writes.client.get(kinds.SERVICE_ACCOUNT, account, view.namespace(cluster))
            except NotFound:
                message = (
                    f"service account {account!r} of the head does not exist; create it or drop serviceAccountName"
                )
                self._recorder.event(cluster, "Warning", "AutoscalerServiceAccountNotFound", message)
                raise AccountMissing(message) from None
        elif await self._writes.create(kinds.SERVICE_ACCOUNT, autoscaler.service_account(cluster), cluster):
            self._tell(cluster, "CreatedServiceAccount", autoscaler.service_account(cluster))
        await self._follow_part(cluster, kinds.ROLE, autoscaler.role(cluster), "rules")
        if await self._writes.create(kinds.ROLE_BINDING, autoscaler.role_binding(cluster), cluster):
            self._tell(cluster, "CreatedRoleBinding", autoscaler.role_binding(cluster))

    async def _ingress(self, cluster: Json) -> None:
        wanted = services.ingress(cluster)
        if await self._writes.create(kinds.INGRESS, wanted, cluster):
            self._tell(cluster, "CreatedIngress", wanted)
            return
        held = await self._writes.client.get(kinds.INGRESS, view.name(wanted), view.namespace(wanted))
        if not _covers(held.get("spec") or {}, wanted["spec"]):
            change = {"spec": wanted["spec"], "metadata": {"annotations": wanted["metadata"]["annotations"]}}
            await self._writes.client.patch(kinds.INGRESS, view.name(wanted), view.namespace(wanted), change)
            self._tell(cluster, "UpdatedIngress", wanted)

    async def _follow_part(self, cluster: Json, kind: Kind, wanted: Json, part: str) -> None:
        """Create, or bring that part of what is there to what it should be."""
        if await self._writes.create(kind, wanted, cluster):
            self._tell(cluster, f"Created{kind.kind}", wanted)
            return
        held = await self._writes.client.get(kind, view.name(wanted), view.namespace(wanted))
        if not _covers(held.get(part), wanted[part]):
            change = {part: wanted[part]}
            await self._writes.client.patch(kind, view.name(wanted), view.namespace(wanted), change)
            self._tell(cluster, f"Updated{kind.kind}", wanted)

    async def _create_claim(self, claim: Json) -> bool:
        """A claim that outlived an earlier cluster (policy Retain) is used again."""
        owner: Json = {"metadata": {"uid": "", "name": view.name(claim)}, "kind": "RayCluster"}
        for reference in view.metadata(claim).get("ownerReferences") or []:
            owner["metadata"]["uid"] = reference["uid"]
        try:
            return await self._writes.create(kinds.PERSISTENT_VOLUME_CLAIM, claim, owner)
        except Stranger:
            return False

    def _tell(self, cluster: Json, reason: str, made: Json) -> None:
        verb = "Updated" if reason.startswith("Updated") else "Created"
        self._recorder.event(
            cluster, "Normal", reason, f"{verb} {made['kind']} {view.namespace(made)}/{view.name(made)}"
        )


def service_change(held: Json, wanted: Json) -> Json | None:
    """What differs between a Service and what it should be, as a patch; None when nothing does."""
    spec, change = wanted["spec"], {}
    if (held["spec"].get("type") or "ClusterIP") != spec["type"]:
        change["type"] = spec["type"]
    ports = {str(port.get("name")): port for port in held["spec"].get("ports") or []}
    wanted_ports = {str(port.get("name")): port for port in spec.get("ports") or []}
    if set(ports) != set(wanted_ports) or not all(_covers(ports[name], port) for name, port in wanted_ports.items()):
        change["ports"] = [{**_node_port(ports.get(name)), **port} for name, port in wanted_ports.items()]
    if (held["spec"].get("selector") or {}) != spec.get("selector"):
        change["selector"] = {**dict.fromkeys(held["spec"].get("selector") or {}), **spec["selector"]}
    annotations = wanted["metadata"].get("annotations") or {}
    result: Json = {"spec": change} if change else {}
    if not _covers(view.annotations_of(held), annotations):
        result["metadata"] = {"annotations": annotations}
    return result or None


def _node_port(port: Json | None) -> Json:
    return {"nodePort": port["nodePort"]} if port and port.get("nodePort") else {}


def _covers(held: object, wanted: object) -> bool:
    """Everything wanted is there; what the server added does not matter."""
    if isinstance(wanted, dict) and isinstance(held, dict):
        return all(_covers(held.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(held, list):
        return len(wanted) == len(held) and all(map(_covers, held, wanted))
    return held == wanted
