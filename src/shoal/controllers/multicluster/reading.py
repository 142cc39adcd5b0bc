"""What users of the hub may see of their gangs in members: read for them, and nothing else that is there.

The API server of the hub has asked whether the user may read that here; what is read there is what a copy of this hub
is, made, or is told about: found by its marks and by what owns what. Reads only, never a watch; and ports of such pods
are forwarded.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Protocol

import msgspec

from shoal.api import ray_token
from shoal.api.gang import GANG_UID
from shoal.api.labels import KUEUE_MULTIKUEUE_ORIGIN
from shoal.api.meta import Json
from shoal.api.objects import annotation, label
from shoal.controllers.multicluster import words
from shoal.controllers.multicluster.copies import marks
from shoal.controllers.multicluster.member import Member
from shoal.kube.errors import KubeError
from shoal.kube.transport import Request, Response
from shoal.kube.web_socket import relay, web_socket

log = logging.getLogger(__name__)
READABLE = frozenset(
    (
        ("", "pods"),
        ("", "events"),
        ("", "services"),
        ("batch", "jobs"),
        ("ray.io", "rayjobs"),
        ("ray.io", "rayclusters"),
        ("jobset.x-k8s.io", "jobsets"),
        ("kueue.x-k8s.io", "workloads"),
        ("workload.codeflare.dev", "appwrappers"),
        ("mcad.ibm.com", "appwrappers"),
    )
)
OF_PODS = ("log", "portforward")
PLAIN = re.compile(r"(/[A-Za-z0-9][-A-Za-z0-9._:]*)+/?")
"""Paths that every server reads alike."""
SERVED = re.compile(r"/(version|api(/[^/]+)?|apis(/[^/]+){0,2}|openapi/.+)/?")
"""What a server serves: no path but these is asked for with the hub's credential that names no object."""
SECRETS = ("", "secrets")
"""By name alone: the token of a Ray cluster that a gang made."""
FORWARD = "SPDY/3.1+portforward.k8s.io"
"""How ports are forwarded over a WebSocket."""
_JSON = {"content-type": "application/json"}


class MemberObject(msgspec.Struct, frozen=True):
    """What is asked for, as the path says it."""

    group: str
    plural: str
    namespace: str
    name: str = ""
    subresource: str = ""


class MemberPorts:
    """Ports of one pod of this hub's in a member. `secret`: the one in its namespace that lets into its Ray cluster, of
    which the member adds the token by itself; empty where there is none."""

    def __init__(self, member: Member, request: Request, pod: Json) -> None:
        self._member, self._request = member, request
        self.namespace = str(pod["metadata"]["namespace"])
        self.secret = annotation(pod, ray_token.ANNOTATION)

    async def forward(self, socket: Any) -> None:
        """Until either side has ended."""
        try:
            async with web_socket(self._member.client.transport, self._request, FORWARD) as there:
                await relay(socket, there)
        except KubeError as error:
            log.info("cluster %s: %s", self._member.name, error)


Reading = Response | AsyncIterator[bytes] | MemberPorts


class Usable(Protocol):
    origin: str

    def usable(self, name: str) -> Member | None: ...
    def trouble(self, name: str) -> str: ...


class MemberReading:
    """`members`: those of the hub, while this replica leads it."""

    def __init__(self, members: Usable) -> None:
        self._members = members

    async def read(self, cluster: str, request: Request, wanted: MemberObject | None) -> Reading:
        """An answer as a member's API server gives it; bytes as they come for a log, ports to be forwarded. `wanted`
        None: what it serves."""
        member = self._members.usable(cluster)
        if member is None:
            return refusal(503, "ServiceUnavailable", f"cluster {cluster}: {self._members.trouble(cluster)}")
        try:
            if wanted is not None and PLAIN.fullmatch(request.path):
                return await self._object(member, request, wanted)
            if wanted is None and PLAIN.fullmatch(request.path) and SERVED.fullmatch(request.path):
                return await _get(member, request)
            return refusal(403, "Forbidden", f"{request.path} of other clusters is not read through this one")
        except KubeError as error:
            return refusal(502, "ServiceUnavailable", f"cluster {cluster}: {error}")

    async def _object(self, member: Member, request: Request, wanted: MemberObject) -> Reading:
        named = (wanted.group, wanted.plural)
        readable = named in READABLE or (named == SECRETS and wanted.name)
        if not readable or not wanted.namespace or wanted.subresource not in ("", *OF_PODS):
            return refusal(403, "Forbidden", f"{wanted.plural} of other clusters are not read through this one")
        plain = Request(method="GET", path=request.path, query=request.query, headers={"accept": "application/json"})
        if wanted.subresource:
            path = request.path.rpartition("/")[0]
            found = await _get(member, Request(method="GET", path=path, headers=plain.headers))
            pod = _decoded(found)
            if found.status != 200 or wanted.plural != "pods" or not self._belongs(member, pod):
                return _missing(wanted)
            return _stream(member, plain) if wanted.subresource == "log" else MemberPorts(member, plain, pod)
        found = await _get(member, plain)
        if found.status != 200:
            return found
        body = _decoded(found)
        if wanted.name:
            return found if self._belongs(member, body) else _missing(wanted)
        items = body.get("items") or []
        if wanted.plural == "events":
            known = member.uids_in(wanted.namespace)
            body["items"] = [one for one in items if str((one.get("involvedObject") or {}).get("uid")) in known]
        else:
            body["items"] = [one for one in items if self._belongs(member, one)]
        return Response(200, dict(_JSON), msgspec.json.encode(body))

    def _belongs(self, member: Member, obj: Json) -> bool:
        """Is it a copy of this hub's, or below one?"""
        if self._members.origin in (label(obj, words.HUB), label(obj, KUEUE_MULTIKUEUE_ORIGIN)) and marks(obj)[0]:
            return True
        owners = [str(one.get("uid")) for one in obj["metadata"].get("ownerReferences") or ()]
        return any(member.gang_above(uid) for uid in owners) or bool(self._mark(member, obj))

    @staticmethod
    def _mark(member: Member, obj: Json) -> str:
        """Of a pod that names its gang itself, as those of wrapped objects do."""
        mark = annotation(obj, GANG_UID)
        return member.gang_above(mark) if mark else ""


def refusal(code: int, reason: str, message: str) -> Response:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return Response(code, dict(_JSON), msgspec.json.encode({**status, "message": message}))


def _missing(wanted: MemberObject) -> Response:
    return refusal(404, "NotFound", f'{wanted.plural} "{wanted.name}" not found')


async def _get(member: Member, request: Request) -> Response:
    return await member.client.transport.send(
        Request(method="GET", path=request.path, query=request.query, headers={"accept": "application/json"}),
        timeout=member.client.timeout,
    )


def _decoded(found: Response) -> dict[str, Any]:
    body = msgspec.json.decode(found.body)
    return body if isinstance(body, dict) and isinstance(body.get("metadata"), dict) else {"metadata": {}}


async def _stream(member: Member, request: Request) -> AsyncIterator[bytes]:
    async with member.client.transport.stream(request) as stream:
        if stream.status != 200:
            yield await stream.read()
            return
        chunks: Any = aiter(stream)
        async with aclosing(chunks) as bytes_of:
            async for chunk in bytes_of:
                yield chunk
