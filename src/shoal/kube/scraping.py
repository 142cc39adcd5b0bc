"""Who may read metrics: the API server is asked, as kube-rbac-proxy does it.

A scraper shows its bearer token. TokenReview says whose it is, SubjectAccessReview whether that user may `get` this
path (`nonResourceURLs`). Answers are kept for a minute, so that scrapes cost nothing; tokens are kept as digests alone.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from typing import Any

import msgspec

from shoal.api.kinds import SUBJECT_ACCESS_REVIEW, TOKEN_REVIEW
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import KubeError

KEPT, KEPT_REFUSALS = 60.0, 10.0
"""Seconds for which an answer holds."""
MOST_KEPT = 256
LONGEST_TOKEN = 16 * 1024
SECONDS = 5.0
AT_ONCE = 4
"""Reviews that are asked for at the same time: strangers must not keep the API server busy through us."""


class ScrapeRefusal(msgspec.Struct, frozen=True):
    code: int
    message: str


class ScrapeReview:
    """`client` must be allowed to create tokenreviews and subjectaccessreviews."""

    def __init__(self, client: Client, *, clock: Clock | None = None) -> None:
        self._client = client
        self._clock: Clock = clock or SystemClock()
        self._known: OrderedDict[tuple[str, str], tuple[float, ScrapeRefusal | None]] = OrderedDict()
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def refusal(self, authorization: str, path: str) -> ScrapeRefusal | None:
        """Why this request is not answered; None where it may be."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > LONGEST_TOKEN:
            return ScrapeRefusal(401, "show a bearer token of a user that may get this path")
        key = (hashlib.sha256(token.encode(errors="replace")).hexdigest(), path)
        if (known := self._kept(key)) is not None:
            return known[1]
        try:
            async with asyncio.timeout(SECONDS), self._slots:
                if (known := self._kept(key)) is not None:
                    return known[1]
                refusal = await self._review(token, path)
        except TimeoutError:
            return ScrapeRefusal(503, "the API server did not review the token in time")
        except (KubeError, msgspec.MsgspecError) as error:
            return ScrapeRefusal(503, f"the API server does not review the token: {error}")
        kept = KEPT if refusal is None else KEPT_REFUSALS
        self._known[key] = (self._clock.monotonic() + kept, refusal)
        if len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)
        return refusal

    def _kept(self, key: tuple[str, str]) -> tuple[float, ScrapeRefusal | None] | None:
        found = self._known.get(key)
        if found is None or found[0] <= self._clock.monotonic():
            self._known.pop(key, None)
            return None
        return found

    async def _review(self, token: str, path: str) -> ScrapeRefusal | None:
        told = await self._ask(TOKEN_REVIEW, {"token": token})
        if not told.get("authenticated"):
            return ScrapeRefusal(401, "the token is not accepted")
        user = told.get("user") or {}
        spec = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": path, "verb": "get"},
        }
        if (await self._ask(SUBJECT_ACCESS_REVIEW, spec)).get("allowed") is True:
            return None
        return ScrapeRefusal(403, f"user {user.get('username')} may not get {path}: bind the ClusterRole shoal-metrics")

    async def _ask(self, kind: Any, spec: Json) -> Json:
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {}, "spec": spec}
        answer: Json = await self._client.create(kind, body)
        return answer.get("status") or {}
