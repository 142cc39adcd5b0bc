"""What a Ray cluster needs besides pods: Services, the autoscaler's identity, token, certificates, entrance, claim.

Called by the cluster reconciler before it touches pods. Services and tokens are compared on every pass (they are
cached); the rest is made once per generation and looked at again every five minutes, so that what a user deletes
comes back and a plain cluster at rest costs no request.
"""

from __future__ import annotations

import msgspec

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.controllers.ray import names, services, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.cluster import network_policy, pod_group, status
from shoal.controllers.ray.cluster.certificates import ClusterCertificates
from shoal.controllers.ray.owned_writer import OwnedWriter, Stranger, owned_by
from shoal.controllers.ray.pods import auth, autoscaler, fault_tolerance, tls
from shoal.controllers.ray.settings import NETWORK_POLICY, RaySettings
from shoal.controllers.ray.waits import sooner
from shoal.kube.cache import Cache
from shoal.kube.clock import Clock
from shoal.kube.discovery import Discovery
from shoal.kube.errors import ApiError, NotFound
from shoal.kube.events import Recorder

RECHECK = 300.0


class AccountMissing(Stranger):
    """The user named a service account that does not exist."""


class _Made(msgspec.Struct):
    """What was made for one cluster: at which generation, when it was last looked at, and its token."""

    generation: int = -1
    seen: float = 0.0
    token: Json | None = None
    ingress: bool = False


class Belongings:
    def __init__(
        self, writer: OwnedWriter, caches: Caches, recorder: Recorder, settings: RaySettings, clock: Clock
    ) -> None:
        self._writer, self._caches, self._recorder, self._settings = writer, caches, recorder, settings
        self._clock = clock
        self._made: dict[str, _Made] = {}
        self._kinds = Discovery(writer.client)
        self._certificates = ClusterCertificates(writer, caches, recorder, settings, clock)

    async def ensure(self, cluster: Json) -> float | None:
        """Bring it all about. Returns when what is not cached is worth another look."""
        made = self._made.setdefault(view.uid(cluster), _Made())
        left = made.seen + RECHECK - self._clock.monotonic()
        if made.generation != view.generation(cluster) or left <= 0:
            await self._rarely_seen(cluster, made, again=made.generation == view.generation(cluster))
            made.generation, made.seen = view.generation(cluster), self._clock.monotonic()
            left = RECHECK
        if auth.needs_secret(cluster, self._settings):
            await self._token(cluster, made)
        await self._service(cluster, services.head_service(cluster, self._settings))
        if services.wants_headless_service(cluster):
            await self._service(cluster, services.headless_service(cluster))
        if services.wants_serve_service(cluster):
            serve = services.serve_service(cluster)
            if serve is not None:
                await self._service(cluster, serve)
        wait = left if self._has_rarely_seen(cluster) else None
        if tls.enabled(cluster, self._settings):
            wait = sooner(wait, await self._certificates.ensure(cluster))
        return wait

    def _has_rarely_seen(self, cluster: Json) -> bool:
        return (
            view.autoscaling(cluster)
            or view.head(cluster).get("enableIngress") is True
            or bool(network_policy.network_policies(cluster))
            or pod_group.wants_pod_group(cluster, self._settings)
        )

    async def _rarely_seen(self, cluster: Json, made: _Made, *, again: bool) -> None:
        """`again` is a look at what stands already: it is read first, and written only if it is gone or differs."""
        if view.autoscaling(cluster):
            await self._identity(cluster, again)
        await self._ingress(cluster, made, again)
        policies = network_policy.network_policies(cluster)
        for policy in policies:
            await self._follow_part(cluster, kinds.NETWORK_POLICY, policy, "spec", again)
        if self._settings.gate(NETWORK_POLICY) and view.generation(cluster) > 1 and not again:
            await self._open_up(cluster, {view.name(policy) for policy in policies})
        if pod_group.wants_pod_group(cluster, self._settings):
            wanted = pod_group.pod_group(cluster, self._settings)
            await self._follow_part(cluster, pod_group.pod_group_kind(self._settings), wanted, "spec", again)
        claim = fault_tolerance.volume_claim(cluster)
        if claim is not None and not again and await self._create_claim(cluster, claim):
            self._tell(cluster, "CreatedPVC", claim)

    async def _token(self, cluster: Json, made: _Made) -> None:
        """A Secret that a user deleted comes back with the token that the running pods have."""
        wanted = auth.token_secret(cluster)
        held = self._caches.secrets.get(Key(view.namespace(wanted), view.name(wanted)))
        if held is not None and owned_by(held, cluster):
            made.token = held.get("data") or made.token
            return
        if made.token is not None:
            wanted["data"] = made.token
        if await self._create(cluster, kinds.SECRET, wanted, self._caches.secrets):
            if made.token is None and status.condition_status(cluster, status.PROVISIONED) == "True":
                text = (
                    f"Secret {view.name(wanted)} was gone and has a new token now; pods that run keep the old one: "
                    "delete them, or put the old Secret back"
                )
                self._recorder.event(cluster, "Warning", "TokenReplaced", text)
            made.token = wanted["data"]

    def forget(self, uid: str) -> None:
        self._made.pop(uid, None)
        self._certificates.forget(uid)

    def head_service(self, cluster: Json) -> Json | None:
        found = self._caches.services.get(Key(view.namespace(cluster), view.head_service_name(cluster)))
        return found if found is not None and owned_by(found, cluster) else None

    async def _service(self, cluster: Json, wanted: Json) -> None:
        held = self._caches.services.get(Key(view.namespace(wanted), view.name(wanted)))
        if held is None or view.deleting(held):
            if await self._create(cluster, kinds.SERVICE, wanted, self._caches.services):
                self._tell(cluster, "CreatedService", wanted)
            return
        if not owned_by(held, cluster):
            text = (
                f"Service {view.name(wanted)} exists and belongs to another owner; delete or rename it, "
                f"or set spec.headGroupSpec.headService.metadata.name"
            )
            self._recorder.event(cluster, "Warning", "FailedToCreateService", text)
            raise Stranger(text)
        change = service_change(held, wanted)
        if change is None:
            return
        if (held["spec"].get("type") or "ClusterIP") != wanted["spec"]["type"]:
            await self._writer.delete(kinds.SERVICE, held, self._caches.services)  # a cluster IP cannot be changed
            await self._writer.create(kinds.SERVICE, wanted, cluster, self._caches.services)
        else:
            await self._writer.patch(kinds.SERVICE, held, change, self._caches.services)
        self._tell(cluster, "UpdatedService", wanted)

    async def _identity(self, cluster: Json, again: bool) -> None:
        if autoscaler.brings_own_account(cluster):
            account = autoscaler.service_account_name(cluster)
            if await self._stored(kinds.SERVICE_ACCOUNT, account, view.namespace(cluster)) is None:
                message = (
                    f"service account {account!r} of the head does not exist; create it or drop serviceAccountName"
                )
                self._recorder.event(cluster, "Warning", "AutoscalerServiceAccountNotFound", message)
                raise AccountMissing(message)
        else:
            await self._follow_part(cluster, kinds.SERVICE_ACCOUNT, autoscaler.service_account(cluster), "", again)
        await self._follow_part(cluster, kinds.ROLE, autoscaler.role(cluster), "rules", again)
        await self._follow_part(cluster, kinds.ROLE_BINDING, autoscaler.role_binding(cluster), "subjects", again)

    async def _ingress(self, cluster: Json, made: _Made, again: bool) -> None:
        """The Ingress, or on OpenShift the Route. One that is no longer asked for goes: it leads to a dashboard."""
        asked = view.head(cluster).get("enableIngress") is True
        if not asked and not made.ingress and (made.generation >= 0 or view.generation(cluster) <= 1):
            return
        kind = await self._entrance_kind()
        wanted = services.route(cluster) if kind == kinds.ROUTE else services.ingress(cluster)
        if asked and kind == kinds.ROUTE:
            await self._follow_part(cluster, kind, wanted, "spec", again)
            made.ingress = True
        elif asked:
            wanted["spec"] = {"tls": None, "ingressClassName": None, **wanted["spec"]}  # null takes out what was there
            wanted["spec"]["rules"] = [{"host": None, **rule} for rule in wanted["spec"]["rules"]]
            await self._follow_part(cluster, kinds.INGRESS, wanted, "spec", again)
            made.ingress = True
        else:
            held = await self._stored(kind, view.name(wanted), view.namespace(wanted))
            if held is not None and owned_by(held, cluster):
                await self._writer.delete(kind, held)
                told = f"Deleted {kind.kind} {view.name(wanted)}"
                self._recorder.event(cluster, "Normal", f"Deleted{kind.kind}", told)
            made.ingress = False

    async def _entrance_kind(self) -> Kind:
        """Routes where the server has them, which is asked again as long as it has not."""
        if self._settings.ingress_on_openshift:
            return kinds.INGRESS
        return await self._kinds.kind_of(kinds.ROUTE.api_version, kinds.ROUTE.kind) or kinds.INGRESS

    async def _open_up(self, cluster: Json, wanted: set[str]) -> None:
        """A policy that is no longer asked for goes: it keeps others out."""
        labels = f"{names.CLUSTER}={view.name(cluster)},{names.CREATED_BY}={names.OPERATOR}"
        client, namespace = self._writer.client, view.namespace(cluster)
        for held in await client.list(kinds.NETWORK_POLICY, namespace, label_selector=labels):
            if view.name(held) not in wanted and owned_by(held, cluster):
                await self._writer.delete(kinds.NETWORK_POLICY, held)
                self._recorder.event(cluster, "Normal", "DeletedNetworkPolicy", f"Deleted {view.name(held)}")

    async def _follow_part(self, cluster: Json, kind: Kind, wanted: Json, part: str, again: bool) -> None:
        """Create, or bring that part (and the annotations) of what is there to what it should be."""
        name, namespace = view.name(wanted), view.namespace(wanted)
        held = await self._stored(kind, name, namespace) if again else None
        if held is None:
            if await self._create(cluster, kind, wanted):
                self._tell(cluster, f"Created{kind.kind}", wanted)
                return
            held = await self._writer.client.get(kind, name, namespace)
        change: Json = {}
        if part and not covers(held.get(part), wanted[part]):
            change[part] = wanted[part]
        annotations = view.annotations_of(wanted)
        if not covers(view.annotations_of(held), annotations):
            change["metadata"] = {"annotations": annotations}
        if change:
            await self._writer.patch(kind, held, change)
            self._tell(cluster, f"Updated{kind.kind}", wanted)

    async def _stored(self, kind: Kind, name: str, namespace: str) -> Json | None:
        try:
            return dict(await self._writer.client.get(kind, name, namespace))
        except NotFound:
            return None

    async def _create(self, cluster: Json, kind: Kind, wanted: Json, cache: Cache[Json] | None = None) -> bool:
        """Create; a refusal is told on the cluster, by the kind that was refused."""
        try:
            return await self._writer.create(kind, wanted, cluster, cache)
        except (ApiError, Stranger) as error:
            self._recorder.event(cluster, "Warning", f"FailedToCreate{kind.kind}", str(error))
            raise

    async def _create_claim(self, cluster: Json, claim: Json) -> bool:
        """A claim that outlived an earlier cluster (policy Retain) is used again."""
        try:
            return await self._writer.create(kinds.PERSISTENT_VOLUME_CLAIM, claim, cluster)
        except Stranger:
            return False
        except ApiError as error:
            self._recorder.event(cluster, "Warning", "FailedToCreatePVC", str(error))
            raise

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
    if set(ports) != set(wanted_ports) or not all(covers(ports[name], port) for name, port in wanted_ports.items()):
        change["ports"] = [{**_node_port(ports.get(name)), **port} for name, port in wanted_ports.items()]
    if (held["spec"].get("selector") or {}) != spec.get("selector"):
        change["selector"] = {**dict.fromkeys(held["spec"].get("selector") or {}), **spec["selector"]}
    annotations = wanted["metadata"].get("annotations") or {}
    result: Json = {"spec": change} if change else {}
    if not covers(view.annotations_of(held), annotations):
        result["metadata"] = {"annotations": annotations}
    return result or None


def _node_port(port: Json | None) -> Json:
    return {"nodePort": port["nodePort"]} if port and port.get("nodePort") else {}


def covers(held: object, wanted: object) -> bool:
    """Everything wanted is there; what the server added does not matter."""
    if isinstance(wanted, dict) and isinstance(held, dict):
        return all(covers(held.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(held, list):
        return len(wanted) == len(held) and all(map(covers, held, wanted))
    return held == wanted
