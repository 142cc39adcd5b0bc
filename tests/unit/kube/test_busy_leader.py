"""A leader whose event loop is busy with a long plan stays the leader; one that stands still does not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec
import pytest

from shoal.api.meta import Json
from shoal.kube import lease
from shoal.kube.client import Client
from shoal.kube.lease import Leadership, LeaseSettings, Term
from shoal.kube.transport import Request, Response, Stream
from tests.faults import proven

SETTINGS = LeaseSettings(3.0)
BUSY = 2 * SETTINGS.hold
"""Seconds; renewals have a third of it to come through on a loaded machine."""


class OneLease:
    """An API server with one Lease, for clients of several threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.stored: Json = {}
        self.renewed_by: list[str] = []

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        with self._guard:
            if request.method == "GET" and not self.stored:
                return Response(404, {}, msgspec.json.encode({"kind": "Status", "code": 404, "reason": "NotFound"}))
            if request.method in ("POST", "PUT"):
                self.stored = msgspec.json.decode(request.body)
                revision = str(len(self.renewed_by) + 1)
                self.stored["metadata"] |= {"resourceVersion": revision, "uid": "u"}
                self.renewed_by.append(threading.current_thread().name)
            return Response(200, {}, msgspec.json.encode(self.stored))

    def stream(self, request: Request, *, idle_timeout: float | None = None) -> AbstractAsyncContextManager[Stream]:
        raise AssertionError("a lease is not watched")

    async def close(self) -> None: ...

    @asynccontextmanager
    async def nearby(self) -> AsyncIterator[Client]:
        yield Client(self)


async def _led(server: OneLease, busy: float) -> tuple[Term, float]:
    """The term of a leader whose loop does nothing else for so many seconds, and what was left of it then."""
    leadership = Leadership(Client(server), "shoal", "kube-system", "first", settings=SETTINGS, nearby=server.nearby)
    found: asyncio.Future[tuple[Term, float]] = asyncio.get_running_loop().create_future()

    async def lead(term: Term) -> None:
        await asyncio.sleep(0.05)  # so that all that keeps the lease has begun
        _plan(busy)
        found.set_result((term, term.left))
        await asyncio.Event().wait()

    leading = asyncio.ensure_future(leadership.run(lead))
    try:
        return await found
    finally:
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)


def _plan(seconds: float) -> None:
    """Computes, as a plan does: neither the loop nor, by itself, the interpreter is given to others."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


def _renewed_by_the_busy_loop(patch: pytest.MonkeyPatch) -> None:
    async def here(self: Leadership, term: Term) -> None:
        await self._renew(term, self._client)

    patch.setattr(Leadership, "_keep", here)


@proven(without=_renewed_by_the_busy_loop)
async def test_f562_a_long_plan_does_not_cost_the_lease() -> None:
    """F562: a plan over a large backlog holds the leader's event loop for longer than a lease lasts without a renewal.
    Holds: it is renewed meanwhile, the term goes on, and nothing is read and planned again."""
    server = OneLease()
    term, left = await _led(server, busy=BUSY)
    assert left > 0 and term.number == 1
    assert "lease" in server.renewed_by
    assert not [one for one in threading.enumerate() if one.name == "lease"]  # it ends with the term


async def test_a_leader_that_stands_still_is_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "STANDSTILL", 0.3)
    server = OneLease()
    _, left = await _led(server, busy=BUSY)
    assert left == 0
