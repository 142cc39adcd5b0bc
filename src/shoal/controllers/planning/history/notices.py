"""Notices by HTTP when a gang starts, ends, or is stopped for another: to addresses that an administrator allows.

A gang, or its LocalQueue, names an address in an annotation; without an allowed address nothing is ever sent. Each
notice is signed, has an id by which a receiver knows it again, is bounded in size, and is tried a few times. Nothing is
run on the controller, no redirect is followed, and no answer is read. The planning loop never waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit

import msgspec

from shoal.api.times import micro_text
from shoal.controllers.planning.history.records import PREEMPTED, REQUEUED, RunRecord
from shoal.errors import BadInput
from shoal.kube.clock import Clock

log = logging.getLogger(__name__)

MOST_WAITING = 1000
MOST_ADDRESSES = 50_000
MOST_REMEMBERED = 10_000
LONGEST_ADDRESS = 512
PAUSES = (1.0, 5.0, 25.0, 120.0)
"""Seconds before each further try."""
TIMEOUT = 10.0
SENDERS = 4
SHORTEST_KEY = 16
SECOND = 1_000_000


class NoticeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`allowed`: beginnings of addresses, such as https://hooks.example.com/shoal/. `key` signs every notice."""

    allowed: tuple[str, ...]
    key: bytes


class Sender(Protocol):
    async def __call__(self, address: str, body: bytes, headers: dict[str, str]) -> int:
        """The status of the answer; raises OSError or TimeoutError where there is none."""


class GangNotice(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    id: str
    event: str
    """Started, Ended, Preempted or Requeued."""
    at: str
    kind: str
    namespace: str
    name: str
    uid: str
    user: str = ""
    queue: str = ""
    cluster_queue: str = ""
    outcome: str = ""
    waited_seconds: float = 0.0
    ran_seconds: float = 0.0
    pods: int = 0
    gpus: int = 0


class Notices:
    """`run` until cancelled; `told` gives it addresses, `stored` rows of the history."""

    def __init__(self, settings: NoticeSettings, clock: Clock, send: Sender | None = None) -> None:
        self._allowed = [_split(one) for one in settings.allowed]
        if not self._allowed:
            raise BadInput("notices need at least one allowed address, such as https://hooks.example.com/shoal/")
        if len(settings.key) < SHORTEST_KEY:
            raise BadInput(f"notices need a key of at least {SHORTEST_KEY} bytes to sign them: set SHOAL_NOTIFY_KEY")
        self._key = settings.key
        self._clock = clock
        self._send = send or _sent
        self._addresses: OrderedDict[str, str] = OrderedDict()
        self._said: OrderedDict[str, None] = OrderedDict()
        self._queue: asyncio.Queue[tuple[str, GangNotice]] = asyncio.Queue(MOST_WAITING)

    def told(self, uid: str, address: str) -> None:
        """The address that a gang names, or its queue for it; one that is not allowed is left out."""
        if not address or self._addresses.get(uid) == address:
            return
        if not self.allows(address):
            log.warning("a gang asks for notices to an address that is not allowed (--notify-allow)")
            return
        self._addresses[uid] = address
        if len(self._addresses) > MOST_ADDRESSES:
            self._addresses.popitem(last=False)

    def allows(self, address: str) -> bool:
        """The same scheme, host and port, and a path below one that is allowed."""
        try:
            found = _split(address) if len(address) <= LONGEST_ADDRESS else None
        except BadInput:
            return False
        return found is not None and any(
            (found.scheme, found.netloc) == (one.scheme, one.netloc) and _is_below(found.path, one.path)
            for one in self._allowed
        )

    def stored(self, row: RunRecord) -> None:
        """A row of the history was written."""
        address = self._addresses.get(row.uid)
        event = _event(row)
        if address is None or not event:
            return
        notice = _notice(row, event)
        if notice.id in self._said:
            return
        self._said[notice.id] = None
        if len(self._said) > MOST_REMEMBERED:
            self._said.popitem(last=False)
        try:
            self._queue.put_nowait((address, notice))
        except asyncio.QueueFull:
            log.warning("a notice is lost: %d wait already", MOST_WAITING)
        if event == "Ended":
            self._addresses.pop(row.uid, None)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(SENDERS):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            address, notice = await self._queue.get()
            await self._deliver(address, notice)
            self._queue.task_done()

    async def sent(self) -> None:
        """Until nothing waits any more."""
        await self._queue.join()

    async def _deliver(self, address: str, notice: GangNotice) -> None:
        body = msgspec.json.encode(notice)
        for pause in (*PAUSES, None):
            stamp = str(self._clock.now() // SECOND)
            headers = {
                "content-type": "application/json",
                "user-agent": "shoal",
                "x-shoal-timestamp": stamp,
                "x-shoal-signature": signature(self._key, stamp, body),
            }
            try:
                status = await self._send(address, body, headers)
                if 200 <= status < 300:
                    return
                said = f"status {status}"
                if 400 <= status < 500 and status not in (408, 429):
                    break  # it will not be taken another time either
            except (OSError, TimeoutError) as error:
                said = type(error).__name__
            if pause is None:
                break
            await self._clock.sleep(pause)
        log.warning("a notice about %s %s/%s was not taken: %s", notice.kind, notice.namespace, notice.name, said)


def signature(key: bytes, stamp: str, body: bytes) -> str:
    """HMAC-SHA256 of the time, a dot and the body: a receiver compares it, and refuses what is old."""
    return "sha256=" + hmac.new(key, stamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def _event(row: RunRecord) -> str:
    if not row.ended_at:
        return "Started" if row.started_at else ""
    return row.outcome if row.outcome in (PREEMPTED, REQUEUED) else "Ended"


def _notice(row: RunRecord, event: str) -> GangNotice:
    began, ended = row.started_at or row.ended_at, row.ended_at
    return GangNotice(
        id=f"{row.uid}-{row.round}-{event.lower()}",
        event=event,
        at=micro_text(ended or row.started_at),
        kind=row.kind, namespace=row.namespace, name=row.name, uid=row.uid, user=row.user, queue=row.queue,
        cluster_queue=row.cluster_queue, outcome=row.outcome if event == "Ended" else "",
        waited_seconds=round((began - row.queued_at) / SECOND, 3),
        ran_seconds=round((ended - row.started_at) / SECOND, 3) if ended and row.started_at else 0.0,
        pods=row.pods, gpus=row.gpus,
    )  # fmt: skip


def _split(address: str) -> SplitResult:
    """Raises BadInput for what is no plain address: a user, a query, a dot segment or anything encoded in it."""
    try:
        found = urlsplit(address)
        sound = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        sound, found = False, urlsplit("")
    odd = any(char.isspace() or not char.isprintable() or char in "@%\\#?" for char in address)
    if not sound or odd or ".." in found.path.split("/") or "." in found.path.split("/"):
        raise BadInput(f"{address[:80]!r} is no plain address, such as https://hooks.example.com/shoal/")
    return found._replace(netloc=found.netloc.lower())


def _is_below(path: str, allowed: str) -> bool:
    return path == allowed or path.startswith(allowed if allowed.endswith("/") else f"{allowed}/") or not allowed


async def _sent(address: str, body: bytes, headers: dict[str, str]) -> int:
    import aiohttp

    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT)) as session,
            session.post(address, data=body, headers=headers, allow_redirects=False) as answer,
        ):
            return answer.status
    except aiohttp.ClientError as error:
        raise OSError(type(error).__name__) from error


def from_environment(environment: Any, allowed: Sequence[str] = ()) -> NoticeSettings | None:
    """SHOAL_NOTIFY_ALLOW (addresses, separated by commas) and SHOAL_NOTIFY_KEY; None where nothing is allowed."""
    listed = tuple(
        one.strip() for one in (*allowed, *environment.get("SHOAL_NOTIFY_ALLOW", "").split(",")) if one.strip()
    )
    key = str(environment.get("SHOAL_NOTIFY_KEY", "")).encode()
    return NoticeSettings(allowed=listed, key=key) if listed else None
