"""The embedded API server: one object that owns the storage, the registry and the verbs, and answers requests.

`handle` is the whole server without sockets: the in-process transport and the HTTPS front both end there, so both
have the same semantics and the same checks. Whatever a request holds, it gets an answer; nothing in one ends the
process.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from shoal.errors import ShoalError
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.transport import Request, Response, Transport
from shoal.local.apiserver import bootstrap
from shoal.local.apiserver.admission.plugins import AdmissionPlugins
from shoal.local.apiserver.admission.quota_status import QuotaUsage
from shoal.local.apiserver.admission.webhooks import Webhooks
from shoal.local.apiserver.auth import gate
from shoal.local.apiserver.auth.authentication import ADMIN, Authenticator, impersonated, with_authenticated
from shoal.local.apiserver.auth.authorization import MASTERS, Action, Authorizer, denied
from shoal.local.apiserver.auth.certificates import ServerIdentity
from shoal.local.apiserver.auth.kubeconfig import dialled, kubeconfig
from shoal.local.apiserver.auth.reviews import Reviews
from shoal.local.apiserver.auth.tokens import Tokens
from shoal.local.apiserver.crd.conversion import Converter
from shoal.local.apiserver.crd.serving import CustomKinds
from shoal.local.apiserver.http import heavy
from shoal.local.apiserver.http.audit import AuditLog
from shoal.local.apiserver.http.discovery import KUBERNETES_VERSION, DiscoveryDocuments
from shoal.local.apiserver.http.inprocess import LocalTransport
from shoal.local.apiserver.http.presentation import PLAIN, Presenter, negotiate
from shoal.local.apiserver.kinds.resources import Registry
from shoal.local.apiserver.openapi.documents import OpenApi
from shoal.local.apiserver.primitives.status import (
    Refused,
    forbidden,
    internal,
    method_not_allowed,
    no_such_resource,
    out_of_space,
    page_not_found,
    too_large,
    unauthorized,
    unavailable,
)
from shoal.local.apiserver.requests import route as routes
from shoal.local.apiserver.requests.body import MOST_BYTES
from shoal.local.apiserver.requests.call import JSON_HEADERS, Answer, Call, StreamAnswer, Upgrade, object_answer
from shoal.local.apiserver.requests.hooks import HookCaller
from shoal.local.apiserver.requests.route import RequestUser, Route
from shoal.local.apiserver.storage.store import Durability, Storage, WriteFailed
from shoal.local.apiserver.streams import portforward, terminals
from shoal.local.apiserver.streams.portforward import Connect
from shoal.local.apiserver.streams.terminals import Start
from shoal.local.apiserver.upkeep import Upkeep
from shoal.local.apiserver.validation.checks import Checks
from shoal.local.apiserver.verbs.deleting import DeleteVerbs
from shoal.local.apiserver.verbs.reading import ReadVerbs
from shoal.local.apiserver.verbs.subresources import LogSource, Subresources, Terminal
from shoal.local.apiserver.verbs.system_writes import SystemWrites
from shoal.local.apiserver.verbs.writing import WriteVerbs

if TYPE_CHECKING:
    from shoal.local.apiserver.http.front import Front

log = logging.getLogger(__name__)

PUBLIC_PATHS = frozenset(("/healthz", "/livez", "/readyz", "/version", "/version/"))


class PortsElsewhere(Protocol):
    """Ports of a pod in another cluster, which adds the token of the Secret to requests for a Ray dashboard."""

    namespace: str
    secret: str

    async def forward(self, socket: Any) -> None: ...


OwnPath = Callable[[Request, RequestUser], Awaitable[Response]]
OwnGroup = Callable[[Request, Route | None], Awaitable[Response]]
OtherCluster = Callable[[str, Request, Route | None], Awaitable[Response | AsyncIterator[bytes] | PortsElsewhere]]
CLUSTERS = "/clusters/"
"""Below it and the name of another cluster, that one is read as if it stood here."""
_WRITTEN_AS_OBJECT = frozenset(("status", "finalize", "ephemeralcontainers", "resize"))


class Server:
    """`state_dir` None keeps everything in memory. `hosts` are names and addresses clients may use besides loopback.

    `audit_log` names a file that every request is written to.
    """

    def __init__(
        self,
        state_dir: Path | str | None = None,
        *,
        clock: Clock | None = None,
        durability: Durability = "full",
        chance: random.Random | None = None,
        hosts: tuple[str, ...] = (),
        extended_resource_toleration: bool = True,
        audit_log: Path | str | None = None,
    ) -> None:
        self.directory = Path(state_dir) if state_dir is not None else None
        self.clock: Clock = clock or SystemClock()
        self.chance = chance or random.Random()
        self.hosts = hosts
        self.storage = Storage(self.directory, durability)
        self._extended_resource_toleration = extended_resource_toleration
        self._audit = AuditLog(Path(audit_log), self.clock) if audit_log else None
        self._fronts: list[Front] = []
        self._upkeep: Upkeep | None = None
        self._quota_status: QuotaUsage | None = None
        self.address: tuple[str, int] | None = None
        self.own_paths: dict[str, OwnPath] = {}
        """Paths that are no resources, for users that the server has told apart; what else runs here answers them."""
        self.own_groups: dict[str, OwnGroup] = {}
        """API groups without stored objects; what else runs here answers them, without a route their discovery."""
        self.other_clusters: OtherCluster | None = None
        """Reads what gangs of this cluster have in others, once the user's rights were asked for here."""
        self.ready = False

    # --- life

    async def start(self) -> None:
        """Open the storage, serve what is in it, create what every cluster has."""
        self.storage.open()
        try:
            await self._start()
        except BaseException:
            await self.storage.close()  # the next start must find the directory free
            raise

    async def _start(self) -> None:
        self.identity = ServerIdentity(self.directory, self.hosts)
        self.registry = Registry(self.storage)
        self.authorizer = Authorizer(self.registry)
        self.tokens = Tokens(self.registry, self.clock, self.identity.token_key)
        self.authenticator = Authenticator(self.tokens, self.identity.admin_token)
        self.hook_caller = HookCaller(self.registry)
        checks = Checks(self.clock)
        self.webhooks = Webhooks(self.registry, self.hook_caller, checks.settle)
        self.converter = Converter(self.hook_caller)
        self.custom_kinds = CustomKinds(self.storage, self.registry, self.clock)
        self.admission = AdmissionPlugins(
            self.registry,
            self.chance,
            self.webhooks,
            self.custom_kinds,
            self.authorizer,
            extended_resource_toleration=self._extended_resource_toleration,
        )
        self.reader = ReadVerbs(self.storage, self.clock, self.converter.encoded)
        self.writer = WriteVerbs(self.storage, self.clock, self.chance, self.admission, checks, self.converter)
        self.deleter = DeleteVerbs(self.storage, self.clock, self.admission, self.converter)
        self.subresources = Subresources(
            self.registry, self.clock, self.writer, self.deleter, self.tokens, self.authorizer
        )
        self.reviews = Reviews(self.authorizer, self.authenticator)
        self.discovery = DiscoveryDocuments(self.registry)
        self.openapi = OpenApi(self.registry)
        self.presenter = Presenter(self.clock)
        self.beside = heavy.Beside()
        self._system = system = SystemWrites(self.registry, self.writer, self.deleter)
        self.custom_kinds.empty = system.delete_all
        self.custom_kinds.finish = system.release_definition
        self.custom_kinds.load()
        await asyncio.gather(*(system.ensure(obj) for obj in bootstrap.objects(self.registry)))  # one commit for all
        self._upkeep = Upkeep(self.storage, self.registry, self.clock)
        self._upkeep.start()
        self._quota_status = QuotaUsage(self.registry, system.write_quota_status)
        self._quota_status.start()
        self.ready = True

    async def serve(self, host: str = "127.0.0.1", port: int = 0, listener: socket.socket | None = None) -> int:
        """Listen with TLS, on a socket that was bound elsewhere if one is given; returns the port."""
        from shoal.local.apiserver.http.front import Front  # a server without sockets needs none of it

        front = Front(self, self.identity.server_context())
        found = await front.start(host, port, listener)
        self._fronts.append(front)
        self.address = (host, found)
        for obj in bootstrap.own_address(dialled(host), found):
            await self._system.put(obj)
        return found

    async def stop(self) -> None:
        """End the watches, close the sockets, make everything durable."""
        self.ready = False
        if hasattr(self, "reader"):
            self.reader.stop()
        for front in self._fronts:
            await front.stop()
        self._fronts.clear()
        if self._upkeep is not None:
            await self._upkeep.stop()
        if self._quota_status is not None:
            await self._quota_status.stop()
        if hasattr(self, "custom_kinds"):
            await self.custom_kinds.stop()
            await self.hook_caller.close()
            self.beside.close()
        await self.storage.close()
        if self._audit is not None:
            self._audit.close()

    # --- ways in

    def transport(self, user: str = ADMIN, groups: tuple[str, ...] = (MASTERS,)) -> Transport:
        """The same server without sockets, as this user."""
        return LocalTransport(self, with_authenticated(RequestUser(user, tuple(groups))))

    def write_kubeconfig(
        self,
        path: Path | str,
        *,
        user: str = ADMIN,
        groups: tuple[str, ...] = (MASTERS,),
        namespace: str = "default",
        server: str = "",
        context: str = "shoal",
    ) -> None:
        """A kubeconfig (mode 0600) with a client certificate for this user; the administrator's has its token too."""
        if self.address is None:
            raise ShoalError("the server has no address yet; call serve() before write_kubeconfig()")
        host, port = self.address
        kubeconfig(
            Path(path),
            self.identity,
            server or f"https://{dialled(host)}:{port}",
            user,
            tuple(groups),
            namespace,
            context,
        )

    def set_log_source(self, source: LogSource | None) -> None:
        """Who answers `kubectl logs`."""
        self.subresources.log_source = source

    def set_terminal(self, subresource: str, terminal: Terminal | None) -> None:
        """Who answers `exec` or `attach`."""
        if terminal is None:
            self.subresources.terminals.pop(subresource, None)
        else:
            self.subresources.terminals[subresource] = terminal

    def set_exec(self, start: Start | None) -> None:
        """Who starts programs in pods, for `kubectl exec`."""
        self.set_terminal("exec", partial(terminals.run, start) if start is not None else None)

    def set_attach(self, start: Start | None) -> None:
        """Who shows what a container prints, for `kubectl attach`."""
        self.set_terminal("attach", partial(terminals.run, start, attaching=True) if start is not None else None)

    def set_port_forward(self, connect: Connect) -> None:
        """How ports of pods are reached, for `kubectl port-forward`; at the pod's address unless told otherwise."""
        self.subresources.connect = connect

    # --- requests

    async def handle(self, request: Request, user: RequestUser | None) -> Answer:
        """Answer one request. Header names are in lower case. Never raises for anything that a client sent."""
        if self._audit is None:
            return await self._safely(request, user)
        return await self._audit.around(request, user, partial(self._safely, request, user))

    async def _safely(self, request: Request, user: RequestUser | None) -> Answer:
        try:
            try:
                return await self._answer(request, user)
            except Refused as refusal:
                if request.method not in ("GET", "HEAD"):
                    await self.storage.settled()
                return _refused(refusal)
        except WriteFailed as error:
            return _refused(out_of_space(str(error)) if error.full else unavailable(str(error)))
        except Exception as error:  # this loop owns the request: a fault in ours must not end the others
            log.exception("%s %s failed", request.method, request.path)
            return _refused(internal(f"{type(error).__name__}: {error}"))

    async def _answer(self, request: Request, user: RequestUser | None) -> Answer:
        if request.path in PUBLIC_PATHS and request.method in ("GET", "HEAD"):
            return self._public(request)
        if user is None:
            raise unauthorized()
        if len(request.body) > MOST_BYTES:
            raise too_large(MOST_BYTES)
        user = impersonated(user, request.headers, self.authorizer)
        if (own := self.own_paths.get(request.path)) is not None:
            if request.method != "POST":
                raise method_not_allowed()
            return await own(request, user)
        if request.path.startswith(CLUSTERS) and self.other_clusters is not None:
            return await self._elsewhere(request, user, self.other_clusters)
        route = routes.parse(request)
        group = self.own_groups.get(_group_of(request) if route is None else route.group)
        if route is None:
            return await group(request, None) if group is not None else self._document(request, user)
        gate.authorize(self.authorizer, user, route, request)
        if group is not None:
            return await group(request, route)
        resource = self.registry.find(route.group, route.plural)
        version = resource.versions.get(route.version) if resource is not None else None
        if resource is None or version is None or not version.served:
            raise self._unknown(route)
        wanted = negotiate(request.headers.get("accept", ""), kept="get" in resource.verbs)
        call = Call(request, user, route, resource, version)
        gate.check(call)
        if len(request.body) > heavy.SMALL_YAML:
            await self.beside.prepare(call)
        answer = await self._dispatch(call)
        if wanted is not PLAIN:
            present = partial(self.presenter.present, call, answer, wanted)
            large = isinstance(answer, Response) and len(answer.body) > heavy.SMALL
            answer = await self.beside.run(present) if large else present()
        if version.warning:
            call.warnings.append(version.warning)
        if call.warnings and isinstance(answer, Response):
            answer.headers["warning"] = "\n".join(f'299 - "{_quoted(text)}"' for text in call.warnings[:20])
        return answer

    async def _elsewhere(self, request: Request, user: RequestUser, read: OtherCluster) -> Answer:
        """The same rights as for the same request here; reads alone, and ports that are forwarded."""
        cluster, slash, rest = request.path.removeprefix(CLUSTERS).partition("/")
        there = msgspec.structs.replace(request, path=slash + rest)
        route = routes.parse(there)
        forwards = route is not None and route.subresource == "portforward" and route.verb in ("get", "create")
        if not forwards and (request.method != "GET" or (route is not None and route.verb not in ("get", "list"))):
            raise method_not_allowed()
        if route is not None:
            gate.authorize(self.authorizer, user, route, there)
        found = await read(cluster, there, route)
        if isinstance(found, Response):
            return found
        if isinstance(found, AsyncIterator):
            return StreamAnswer(found, {"content-type": "text/plain"})
        if found.secret:
            gate.require(self.authorizer, user, Action("get", "", "secrets", "", found.namespace, found.secret))
        return Upgrade(found.forward, (portforward.PROTOCOL,))

    async def _dispatch(self, call: Call) -> Answer:
        route = call.route
        if route.subresource and route.subresource not in _WRITTEN_AS_OBJECT:
            return await self.subresources.answer(call)
        match route.verb:
            case "get":
                return await self.reader.get(call)
            case "list":
                return await self.reader.listing(call)
            case "watch":
                return await self.reader.watch(call)
            case "create":
                if call.resource.group in ("authentication.k8s.io", "authorization.k8s.io"):
                    return self.reviews.answer(call)
                if call.resource.plural == "bindings":
                    return await self.subresources.bind_named(call)
                return await self.writer.create(call)
            case "update":
                return await self.writer.update(call)
            case "patch":
                return await self.writer.patch(call)
            case "delete":
                return await self.deleter.delete(call)
            case "deletecollection":
                return await self.deleter.delete_collection(call)
        raise method_not_allowed()

    def _unknown(self, route: Route) -> Refused:
        known = self.registry.groups().get(route.group, ())
        built_in = any(not one.custom for one in self.registry.all() if one.group == route.group)
        return no_such_resource() if route.version in known and built_in else page_not_found()

    def _public(self, request: Request) -> Answer:
        if request.path.startswith("/version"):
            return object_answer(KUBERNETES_VERSION)
        if not self.ready or (self.storage.broken and request.path == "/readyz"):
            return Response(500, {"content-type": "text/plain"}, (self.storage.broken or "not ready").encode())
        return Response(200, {"content-type": "text/plain; charset=utf-8"}, b"ok")

    def _document(self, request: Request, user: RequestUser) -> Answer:
        """Discovery and other paths that are no resources."""
        action = Action("get" if request.method in ("GET", "HEAD") else request.method.lower(), path=request.path)
        if not self.authorizer.allowed(user, action):
            raise forbidden("", "", "", denied(user, action))
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        found = self.discovery.answer(request.path, request.headers.get("accept", ""))
        if found is not None:
            return Response(200, {"content-type": found[1]}, msgspec.json.encode(found[0]))
        if request.path.startswith("/openapi/"):
            return self._openapi(request)
        if request.path == "/":
            return object_answer(
                {"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]}
            )
        raise page_not_found()

    def _openapi(self, request: Request) -> Answer:
        found = self.openapi.encoded(request.path, request.headers.get("accept", ""))
        if found is None:
            raise no_such_resource()
        headers = {"content-type": found.content_type, "vary": "Accept", "etag": found.tag}
        if request.headers.get("if-none-match") == found.tag:
            return Response(304, headers, b"")
        return Response(200, headers, found.body)


def _refused(refusal: Refused) -> Response:
    return Response(refusal.code, {**JSON_HEADERS, **refusal.headers}, refusal.encoded())


def _quoted(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable()).replace("\\", "\\\\").replace('"', '\\"')[:512]


def _group_of(request: Request) -> str:
    """The API group whose discovery a path asks for; empty for any other path."""
    parts = request.path.split("/")
    return parts[2] if len(parts) > 2 and parts[1] == "apis" else ""
