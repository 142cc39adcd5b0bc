"""Admission and conversion webhooks: the HTTPS server that an API server calls.

A handler is a pure function of one request: it reads no secrets and asks no server, because any client that reaches the
port may call it. Whatever a handler does, every call is answered within the size and time limits.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from shoal.api.meta import Json
from shoal.errors import ShoalError
from shoal.kube.admission_review import AdmissionRequest, AdmissionVerdict
from shoal.kube.certificates import Pair
from shoal.kube.kubeconfig import load_pair

log = logging.getLogger(__name__)

SIZE_LIMIT = 8 * 1024 * 1024
QUIET = 1.0
LONGEST_LEAVE = 8.0
"""Seconds; within the time that a pod has to end."""
TIME_LIMIT = 8.0
"""Seconds; API servers wait ten by default."""


class _Review(msgspec.Struct, rename="camel", frozen=True):
    api_version: str
    kind: str
    request: AdmissionRequest


class _ConversionRequest(msgspec.Struct, rename="camel", frozen=True):
    uid: str
    desired_api_version: str = msgspec.field(name="desiredAPIVersion", default="")
    objects: list[dict[str, Any]] = []


class _ConversionReview(msgspec.Struct, rename="camel", frozen=True):
    api_version: str
    kind: str
    request: _ConversionRequest


Admit = Callable[[AdmissionRequest], AdmissionVerdict | Awaitable[AdmissionVerdict]]
Convert = Callable[[Json, str], Json]


class WebhookServer:
    """Handlers by path, over TLS whose certificate can be replaced while serving."""

    def __init__(self) -> None:

        @web.middleware
        async def answering(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._answering(request, handler)

        self._app = web.Application(client_max_size=SIZE_LIMIT, middlewares=[answering])
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._runner: web.AppRunner | None = None
        self._called = asyncio.Event()
        self._leaves = False
        self.port = 0

    def admit(self, path: str, handler: Admit) -> None:
        """Validate or mutate at this path."""

        async def answer(request: web.Request) -> web.Response:
            return await _answer(request, _Review, lambda review: _admission(handler, review))

        self._app.router.add_post(path, answer)

    def convert(self, path: str, handler: Convert) -> None:
        """Convert objects at this path: `handler(object, desired apiVersion)`, which must not touch metadata names."""

        async def answer(request: web.Request) -> web.Response:
            return await _answer(request, _ConversionReview, lambda review: _conversion(handler, review))

        self._app.router.add_post(path, answer)

    def answer(
        self, path: str, handler: Callable[[web.Request], Awaitable[web.StreamResponse]], *, posts: bool = False
    ) -> None:
        """Answer GET requests at this path, for clients other than API servers; `posts`: POST requests, too."""
        self._app.router.add_get(path, handler)
        if posts:
            self._app.router.add_post(path, handler)

    def trust(self, add: Callable[[ssl.SSLContext], None]) -> None:
        """Let callers show certificates of an authority that `add` names, before the start."""
        add(self._tls)

    def present(self, leaf: Pair) -> None:
        """Use this certificate for connections from now on."""
        load_pair(self._tls, leaf.certificate, leaf.key, "the webhook certificate")

    async def start(self, host: str = "0.0.0.0", port: int = 9443) -> int:
        self._runner = web.AppRunner(self._app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=self._tls)
        await site.start()
        self.port = int(self._runner.addresses[0][1])
        return self.port

    async def leave(self, quiet: float = QUIET, longest: float = LONGEST_LEAVE) -> None:
        """For a replica that ends: go on answering, on each connection once more, until no call has come for `quiet`
        seconds. API servers keep connections, and hear of the end of a replica a moment later."""
        self._leaves = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest):
                while True:
                    self._called.clear()
                    await asyncio.wait_for(self._called.wait(), quiet)

    async def _answering(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._called.set()
        response = await handler(request)
        if self._leaves:
            response.force_close()
        return response

    async def stop(self) -> None:
        """Finish the calls in work, accept no more."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


async def _answer(request: web.Request, type: Any, decide: Callable[[Any], Awaitable[Json]]) -> web.Response:
    body = await request.read()
    try:
        review = msgspec.json.decode(body, type=type)
    except msgspec.MsgspecError as error:
        return web.Response(status=400, text=f"not a review: {error}")
    answer = {"apiVersion": review.api_version, "kind": review.kind, "response": await decide(review)}
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


async def _admission(handler: Admit, review: _Review) -> Json:
    asked = review.request
    try:
        verdict = handler(asked)
        if isinstance(verdict, Awaitable):
            verdict = await asyncio.wait_for(verdict, TIME_LIMIT)
    except Exception as error:  # this call owns its request: others must not suffer
        log.exception("the webhook failed on %s %s/%s", asked.kind.kind, asked.namespace, asked.name)
        verdict = AdmissionVerdict(False, f"the webhook of Shoal failed: {error}", 500, "InternalError")
    response: Json = {"uid": asked.uid, "allowed": verdict.allowed}
    if verdict.warnings:
        response["warnings"] = [warning[:256] for warning in verdict.warnings]
    if not verdict.allowed:
        response["status"] = {
            "status": "Failure",
            "message": verdict.message,
            "reason": verdict.reason,
            "code": verdict.code,
        }
    elif verdict.changed is not None and asked.object is not None:
        steps = json_patch(asked.object, verdict.changed)
        if steps:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(msgspec.json.encode(steps)).decode()
    return response


async def _conversion(handler: Convert, review: _ConversionReview) -> Json:
    asked = review.request
    converted = []
    for obj in asked.objects:
        try:
            converted.append(handler(obj, asked.desired_api_version))
        except (ShoalError, msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError) as error:
            name = (obj.get("metadata") or {}).get("name", "")
            message = f"{obj.get('apiVersion')} {name} cannot become {asked.desired_api_version}: {error}"
            return {"uid": asked.uid, "result": {"status": "Failure", "message": message}, "convertedObjects": []}
    return {"uid": asked.uid, "result": {"status": "Success"}, "convertedObjects": converted}


def json_patch(old: Any, new: Any, path: str = "") -> list[Json]:
    """Steps from `old` to `new`. Lists are replaced whole: admission must not depend on positions."""
    if isinstance(old, dict) and isinstance(new, dict):
        steps: list[Json] = []
        for name in sorted(old.keys() | new.keys()):
            where = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
            if name not in new:
                steps.append({"op": "remove", "path": where})
            elif name not in old:
                steps.append({"op": "add", "path": where, "value": new[name]})
            else:
                steps += json_patch(old[name], new[name], where)
        return steps
    return [] if old == new else [{"op": "replace", "path": path, "value": new}]
