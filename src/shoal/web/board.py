"""The live rows of one visitor: what the API server lets that user list and watch, kept as rows that change one by one.

One board serves every tab of a session that shows the same namespace. Kinds that may not be read, or are not installed,
are named and left out. A reader that is slow gets the newest state of each row, never a queue of old ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from shoal.api import kinds, ray_gang
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.api.objects import controller_of
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.discovery import Discovery
from shoal.kube.errors import KubeError
from shoal.kube.feed import FeedSettings
from shoal.kube.trouble import Trouble
from shoal.sdk import alone, gangs, queued
from shoal.web import views
from shoal.web.lending import Place, lent
from shoal.web.views import Row

TOPICS = ("gangs", "nodes", "clusterQueues", "localQueues", "cohorts")
PACE = 0.05
"""Seconds in which changes come together."""
MOST_BYTES = 256 << 20
"""Of one kind, as the server sends it."""
FEED = FeedSettings(retry_cap=30.0, quiet=True)
"""A right that is missing is not asked for every few seconds."""
Stale = tuple[str, str]


class Board:
    def __init__(self, client: Client, namespace: str | None, clock: Clock) -> None:
        self.namespace = namespace
        self.rows: dict[str, dict[str, Row]] = {topic: {} for topic in TOPICS}
        self.troubles: dict[str, Trouble] = {}
        """By resource: why it is not read."""
        self._client = client
        self._clock = clock
        self._readers: set[BoardReader] = set()
        self._stale: set[Stale] = set()
        self._news = asyncio.Event()
        self._settled = asyncio.Event()
        self._gangs: dict[str, tuple[Kind, Key]] = {}
        """By UID."""
        self._tasks: asyncio.TaskGroup | None = None
        self._refused: dict[Kind, asyncio.Event] = {}
        self._asked: set[tuple[str, str]] = set()
        """Kinds of jobs that were looked for, by apiVersion and kind."""
        self._lent: dict[str, dict[Place, tuple[int, int]]] = {}
        by_owner = {"owner": _owner_uid}
        self._workloads = self._cache(kinds.WORKLOAD, self._workload_changed, indexes=by_owner)
        self._pods = self._cache(kinds.POD, self._pod_changed, indexes={"node": _node, "cluster": _ray_cluster})
        self._nodes = self._cache(kinds.NODE, lambda change: self._mark("nodes", change.key.name))
        self._queues = self._cache(kinds.CLUSTER_QUEUE, lambda change: self._mark("clusterQueues", ""))
        self._cohorts = self._cache(kinds.COHORT, self._cohort_changed)
        self._local = self._cache(kinds.LOCAL_QUEUE, lambda change: self._mark("localQueues", str(change.key)))
        self._kinds: dict[Kind, Cache[Json]] = {kind: self._gang_cache(kind) for kind in (*gangs.KINDS, *gangs.QUEUED)}
        self._first = self._caches()
        """Those that a first look waits for."""

    # --- life

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for cache in self._first:
                tasks.create_task(cache.run())
            tasks.create_task(self._wait_for_all())
            while True:
                await self._news.wait()
                self._news.clear()
                self._refresh()
                await asyncio.sleep(PACE)

    async def _wait_for_all(self) -> None:
        """Each kind has come, or will not for now."""
        await asyncio.gather(*(self._known(cache) for cache in self._first))
        self._refresh()
        self._settled.set()

    async def _known(self, cache: Cache[Json]) -> None:
        either = [asyncio.ensure_future(one.wait()) for one in (cache.synced, self._refused[cache.kind])]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in either:
                waiting.cancel()

    def _caches(self) -> list[Cache[Json]]:
        shared = [self._workloads, self._pods, self._nodes, self._queues, self._cohorts, self._local]
        return [*self._kinds.values(), *shared]

    def _cache(self, kind: Kind, changed: Callable[[Change], None], **more: Any) -> Cache[Json]:
        self._refused[kind] = asyncio.Event()
        namespace = self.namespace if kind.namespaced else None
        cache: Cache[Json] = Cache(
            self._client, kind, namespace=namespace, clock=self._clock, settings=FEED, most=MOST_BYTES, share=True,
            report=lambda trouble: self._troubled(kind, trouble), **more,
        )  # fmt: skip
        cache.subscribe(changed)
        return cache

    def _gang_cache(self, kind: Kind) -> Cache[Json]:
        selector = "" if kind in gangs.KINDS else queued.QUEUE
        return self._cache(kind, lambda change: self._gang_changed(kind, change), label_selector=selector)

    def _troubled(self, kind: Kind, trouble: Trouble) -> None:
        if trouble.key is None:
            self.troubles[kind.resource] = trouble
            self._refused[kind].set()
            self._tell_troubles()

    def not_read(self) -> list[str]:
        """Resources that this user may not list here."""
        found = {
            cache.kind.resource for cache in self._caches() if cache.trouble is not None and not cache.synced.is_set()
        }
        return sorted(name for name in found if (one := self.troubles.get(name)) and one.reason == "Forbidden")

    # --- what changed

    def _mark(self, topic: str, name: str) -> None:
        self._stale.add((topic, name))
        self._news.set()

    def _gang_changed(self, kind: Kind, change: Change) -> None:
        uid = (change.new or change.old)["metadata"]["uid"]
        if change.new is not None:
            self._gangs[uid] = (kind, change.key)
        else:
            self._gangs.pop(uid, None)
        self._mark("gangs", uid)

    def _workload_changed(self, change: Change) -> None:
        for uid in _owner_uid(change.new or change.old):
            self._mark("gangs", uid)
        owner = controller_of(change.new or {"metadata": {}})
        if owner is None or self._tasks is None:
            return
        named = (str(owner.get("apiVersion")), str(owner.get("kind")))
        if named not in self._asked and not any(one.kind == named[1] for one in self._kinds):
            self._asked.add(named)
            self._tasks.create_task(self._learn(*named))

    async def _learn(self, api_version: str, name: str) -> None:
        """A kind of job that another package brings."""
        try:
            kind = await Discovery(self._client).kind_of(api_version, name)
        except KubeError:
            return
        if kind is not None and kind not in self._kinds and self._tasks is not None:
            self._kinds[kind] = self._gang_cache(kind)
            self._tasks.create_task(self._kinds[kind].run())

    def _pod_changed(self, change: Change) -> None:
        for pod in filter(None, (change.old, change.new)):
            for node in _node(pod):
                self._mark("nodes", node)
            for cluster in _ray_cluster(pod):
                for uid in self._of_cluster(cluster):
                    self._mark("gangs", uid)

    def _of_cluster(self, cluster: str) -> list[str]:
        """UIDs of the gangs whose row speaks of this Ray cluster's pods."""
        namespace, _, name = cluster.partition("/")
        found = self._kinds[kinds.RAY_CLUSTER].get(Key(namespace, name))
        if found is None:
            return []
        owner = controller_of(found)
        return [str(owner["uid"]) if owner is not None else found["metadata"]["uid"]]

    def _cohort_changed(self, change: Change) -> None:
        self._mark("cohorts", change.key.name)
        self._mark("clusterQueues", "")

    # --- rows

    def _refresh(self) -> None:
        stale, self._stale = self._stale, set()
        if ("clusterQueues", "") in stale:
            stale |= {("clusterQueues", name) for name in self.rows["clusterQueues"]}
            self._lent = lent(self._queues.list(), {one["metadata"]["name"]: one for one in self._cohorts.list()})
            stale |= {("clusterQueues", queue["metadata"]["name"]) for queue in self._queues.list()}
            stale.discard(("clusterQueues", ""))
        for topic, name in stale:
            row = self._row(topic, name)
            if row != self.rows[topic].get(name):
                if row is None:
                    self.rows[topic].pop(name, None)
                else:
                    self.rows[topic][name] = row
                for reader in self._readers:
                    reader.changed(topic, name)

    def _row(self, topic: str, name: str) -> Row | None:
        match topic:
            case "gangs":
                return self._gang_row(name)
            case "nodes":
                node = self._nodes.get(Key("", name))
                return views.node_row(node, self._pods.by_index("node", name)) if node is not None else None
            case "clusterQueues":
                queue = self._queues.get(Key("", name))
                return views.cluster_queue_row(queue, self._lent.get(name, {})) if queue is not None else None
            case "cohorts":
                cohort = self._cohorts.get(Key("", name))
                return views.cohort_row(cohort) if cohort is not None else None
        found = self._local.get(Key(*name.split("/", 1)))
        return views.local_queue_row(found) if found is not None else None

    def _gang_row(self, uid: str) -> Row | None:
        kind, key = self._gangs.get(uid, (None, None))
        obj = self._kinds[kind].get(key) if kind is not None and key is not None else None
        if obj is None or kind is None or key is None or not ray_gang.stands_alone(obj):
            return None
        workload = next(iter(self._workloads.by_index("owner", uid)), None)
        pods: list[Json] = []
        if kind in alone.KINDS and (cluster := alone.cluster_of(kind, obj)):
            pods = self._pods.by_index("cluster", f"{key.namespace}/{cluster}")
        return views.gang_row(kind, obj, workload, pods)

    # --- readers

    async def read(self) -> AsyncGenerator[dict[str, Any], None]:
        """Everything, as soon as it is known; then what changed, for ever."""
        reader = BoardReader()
        self._readers.add(reader)
        try:
            await self._settled.wait()
            reader.take()
            yield {"rows": {topic: [*found.values()] for topic, found in self.rows.items()}, "notRead": self.not_read()}
            while True:
                await reader.news.wait()
                await asyncio.sleep(PACE)
                yield self._told(reader)
        finally:
            self._readers.discard(reader)

    def _told(self, reader: BoardReader) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        for topic, names in reader.take().items():
            found = self.rows[topic]
            put, drop = [found[one] for one in names if one in found], [one for one in names if one not in found]
            changed[topic] = {"put": put, "drop": drop}
        return {"changes": changed, "notRead": self.not_read()}

    def _tell_troubles(self) -> None:
        for reader in self._readers:
            reader.news.set()


class BoardReader:
    """What one tab has not been told yet: names alone, so that it stays small however slow the tab is."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self._names: dict[str, set[str]] = {}

    def changed(self, topic: str, name: str) -> None:
        self._names.setdefault(topic, set()).add(name)
        self.news.set()

    def take(self) -> dict[str, set[str]]:
        self.news.clear()
        names, self._names = self._names, {}
        return names


def _owner_uid(obj: Json) -> list[str]:
    owner = controller_of(obj)
    return [str(owner["uid"])] if owner is not None else []


def _node(pod: Json) -> list[str]:
    name = (pod.get("spec") or {}).get("nodeName")
    return [str(name)] if name else []


def _ray_cluster(pod: Json) -> list[str]:
    owner = controller_of(pod)
    if owner is None or owner.get("kind") != kinds.RAY_CLUSTER.kind:
        return []
    return [f"{pod['metadata']['namespace']}/{owner['name']}"]
