"""Aggregated APIs of an installed controller, which the leader answers: Kueue's visibility API, and the way to members.

The server of the webhooks has its paths in every replica; the leader makes itself the one endpoint of the Service that
the APIServices name, because only the leader knows the order of the queues. Callers are API servers, which say for
which user they ask; that user's rights are asked back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from shoal.api import kinds, members_api
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.cli import member_access
from shoal.cli.admission import ACCOUNT, PORT, VISIBILITY
from shoal.cli.install_certificates import injected
from shoal.cli.install_values import Values
from shoal.cli.install_workload import labelled
from shoal.cli.member_access import MemberAccess, refused
from shoal.controllers.queues import visibility
from shoal.kube import front_proxy
from shoal.kube.admission_review import User
from shoal.kube.client import Client
from shoal.kube.errors import KubeError, NotFound
from shoal.kube.front_proxy import FrontProxies
from shoal.kube.webhooks import WebhookServer

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from shoal.controllers.queues.visibility import PendingWorkloads
    from shoal.kube.writes import Writes

log = logging.getLogger("shoal")

RBAC = "rbac.authorization.k8s.io/v1"
API_SERVICES = tuple(f"{version}.{visibility.GROUP}" for version in visibility.VERSIONS)
MEMBERS = "shoal-members"
"""Role of those who may ask about other clusters: everybody that the API server knows."""
RETRY = 30.0
"""Seconds after which a write that failed is tried again."""


class Visibility:
    """Answers for the controller that `follow` names; 503 where there is none."""

    def __init__(self, address: str = "", members: MemberAccess | None = None) -> None:
        """`address` of this replica, at which the API server reaches it; empty where a URL says it. `members`: what is
        told of other clusters."""
        self._address, self._members = address, members
        self._client: Client | None = None
        self._proxies = FrontProxies()
        self._pending: PendingWorkloads | None = None

    @property
    def api_services(self) -> tuple[str, ...]:
        return (*API_SERVICES, *((member_access.API_SERVICE,) if self._members is not None else ()))

    def follow(self, pending: PendingWorkloads | None) -> None:
        self._pending = pending

    async def serve(self, client: Client, server: WebhookServer) -> None:
        """Take the paths. Before the server is started: from then on it asks callers for their certificates."""
        self._client = client
        try:
            stored = await client.get(kinds.CONFIG_MAP, front_proxy.CONFIG_MAP, front_proxy.NAMESPACE)
            self._proxies = front_proxy.read(stored)
        except (KubeError, msgspec.MsgspecError) as error:
            log.warning("the visibility API is not served: %s", error)
            return
        if not self._proxies.authority:
            log.warning("the visibility API is not served: the API server has no authority for requests of users")
            return
        server.trust(self._proxies.trusted_by)
        for version in visibility.VERSIONS:
            root = f"/apis/{visibility.GROUP}/{version}"
            server.answer(root, self._discovery)
            for queue in ("clusterqueues/{name}", "namespaces/{namespace}/localqueues/{name}"):
                server.answer(f"{root}/{queue}/{visibility.SUBRESOURCE}", self._of_queue)
        if self._members is not None:
            self._members.serve(client, server, self._user)

    async def announce(self, writes: Writes, namespace: str) -> None:
        """While this replica leads: it is the endpoint."""
        if not self._address:
            return
        port = {"name": "https", "port": PORT, "protocol": "TCP"}
        subsets = [{"addresses": [{"ip": self._address}], "ports": [port]}]
        body = {**labelled("v1", "Endpoints", VISIBILITY, namespace), "subsets": subsets}
        while True:
            try:
                try:
                    await writes.client.patch(kinds.ENDPOINTS, VISIBILITY, namespace, {"subsets": subsets})
                except NotFound:
                    await writes.client.create(kinds.ENDPOINTS, body, namespace)
                return
            except KubeError as error:
                log.warning("Endpoints %s: %s (again in %.0f s)", VISIBILITY, error, RETRY)
            await writes.clock.sleep(RETRY)

    async def _discovery(self, request: web.Request) -> web.Response:
        if self._user(request) is None:
            return refused(401, "ask the API server")
        return web.json_response(visibility.discovery(request.path.rstrip("/").rpartition("/")[2]))

    async def _of_queue(self, request: web.Request) -> web.Response:
        user = self._user(request)
        if user is None or self._client is None:
            return refused(401, "ask the API server")
        version = request.path.split("/")[3]
        namespace, name = request.match_info.get("namespace", ""), request.match_info["name"]
        plural = "localqueues" if namespace else "clusterqueues"
        asked = {
            "verb": "get",
            "group": visibility.GROUP,
            "version": version,
            "resource": plural,
            "subresource": visibility.SUBRESOURCE,
            "namespace": namespace,
            "name": name,
        }
        try:
            if not await front_proxy.may(self._client, user, asked):
                what = f"{plural}/{visibility.SUBRESOURCE}.{visibility.GROUP}"
                return refused(403, f"user {user.username} may not get {what} {name!r}")
        except KubeError as error:
            return refused(503, f"the API server does not review the rights of {user.username}: {error}")
        if self._pending is None:
            return refused(503, "this replica does not lead; ask again")
        if namespace:
            found = self._pending.of_local_queue(Key(namespace, name), request.query)
        else:
            found = self._pending.of_cluster_queue(name, request.query)
        if found is None:
            return refused(404, f"{plural}.{visibility.GROUP} {name!r} not found")
        return web.json_response(visibility.summary(version, found))

    def _user(self, request: web.Request) -> User | None:
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        return self._proxies.user(certificate, request.headers)


# --- what is installed for it


def objects(values: Values, namespace: str, url: SplitResult | None = None) -> list[Json]:
    """In the order in which they are applied. `url`: of a controller outside the cluster."""
    made = [_service(namespace, url), *_rights(namespace)]
    made += [_api_service(values, namespace, url, name) for name in API_SERVICES]
    return [*made, *(member_objects(values, namespace, url) if "clusters" in values.only else ())]


def member_objects(values: Values, namespace: str, url: SplitResult | None = None) -> list[Json]:
    """The way to members: every user may ask; what a user is told, the rights over the hub's own objects say."""
    rule = {
        "apiGroups": [members_api.GROUP],
        "resources": [f"{members_api.PLURAL}/{members_api.PROXY}"],
        "verbs": ["get", "create"],
    }
    group = RBAC.partition("/")[0]
    everyone = {"kind": "Group", "apiGroup": group, "name": "system:authenticated"}
    return [
        {**labelled(RBAC, "ClusterRole", MEMBERS, None), "rules": [rule]},
        {
            **labelled(RBAC, "ClusterRoleBinding", MEMBERS, None),
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": MEMBERS},
            "subjects": [everyone],
        },
        _api_service(values, namespace, url, member_access.API_SERVICE),
    ]


def _api_service(values: Values, namespace: str, url: SplitResult | None, name: str) -> Json:
    version, _, group = name.partition(".")
    spec = {
        "group": group,
        "version": version,
        "groupPriorityMinimum": 100,
        "versionPriority": 101 if name == API_SERVICES[-1] else 100,
        "service": {"name": VISIBILITY, "namespace": namespace, "port": (url.port or 443) if url is not None else 443},
    }
    made = {**labelled("apiregistration.k8s.io/v1", "APIService", name, None), "spec": spec}
    return injected(made, namespace) if values.certificates == "cert-manager" else made


def _service(namespace: str, url: SplitResult | None) -> Json:
    """Without a selector: the leader writes its own address there."""
    made = labelled("v1", "Service", VISIBILITY, namespace)
    if url is not None:
        return {**made, "spec": {"type": "ExternalName", "externalName": url.hostname}}
    return {**made, "spec": {"ports": [{"name": "https", "port": 443, "targetPort": PORT}]}}


def _rights(namespace: str) -> list[Json]:
    """To know API servers, to be the endpoint, and to say whose certificate it shows."""
    rules = [
        {"apiGroups": [""], "resources": ["endpoints"], "verbs": ["get", "patch"], "resourceNames": [VISIBILITY]},
        {"apiGroups": [""], "resources": ["endpoints"], "verbs": ["create"]},
    ]
    trusted = {
        "apiGroups": ["apiregistration.k8s.io"],
        "resources": ["apiservices"],
        "verbs": ["get", "patch"],
        "resourceNames": [*API_SERVICES, member_access.API_SERVICE],
    }
    return [
        {**labelled(RBAC, "Role", VISIBILITY, namespace), "rules": rules},
        _bound("RoleBinding", namespace, namespace, "Role", VISIBILITY),
        _bound("RoleBinding", front_proxy.NAMESPACE, namespace, "Role", front_proxy.READER),
        {**labelled(RBAC, "ClusterRole", VISIBILITY, None), "rules": [trusted]},
        _bound("ClusterRoleBinding", None, namespace, "ClusterRole", VISIBILITY),
    ]


def _bound(kind: str, namespace: str | None, account: str, role_kind: str, role: str) -> Json:
    return {
        **labelled(RBAC, kind, VISIBILITY, namespace),
        "roleRef": {"apiGroup": RBAC.partition("/")[0], "kind": role_kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": account}],
    }
