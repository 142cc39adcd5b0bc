"""Reads the logs of gangs while their pods are still there, and keeps them for the time after.

A log is read when its container has ended, and followed to its end when its pod is told to go: a pod takes its log
along. The planning loop never waits for it; where pods end faster than they can be read, some logs are lost, and that
is logged. Nothing is read of pods that belong to no gang.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import msgspec

from shoal.api.labels import RAY_NODE_TYPE, RAY_SUBMITTER
from shoal.api.meta import Json, controller_of
from shoal.controllers.planning.history.log_store import LONGEST, KeptLog, LogQuery, LogStore
from shoal.controllers.planning.history.recorder import GangHistory
from shoal.controllers.planning.history.store import HistoryTrouble
from shoal.controllers.planning.pods import SeenPod
from shoal.kube.cache import Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import KubeError

log = logging.getLogger(__name__)

READERS = 8
MOST_WAITING = 500
MOST_WORKERS = 8
"""Of one gang, whose logs are kept: those that ended first."""
MOST_REMEMBERED = 20_000
PATIENCE = 20.0
"""Seconds for the log of a container that has ended."""
FOLLOWED = 120.0
"""Seconds for which a log is followed after its pod was told to go."""
PRUNE_AFTER = 50
OWNERS_COME = 1.0
"""Seconds: pods and their owners come by watches of their own."""
_HAS_RUN, _HAS_ENDED = b'"startedAt"', b'"terminated"'


class GangName(msgspec.Struct, frozen=True):
    """What people call the gang of a pod."""

    kind: str
    name: str
    uid: str
    steps: int
    """How far up the chain of owners that was found."""


Whose = Callable[[SeenPod], GangName | None]


class WantedLog(msgspec.Struct, frozen=True):
    pod: SeenPod
    container: str
    gang: GangName
    role: str
    ended: str
    """When it ended; empty: its pod is told to go, and it is followed to its end."""


class LogKeeper:
    """`changed` hears of every pod; `run` until cancelled."""

    def __init__(self, client: Client, history: GangHistory, store: LogStore, clock: Clock, whose: Whose) -> None:
        self._client = client
        self._history = history
        self._store = store
        self._clock = clock
        self._whose = whose
        self._gang_of: dict[str, GangName] = {}
        """By UID of a pod that has not ended: owners may be gone before their pods are."""
        self._before: set[tuple[str, str]] = set()
        """Kept by an earlier leader."""
        self._seen: OrderedDict[str, set[tuple[str, str]]] = OrderedDict()
        """By UID of a pod, while it is there: containers whose logs were asked for, and when they ended."""
        self._workers: OrderedDict[str, set[str]] = OrderedDict()
        self._queue: asyncio.Queue[WantedLog] = asyncio.Queue(MOST_WAITING)
        self._unsure: dict[str, SeenPod] = {}
        """Ended, and of no gang as far as is known: its owners may come a moment later."""
        self._doubts = asyncio.Event()
        self._lost = 0
        self._written = 0

    def beside(self, client: Client, whose: Whose) -> LogKeeper:
        """Another one for the pods of another cluster, with the same store."""
        return LogKeeper(client, self._history, self._store, self._clock, whose)

    # --- what the watch tells

    def changed(self, change: Change) -> None:
        if change.new is None:
            self._gang_of.pop(change.old.metadata.uid, None)
            self._seen.pop(change.old.metadata.uid, None)
            return
        self._consider(change.new)

    def _consider(self, pod: SeenPod, *, again: bool = False) -> None:
        raw = bytes(pod.status.container_statuses)
        if _HAS_RUN not in raw:
            return
        gang, goes = self._gang(pod), _HAS_ENDED in raw or pod.metadata.deletion_timestamp is not None
        if gang is None:
            if goes and not again and controller_of(pod.metadata) is not None and len(self._unsure) < MOST_WAITING:
                self._unsure[pod.metadata.uid] = pod
                self._doubts.set()
            return
        if not goes:
            return
        for container, ended in _containers(raw):
            role = _role(pod, gang, container)
            goes = pod.metadata.deletion_timestamp is not None and not ended
            if role is not None and (ended or goes):
                self._want(WantedLog(pod, container, gang, role, ended))

    def _gang(self, pod: SeenPod) -> GangName | None:
        known, found = self._gang_of.get(pod.metadata.uid), self._whose(pod)
        if found is not None and (known is None or found.steps > known.steps):
            self._gang_of[pod.metadata.uid] = known = found
        return known

    def _want(self, wanted: WantedLog) -> None:
        of = (wanted.pod.metadata.uid, wanted.container)
        if of in self._before:
            self._before.discard(of)
            return
        uid, mark = of[0], (wanted.container, wanted.ended)
        if mark in self._seen.get(uid, ()) or (wanted.role == "worker" and not self._is_one_of_few(wanted)):
            return
        self._seen.setdefault(uid, set()).add(mark)
        if len(self._seen) > MOST_REMEMBERED:
            self._seen.popitem(last=False)
        try:
            self._queue.put_nowait(wanted)
        except asyncio.QueueFull:
            if not self._lost:
                log.warning("logs of pods are lost: more end than can be read")
            self._lost += 1

    def _is_one_of_few(self, wanted: WantedLog) -> bool:
        kept = self._workers.setdefault(wanted.gang.uid, set())
        if len(self._workers) > MOST_REMEMBERED:
            self._workers.popitem(last=False)
        if wanted.pod.metadata.uid not in kept and len(kept) >= MOST_WORKERS:
            return False
        kept.add(wanted.pod.metadata.uid)
        return True

    # --- reading

    async def begin(self) -> None:
        """Before the first pod is told of."""
        try:
            self._before = await self._history.in_thread(self._store.known)
        except HistoryTrouble:
            pass  # some are read again

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ask_again())
            for _ in range(READERS):
                tasks.create_task(self._work())

    async def _ask_again(self) -> None:
        while True:
            await self._doubts.wait()
            self._doubts.clear()
            await self._clock.sleep(OWNERS_COME)
            unsure, self._unsure = self._unsure, {}
            for pod in unsure.values():
                self._consider(pod, again=True)

    async def _work(self) -> None:
        while True:
            wanted = await self._queue.get()
            try:
                await self._keep(wanted)
            except (KubeError, TimeoutError) as error:
                log.debug("the log of pod %s is not kept: %s", wanted.pod.metadata.name, error)
            except HistoryTrouble as error:
                log.warning("the log of pod %s is not kept: %s", wanted.pod.metadata.name, error)
            finally:
                self._queue.task_done()

    async def kept(self) -> None:
        """Until every log that was asked for so far is stored."""
        await self._queue.join()

    async def read(self, query: LogQuery) -> list[KeptLog]:
        """Of one gang, oldest first. Raises HistoryTrouble."""
        return await self._history.in_thread(lambda: self._store.read(query))

    async def _keep(self, wanted: WantedLog) -> None:
        text, cut = await self._read(wanted)
        if not text:
            return
        metadata, gang = wanted.pod.metadata, wanted.gang
        made = KeptLog(
            kind=gang.kind, namespace=metadata.namespace, name=gang.name, gang_uid=gang.uid, role=wanted.role,
            pod=metadata.name, pod_uid=metadata.uid, container=wanted.container, ended_at=self._clock.now(),
            cut=cut, text=text,
        )  # fmt: skip
        await self._history.in_thread(lambda: self._store.write(made))
        self._written += 1
        if self._written % PRUNE_AFTER == 1:
            now = self._clock.now()
            await self._history.in_thread(lambda: self._store.prune(now))

    async def _read(self, wanted: WantedLog) -> tuple[bytes, int]:
        """The end of the log, and how much came before it. What was read counts, also where the rest does not come."""
        text, cut = bytearray(), 0
        metadata = wanted.pod.metadata
        chunks: Any = self._client.logs(
            metadata.name, metadata.namespace, container=wanted.container, follow=not wanted.ended
        )
        try:
            async with asyncio.timeout(PATIENCE if wanted.ended else FOLLOWED), aclosing(chunks) as stream:
                async for chunk in stream:
                    text += chunk
                    if len(text) > 2 * LONGEST:
                        cut += len(text) - LONGEST
                        del text[:-LONGEST]
        except (KubeError, TimeoutError):
            if not text:
                raise
        cut += max(0, len(text) - LONGEST)
        return bytes(text[-LONGEST:]), cut


def _containers(raw: bytes) -> list[tuple[str, str]]:
    """Names of those that have run, and when they ended."""
    found = msgspec.json.decode(raw)
    told = []
    for one in found if isinstance(found, list) else ():
        state: Json = one.get("state") or {} if isinstance(one, dict) else {}
        if "terminated" in state or "running" in state:
            ended: Json | None = state.get("terminated")
            at = str(ended.get("finishedAt") or "ended") if isinstance(ended, dict) else ""
            told.append((str(one.get("name")), at))
    return told


def _role(pod: SeenPod, gang: GangName, container: str) -> str | None:
    """None for a container beside the one that matters."""
    node_type = (pod.metadata.labels or {}).get(RAY_NODE_TYPE, "")
    if node_type == "head" and container == RAY_SUBMITTER:
        return "submitter"
    spec = msgspec.json.decode(pod.spec)
    first = next((str(one.get("name")) for one in spec.get("containers") or () if isinstance(one, dict)), "")
    if container != first:
        return None
    if node_type in ("head", "worker"):
        return node_type
    owner = controller_of(pod.metadata)
    return "submitter" if owner is not None and owner.kind == "Job" and gang.kind != "Job" else ""
