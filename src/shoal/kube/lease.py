"""One leader at a time, by a Lease object, and the fence that keeps a past leader's writes back.

A leader may write only until its own deadline, counted on the boot-time clock from before its last successful
renewal was sent; others wait longer than that from when they saw the renewal. No two machines' clocks are ever
compared. A leader that cannot renew stops writing first and is told afterwards. Renewals go on in a thread of their own
(`nearby`) while a long plan holds the event loop; a loop that stands still for too long is no leader any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from random import Random
from typing import Any

import msgspec

from shoal.api.kinds import LEASE, NAMESPACE
from shoal.api.meta import Json
from shoal.api.times import micro_text
from shoal.errors import ShoalError
from shoal.kube.beside import beside
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import AlreadyExists, Conflict, Forbidden, KubeError, LeaseLost, NotFound
from shoal.kube.transport import Request, Response, Stream, Transport

log = logging.getLogger(__name__)

READS = frozenset({"GET", "HEAD", "OPTIONS"})
STOP_LIMIT = 60.0
"""Seconds in which everything that led must have stopped."""
STANDSTILL = 120.0
"""Seconds after which a leader whose event loop did nothing is taken for dead, and its lease is not renewed."""


class StillLeading(KubeError):
    """What led goes on although its term is over."""


class LeaseSettings(msgspec.Struct, frozen=True):
    """Seconds. A leader writes for `hold` after a renewal; others take over `wait` after they last saw one."""

    duration: float = 15.0

    @property
    def hold(self) -> float:
        return self.duration * 0.6

    @property
    def wait(self) -> float:
        return self.duration * 0.85

    @property
    def look_every(self) -> float:
        """Twice in a take-over, once to see the last renewal and once past `wait`: all within the lease time."""
        return self.duration * 0.07


class Term:
    """One time of leading. `number` grows with every change of leader."""

    def __init__(self, number: int, deadline: float, clock: Clock) -> None:
        self.number = number
        self._deadline = deadline
        self._clock = clock
        self._ended = False
        self._sending = 0
        self._answered = asyncio.Event()
        self._answered.set()

    @property
    def left(self) -> float:
        """Seconds in which writes may still go out."""
        return 0.0 if self._ended else max(0.0, self._deadline - self._clock.monotonic())

    @property
    def overdue(self) -> bool:
        """Others may have taken the lease by now."""
        return self._clock.monotonic() >= self._deadline

    def check(self) -> None:
        """Raises `LeaseLost` unless this term certainly still holds now."""
        if self.left <= 0:
            raise LeaseLost(f"not sent: lease term {self.number} has ended or was not renewed in time")

    def extend(self, deadline: float) -> None:
        if not self._ended:
            self._deadline = max(self._deadline, deadline)

    def end(self) -> None:
        """For good: not even a late renewal brings it back."""
        self._ended = True

    @contextmanager
    def sending(self) -> Iterator[None]:
        """One write of this term is on its way."""
        self._sending += 1
        self._answered.clear()
        try:
            yield
        finally:
            self._sending -= 1
            if not self._sending:
                self._answered.set()

    async def answered(self) -> None:
        """Until no write of this term is on its way. Each ends by the term's deadline at the latest."""
        await self._answered.wait()


class FencedTransport:
    """Writes of one term. Each is checked when it is asked for and again directly before its first byte goes out."""

    def __init__(self, inner: Transport, term: Term) -> None:
        self.inner = inner
        self.term = term

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if request.method in READS:
            return await self.inner.send(request, timeout=timeout)
        self.term.check()
        limit = min(timeout, self.term.left) if timeout is not None else self.term.left
        with self.term.sending():
            return await self.inner.send(msgspec.structs.replace(request, guard=self.term.check), timeout=limit)

    def stream(self, request: Request, *, idle_timeout: float | None = None) -> AbstractAsyncContextManager[Stream]:
        return self.inner.stream(request, idle_timeout=idle_timeout)

    async def close(self) -> None:
        await self.inner.close()


class _Seen(msgspec.Struct, frozen=True):
    """A lease as we last saw it change, and when by our own clock."""

    revision: str
    at: float


class Leadership:
    """Takes part in the election for one lease. `identity` must be this process's alone."""

    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        identity: str,
        *,
        settings: LeaseSettings | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        nearby: Callable[[], AbstractAsyncContextManager[Client]] | None = None,
    ) -> None:
        """`nearby` makes a client for another thread, in which the lease is then renewed."""
        self.identity = identity
        self.term: Term | None = None
        self.trouble: str | None = "the lease has not been read yet"
        """Why this process neither leads nor stands by, and what to do; None while it does one of them."""
        self._client = client
        self._name = name
        self._namespace = namespace
        self._settings = settings or LeaseSettings()
        self._clock: Clock = clock or SystemClock()
        self._random = random or Random()
        self._nearby = nearby
        self._alive_at = 0.0
        self._seen: _Seen | None = None

    @property
    def leads(self) -> bool:
        return self.term is not None

    @property
    def term_number(self) -> int:
        """Of the term in which this process leads; 0 while it stands by."""
        return self.term.number if self.term is not None else 0

    def fenced(self, term: Term) -> Client:
        """A client whose writes go out only while the term lasts."""
        return self._client.through(FencedTransport(self._client.transport, term))

    async def run(self, lead: Callable[[Term], Awaitable[None]]) -> None:
        """Lead whenever we can, until cancelled. `lead` is cancelled when the term ends and may be called again."""
        while True:
            async with self.held() as term:
                log.info("%s leads %s (term %d)", self.identity, self._name, term.number)
                await self._lead_until_lost(lead, term)

    async def _lead_until_lost(self, lead: Callable[[Term], Awaitable[None]], term: Term) -> None:
        work = asyncio.ensure_future(lead(term))
        keeping = [asyncio.ensure_future(self._keep(term)), asyncio.ensure_future(self._until_overdue(term))]
        if self._nearby is not None:
            self._alive_at = self._clock.monotonic()
            keeping.append(asyncio.ensure_future(self._show_life()))
        try:
            await asyncio.wait({work, *keeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            term.end()
            for task in (work, *keeping):
                task.cancel()
            await self._until_stopped({work, *keeping})
        if work.done() and not work.cancelled() and (error := work.exception()):
            raise error

    async def _until_stopped(self, tasks: set[asyncio.Future[None]]) -> None:
        """A controller that does not stop keeps everything waiting for ever: better another process leads."""
        stopping: asyncio.Future[Any] = asyncio.gather(*tasks, return_exceptions=True)
        limit: asyncio.Future[Any] = asyncio.ensure_future(self._clock.sleep(STOP_LIMIT))
        try:
            await asyncio.wait({stopping, limit}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            limit.cancel()
        if not stopping.done():
            raise StillLeading(
                f"the controllers did not stop within {STOP_LIMIT:.0f} s after {self.identity} lost lease "
                f"{self._name}; this process ends, start it again"
            )

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Term]:
        """Wait for the lease and hold it; on leaving, the term ends first, what it sent is answered, and the lease is
        given back."""
        term = await self._acquire()
        self.term = term
        try:
            yield term
        finally:
            term.end()
            self.term = None
            await term.answered()
            if not term.overdue:
                await self._release(term)

    # --- taking

    async def _acquire(self) -> Term:
        while True:
            try:
                taken = await self._try_to_take()
                self._say(None)
                if taken is not None:
                    return taken
            except (Conflict, AlreadyExists):
                log.debug("%s: another client was faster", self._name)
            except NotFound:
                self._say(await self._create_namespace())
            except KubeError as error:
                self._say(self._described(error))
            await self._clock.sleep(self._settings.look_every * (0.75 + 0.25 * self._random.random()))

    def _say(self, trouble: str | None) -> None:
        """Logged once for each change: what is wrong stays wrong for hours."""
        if trouble == self.trouble:
            return
        before, self.trouble = self.trouble, trouble
        if trouble is not None:
            log.warning("%s", trouble)
        elif before is not None:
            log.debug("lease %s is read (was: %s)", self._name, before)

    def _described(self, error: KubeError) -> str:
        lease = f"lease {self._name} in namespace {self._namespace}"
        if isinstance(error, Forbidden):
            wanted = "grant get, create, update and patch on leases there, as shoal install does"
            return f"this account may not use {lease}: {wanted}. The server says: {error}"
        return f"{lease} cannot be read: {error}"

    async def _create_namespace(self) -> str | None:
        """Outside the cluster nothing else may have made it. Returns what to do where we cannot."""
        body = {"apiVersion": NAMESPACE.api_version, "kind": NAMESPACE.kind, "metadata": {"name": self._namespace}}
        try:
            await self._client.create(NAMESPACE, body)
        except AlreadyExists:
            pass
        except KubeError as error:
            missing = f"namespace {self._namespace}, which holds the lease, does not exist"
            return f"{missing}: create it, or name another with --namespace. The server says: {error}"
        else:
            log.info("namespace %s did not exist and was created: it holds the lease", self._namespace)
        return None

    async def _try_to_take(self) -> Term | None:
        try:
            lease = await self._client.get(LEASE, self._name, self._namespace)
        except NotFound:
            sent = self._clock.monotonic()
            body = {
                "apiVersion": LEASE.api_version,
                "kind": LEASE.kind,
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": self._spec({}, 1),
            }
            await self._client.create(LEASE, body, self._namespace)
            return Term(1, sent + self._settings.hold, self._clock)
        if not self._is_free(lease):
            return None
        spec = lease.get("spec") or {}
        number = int(spec.get("leaseTransitions") or 0) + 1
        sent = self._clock.monotonic()
        lease["spec"] = self._spec(spec, number)
        await self._client.update(LEASE, lease, self._name, self._namespace)
        return Term(number, sent + self._settings.hold, self._clock)

    def _is_free(self, lease: Json) -> bool:
        """Released, or not renewed for `wait` seconds of our own clock. Times written in it are not believed.

        Our own name in it is from a take-over whose answer was lost: we know that we do not lead.
        """
        revision = lease["metadata"]["resourceVersion"]
        now = self._clock.monotonic()
        if self._seen is None or self._seen.revision != revision:
            self._seen = _Seen(revision, now)
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") in (None, "", self.identity):
            return True
        longest = max(self._settings.wait, float(spec.get("leaseDurationSeconds") or 0) * 0.85)
        return now - self._seen.at >= longest

    def _spec(self, old: Json, number: int) -> Json:
        now = micro_text(self._clock.now())
        return {
            **old,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._settings.duration)),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": number,
        }

    # --- keeping

    async def _keep(self, term: Term) -> None:
        if self._nearby is None:
            await self._renew(term, self._client)
        else:
            await beside(lambda: self._renew_beside(term), "lease")

    async def _renew_beside(self, term: Term) -> None:
        """In the other thread, with a client of its own."""
        assert self._nearby is not None
        while True:
            try:
                async with self._nearby() as client:
                    await self._renew(term, client)
                    return
            except ShoalError as error:
                log.warning("lease %s has no client for its renewals (%.1f s left): %s", self._name, term.left, error)
            await self._clock.sleep(self._settings.duration * 0.1)

    async def _show_life(self) -> None:
        while True:
            self._alive_at = self._clock.monotonic()
            await self._clock.sleep(self._settings.duration * 0.1)

    def _stands_still(self) -> bool:
        return self._nearby is not None and self._clock.monotonic() - self._alive_at > STANDSTILL

    async def _renew(self, term: Term, client: Client) -> None:
        """Renew in time, again and again; returns when another process holds the lease, or should."""
        known: Json | None = None
        took = 0.0
        while True:
            await self._clock.sleep(self._settings.duration * 0.05 + max(0.0, self._settings.duration * 0.15 - took))
            began = self._clock.monotonic()
            if self._stands_still():
                log.error("lease %s is not renewed: %s did nothing for %.0f s", self._name, self.identity, STANDSTILL)
                return
            try:
                known = await self._renew_once(term, client, known)
                if known is None:
                    log.warning("%s lost lease %s to another holder", self.identity, self._name)
                    return
            except KubeError as error:
                log.warning("lease %s was not renewed (%.1f s left): %s", self._name, term.left, error)
            took = self._clock.monotonic() - began

    async def _renew_once(self, term: Term, client: Client, known: Json | None) -> Json | None:
        """The lease as it is stored then; None where another holds it. `known`: as we stored it last. Where that is so
        yet one request is enough: if an API server is late with every answer, a second may come too late."""
        if known is not None:
            try:
                return await self._store_renewal(term, client, known)
            except Conflict:
                log.debug("lease %s was written by another client, or by us without an answer", self._name)
        lease = await client.get(LEASE, self._name, self._namespace)
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") != self.identity or spec.get("leaseTransitions") != term.number:
            return None
        return await self._store_renewal(term, client, lease)

    async def _store_renewal(self, term: Term, client: Client, lease: Json) -> Json:
        term.check()
        sent = self._clock.monotonic()
        renewed = {**lease, "spec": {**lease["spec"], "renewTime": micro_text(self._clock.now())}}
        stored: Json = await client.update(LEASE, renewed, self._name, self._namespace)
        term.extend(sent + self._settings.hold)
        return stored

    async def _until_overdue(self, term: Term) -> None:
        """Ends with the term, even while a renewal hangs."""
        while term.left > 0:
            await self._clock.sleep(term.left)
        log.warning("%s stops leading %s: it could not renew in time", self.identity, self._name)

    async def _release(self, term: Term) -> None:
        """Best effort: others need not wait when we go in order. Nothing of this term can be sent any more."""
        try:
            lease = await self._client.get(LEASE, self._name, self._namespace)
            spec = lease.get("spec") or {}
            if spec.get("holderIdentity") == self.identity and spec.get("leaseTransitions") == term.number:
                lease["spec"] = {**spec, "holderIdentity": ""}
                await self._client.update(LEASE, lease, self._name, self._namespace)
        except KubeError as error:
            log.debug("lease %s was not given back: %s", self._name, error)
