"""Events on objects, for `kubectl describe`: sent in the background, repeated ones counted, floods thinned.

Called by reconcilers at state changes. Telling never blocks and never fails the caller; an event that cannot be
sent is dropped. The same event has the same name whichever replica tells it, so counting goes on after a restart.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from shoal.api.kinds import EVENT
from shoal.api.log_text import in_one_line
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import AlreadyExists, Forbidden, KubeError, NotFound

log = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]

REMEMBERED = 4096
WAITING = 1000
SIMILAR_UNTIL_COMBINED = 10
SIMILAR_WINDOW = 600.0
BURST = 25
REFILL = 300.0
"""One more event per object in so many seconds once its burst is used up."""
KEPT = 3600.0
"""Seconds for which a server keeps an event, and for which it is counted here instead of sent again."""
MESSAGE_LIMIT = 1024
PATIENCE = 10.0
"""Seconds that an event may wait while there is something more urgent to write."""
RUSH = 200
"""Events that a recorder with a `pace` sends as they come, after a time without any."""
KEPT_FOR_WARNINGS = 50
"""Of those, the last so many are for warnings alone."""


class _Remembered(msgspec.Struct):
    at: float
    """When it was last of use, by a clock that does not jump."""


class _Sent(_Remembered):
    name: str
    namespace: str
    count: int
    first: int


class _Similar(_Remembered):
    since: float
    count: int = 0


class _Allowance(_Remembered):
    left: float = float(BURST)


class Recorder:
    """`event(obj, "Normal" | "Warning", reason, message)`. Objects may be dictionaries, typed kinds or references."""

    def __init__(
        self,
        client: Client,
        component: str,
        *,
        clock: Clock | None = None,
        calm: Callable[[], Awaitable[None]] | None = None,
        pace: float | None = None,
    ) -> None:
        """`calm` returns when nothing more urgent is to be written; events wait for it, with patience.

        `pace` is for what is told of thousands within a minute, in statuses too: so many events a second once a rush is
        used up, the others are dropped.
        """
        self._client = client
        self._component = component
        self._clock: Clock = clock or SystemClock()
        self._calm = calm
        self._pace = pace
        self._rush = _Allowance(self._clock.monotonic(), float(RUSH))
        self._queue: asyncio.Queue[tuple[Json, EventType, str, str, int]] = asyncio.Queue(WAITING)
        self._sent: OrderedDict[str, _Sent] = OrderedDict()
        self._similar: OrderedDict[tuple[str, ...], _Similar] = OrderedDict()
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self._denied = False
        self.dropped = 0

    def event(self, obj: Any, type: EventType, reason: str, message: str) -> None:
        """Tell; returns at once."""
        if self._pace is not None and not self._in_pace(self._pace, type):
            self.dropped += 1
            return
        said = in_one_line(message)[:MESSAGE_LIMIT]
        try:
            self._queue.put_nowait((reference(obj), type, reason, said, self._clock.now()))
        except asyncio.QueueFull:
            self.dropped += 1
            return
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send_for_ever())

    @property
    def remembered(self) -> int:
        """Entries of all that is remembered of earlier events."""
        return len(self._sent) + len(self._similar) + len(self._allowances)

    async def flush(self) -> None:
        """Wait until all that was told has been sent or dropped."""
        await self._queue.join()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    async def _send_for_ever(self) -> None:
        while True:
            told = await self._queue.get()
            try:
                await self._give_way(told[-1])
                await self._send(*told)
            except Forbidden as error:
                if not self._denied:
                    log.warning(
                        "events cannot be written: grant create and patch on events. The server says: %s", error
                    )
                self._denied = True
                self.dropped += 1
            except KubeError as error:
                self.dropped += 1
                log.debug("an event was dropped: %s", error)
            finally:
                self._queue.task_done()

    async def _give_way(self, moment: int) -> None:
        """In a rush a server's time is better spent on what the events are about; half a queue is a flood, though."""
        left = PATIENCE - (self._clock.now() - moment) / 1_000_000
        if self._calm is None or left <= 0 or self._queue.qsize() > WAITING // 2:
            return
        waits = {asyncio.ensure_future(self._calm()), asyncio.ensure_future(self._clock.sleep(left))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    async def _send(self, about: Json, type: EventType, reason: str, message: str, moment: int) -> None:
        if not self._allowed(about["uid"] or f"{about['kind']}/{about['namespace']}/{about['name']}"):
            self.dropped += 1
            return
        group = (about["uid"], about["kind"], about["namespace"], about["name"], type, reason)
        message = self._combined(group, message)
        name, now = self._name(about, (*group, message)), self._clock.monotonic()
        sent = self._sent.get(name)
        if sent is not None and await self._counted(sent, moment):
            sent.at = now
            _remember(self._sent, name, sent, KEPT)
            return
        fresh = _Sent(now, name, about["namespace"] or "default", 1, moment)
        try:
            await self._client.create(EVENT, self._body(fresh, about, type, reason, message), fresh.namespace)
        except AlreadyExists:  # told before we were started; a patch that is only tried needs no right to get
            stored = await self._client.patch(EVENT, fresh.name, fresh.namespace, {}, dry_run=True)
            fresh.count = int(stored.get("count") or 1)
            await self._counted(fresh, moment)
        _remember(self._sent, name, fresh, KEPT)

    async def _counted(self, sent: _Sent, moment: int) -> bool:
        """Count one more; False when the server has forgotten the event, as it does after an hour."""
        sent.count += 1
        try:
            change = {"count": sent.count, "lastTimestamp": seconds_text(moment)}
            await self._client.patch(EVENT, sent.name, sent.namespace, change)
        except NotFound:
            return False
        return True

    def _name(self, about: Json, same: tuple[str, ...]) -> str:
        digest = hashlib.blake2b("\0".join((self._component, *same)).encode(), digest_size=8)
        return f"{about['name'][:200]}.{digest.hexdigest()}"

    def _body(self, sent: _Sent, about: Json, type: EventType, reason: str, message: str) -> Json:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": sent.name, "namespace": sent.namespace},
            "involvedObject": {name: value for name, value in about.items() if value},
            "type": type,
            "reason": reason,
            "message": message,
            "count": sent.count,
            "firstTimestamp": seconds_text(sent.first),
            "lastTimestamp": seconds_text(sent.first),
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._component,
        }

    def _combined(self, group: tuple[str, ...], message: str) -> str:
        """Many events that differ only in their text become one that is counted."""
        now = self._clock.monotonic()
        similar = self._similar.get(group)
        if similar is None or now - similar.since > SIMILAR_WINDOW:
            similar = _Similar(now, now)
        similar.at = now
        similar.count += 1
        _remember(self._similar, group, similar, SIMILAR_WINDOW)
        return message if similar.count <= SIMILAR_UNTIL_COMBINED else "(combined from similar events)"

    def _in_pace(self, pace: float, type: EventType) -> bool:
        now, rush = self._clock.monotonic(), self._rush
        rush.left = min(float(RUSH), rush.left + (now - rush.at) * pace)
        rush.at = now
        if rush.left < (1 if type == "Warning" else KEPT_FOR_WARNINGS + 1):
            return False
        rush.left -= 1
        return True

    def _allowed(self, who: str) -> bool:
        now = self._clock.monotonic()
        allowance = self._allowances.get(who) or _Allowance(now)
        allowance.left = min(float(BURST), allowance.left + (now - allowance.at) / REFILL)
        allowance.at = now
        _remember(self._allowances, who, allowance, BURST * REFILL)
        if allowance.left < 1:
            return False
        allowance.left -= 1
        return True


def reference(obj: Any) -> Json:
    """What an event, or an owner reference, names an object by."""
    if isinstance(obj, dict):
        metadata = obj.get("metadata") or obj  # a reference has the fields at its top
        return {
            "apiVersion": obj.get("apiVersion", ""),
            "kind": obj.get("kind", ""),
            "namespace": metadata.get("namespace") or "",
            "name": metadata.get("name") or "",
            "uid": metadata.get("uid") or "",
            "resourceVersion": metadata.get("resourceVersion") or "",
        }
    metadata = obj.metadata
    return {
        "apiVersion": obj.api_version,
        "kind": obj.kind,
        "namespace": metadata.namespace,
        "name": metadata.name,
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
    }


def _remember(table: OrderedDict[Any, Any], key: Any, value: _Remembered, seconds: float) -> None:
    """As its newest; what is older than so many seconds before it goes."""
    table[key] = value
    table.move_to_end(key)
    while len(table) > REMEMBERED or next(iter(table.values())).at < value.at - seconds:
        table.popitem(last=False)
