"""What reading survives, with a real server behind: the rows that the unit tests hold on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shoal.api.kind import Key, Kind
from shoal.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, CONFIG_MAP, CRD, NAMESPACE, SECRET
from shoal.api.meta import Object
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.feed import Feed, FeedSettings
from shoal.kube.kubeconfig import load
from shoal.kube.schemas import missing_fields
from shoal.kube.trouble import Trouble
from tests.controlplane.plane import ControlPlane
from tests.faults import proven

from .conftest import Start, config_map, install, widget_crd
from .proxy import Proxy

pytestmark = pytest.mark.controlplane


class Watched:
    """A cache, and a way to wait for what it holds without polling."""

    def __init__(self, client: Client, kind: Kind, type: Any = dict, **options: Any) -> None:
        self.reports: list[Trouble] = []
        self._moved = asyncio.Event()
        self.cache: Cache[Any] = Cache(client, kind, type, report=self._reported, **options)
        self.cache.subscribe(lambda change: self._moved.set())

    def _reported(self, trouble: Trouble) -> None:
        self.reports.append(trouble)
        self._moved.set()

    async def until(self, holds: Callable[[Cache[Any]], bool], seconds: float = 20.0) -> None:
        async with asyncio.timeout(seconds):
            while not holds(self.cache):
                self._moved.clear()
                await self._moved.wait()

    @property
    def names(self) -> list[str]:
        return sorted(key.name for key in self.cache)


@asynccontextmanager
async def wire(plane: ControlPlane, folder: Path) -> AsyncIterator[tuple[Proxy, Client]]:
    """A client whose connection can be held, cut and brought back."""
    proxy = Proxy(plane.port)
    await proxy.start()
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(plane.kubeconfig.read_text().replace(str(plane.port), str(proxy.port)))
    transport = load(kubeconfig)
    try:
        yield proxy, Client(transport)
    finally:
        await transport.close()
        await proxy.stop()


# --- F45, F62


def _undecodable_ends_the_list(patch: pytest.MonkeyPatch) -> None:
    def give_up(self: object, data: bytes, error: Exception) -> None:
        raise error

    patch.setattr(Cache, "_cannot_decode", give_up)


def _index_failure_is_fatal(patch: pytest.MonkeyPatch) -> None:
    def give_up(self: object, key: object, reason: str) -> None:
        raise RuntimeError(reason)

    patch.setattr(Cache, "_quarantine", give_up)


class Counted(Object):
    spec: dict[str, int] | None = None


@proven(without=_undecodable_ends_the_list)
async def test_f062_an_object_of_a_real_server_that_does_not_decode_stops_no_other(
    client: Client, start: Start
) -> None:
    """F62: one stored object does not decode. Holds: it is named with what to do, others go on, mending it helps."""
    cog = Kind("example.test", "v1", "Cog", "cogs")
    await install(client, cog)
    body = {"apiVersion": "example.test/v1", "kind": "Cog"}
    await client.create(cog, {**body, "metadata": {"name": "bad"}, "spec": {"n": "many"}}, "default")
    await client.create(cog, {**body, "metadata": {"name": "good"}, "spec": {"n": 1}}, "default")
    watched = Watched(client, cog, Counted)
    start(watched.cache.run())
    await watched.until(lambda cache: len(cache) == 1 and bool(cache.undecodable))
    await client.create(cog, {**body, "metadata": {"name": "next"}, "spec": {"n": 2}}, "default")
    await watched.until(lambda cache: len(cache) == 2)
    assert watched.names == ["good", "next"]
    assert [report.key for report in watched.reports] == [Key("default", "bad")]
    assert watched.reports[0].message.startswith("cogs.example.test default/bad cannot be read and is left alone")
    assert watched.reports[0].message.endswith("Correct or delete it.")
    await client.patch(cog, "bad", "default", {"spec": {"n": 3}})
    await watched.until(lambda cache: len(cache) == 3)
    assert watched.cache.undecodable == {}


@proven(without=_index_failure_is_fatal)
async def test_f045_a_stored_object_that_breaks_our_code_does_not_stop_the_start(client: Client, start: Start) -> None:
    """F45: a stored object breaks our code at every start. Holds: set aside and reported, the rest is served."""
    await client.create(NAMESPACE, {"metadata": {"name": "broken"}})
    await client.create(CONFIG_MAP, config_map("good", "broken", queue="a"), "broken")
    await client.create(CONFIG_MAP, config_map("odd", "broken"), "broken")
    for _ in range(2):  # a restart meets the same object
        watched = Watched(client, CONFIG_MAP, namespace="broken", indexes={"queue": lambda obj: [obj["data"]["queue"]]})
        running = start(watched.cache.run())
        await watched.until(lambda cache: len(cache) == 1 and bool(cache.undecodable))
        assert [obj["metadata"]["name"] for obj in watched.cache.by_index("queue", "a")] == ["good"]
        assert [report.key for report in watched.reports] == [Key("broken", "odd")]
        running.cancel()


# --- F49, F60


def _missing_kind_is_fatal(patch: pytest.MonkeyPatch) -> None:
    def give_up(self: object, error: Exception) -> None:
        raise error

    patch.setattr(Feed, "_name_trouble", give_up)


@proven(without=_missing_kind_is_fatal)
async def test_f049_a_kind_joins_when_a_real_server_begins_to_serve_it(client: Client, start: Start) -> None:
    """F49: a kind is installed later, or another version of it. Holds: waited for by name, joins without a restart."""
    first, second = (Kind("example.test", version, "Gadget", "gadgets") for version in ("v1", "v2"))
    by_pages, by_stream = (
        Watched(client, kind, settings=FeedSettings(streaming_lists=streams, retry_cap=1.0))
        for kind, streams in ((first, False), (second, True))
    )
    for watched in (by_pages, by_stream):
        start(watched.cache.run())
        await watched.until(lambda cache: cache.trouble is not None)
        assert [report.reason for report in watched.reports] == ["KindNotInstalled"]

    await install(client, first)
    await client.create(
        first, {"apiVersion": "example.test/v1", "kind": "Gadget", "metadata": {"name": "g"}}, "default"
    )
    await by_pages.until(lambda cache: len(cache) == 1)
    assert by_pages.cache.trouble is None
    assert by_stream.cache.trouble is not None  # half served: the other version is there, this one is not
    assert "gadgets.example.test (example.test/v2) is not served" in by_stream.cache.trouble.message

    [served] = widget_crd(first)["spec"]["versions"]
    versions = [served, {**served, "name": "v2", "storage": False}]
    await client.patch(CRD, first.resource, None, {"spec": {"versions": versions}})
    await by_stream.until(lambda cache: len(cache) == 1)
    assert by_stream.cache.trouble is None
    await client.delete(first, "g", "default")
    await by_stream.until(lambda cache: len(cache) == 0)


def _nothing_is_named(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Feed, "_name_trouble", lambda self, error: None)


@proven(without=_nothing_is_named)
async def test_f060_a_permission_that_a_real_server_denies_is_named_and_waited_for(
    client: Client, start: Start
) -> None:
    """F60: a right is missing. Holds: verb and resource are named within 10 s, other kinds go on; granted, it joins."""
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "newcomer"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "newcomer"}
    await client.create(CLUSTER_ROLE, {"metadata": {"name": "newcomer"}, "rules": [rule]})
    await client.create(
        CLUSTER_ROLE_BINDING, {"metadata": {"name": "newcomer"}, "roleRef": role, "subjects": [subject]}
    )
    newcomer = client.impersonating("newcomer")
    allowed = Watched(newcomer, CONFIG_MAP, settings=FeedSettings(retry_cap=0.5))
    denied = Watched(newcomer, SECRET, settings=FeedSettings(retry_cap=0.5))
    start(allowed.cache.run())
    start(denied.cache.run())
    await denied.until(lambda cache: cache.trouble is not None, seconds=10)
    assert [report.reason for report in denied.reports] == ["Forbidden"]
    assert "grant the verbs list and watch on secrets" in denied.reports[0].message
    assert 'User "newcomer" cannot list resource "secrets"' in denied.reports[0].message
    async with asyncio.timeout(10):
        await allowed.cache.synced.wait()
    both = {**rule, "resources": ["configmaps", "secrets"]}
    await client.patch(CLUSTER_ROLE, "newcomer", None, {"rules": [both]})
    async with asyncio.timeout(10):
        await denied.cache.synced.wait()
    assert denied.cache.trouble is None


# --- F67


def _no_schema_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Feed) -> None:
        self._unchecked = ()

    patch.setattr(Feed, "_check_schema", nothing)


@proven(without=_no_schema_is_looked_at)
async def test_f067_a_kind_whose_crd_drops_what_we_store_is_left_alone_until_it_is_updated(
    client: Client, start: Start
) -> None:
    """F67: the CRD on the server is older than we are. Holds: the fields it drops are named and the kind is not read;
    updated, it joins without a restart."""
    lever = Kind("example.test", "v1", "Lever", "levers")
    old = widget_crd(lever)
    text = {"type": "string"}
    schema = {"type": "object", "properties": {"status": {"type": "object", "properties": {"state": text}}}}
    old["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": schema}
    await client.create(CRD, old)
    await until_described(client, lever)
    watched = Watched(client, lever, requires=("status.state", "status.plan"), settings=FeedSettings(retry_cap=0.5))
    start(watched.cache.run())
    await watched.until(lambda cache: cache.trouble is not None)
    assert [report.reason for report in watched.reports] == ["SchemaTooOld"]
    assert "levers.example.test (v1)" in watched.reports[0].message
    assert "drops status.plan. Nothing is done with this kind" in watched.reports[0].message
    assert not watched.cache.synced.is_set()
    schema["properties"]["status"]["properties"]["plan"] = {**text}  # type: ignore[index]
    versions = [{**old["spec"]["versions"][0], "schema": {"openAPIV3Schema": schema}}]
    await client.patch(CRD, lever.resource, None, {"spec": {"versions": versions}})
    async with asyncio.timeout(20):
        await watched.cache.synced.wait()
    assert watched.cache.trouble is None


async def until_described(client: Client, kind: Kind) -> None:
    """A server publishes the schema of a new kind a moment after it serves it."""
    async with asyncio.timeout(20):
        while not await missing_fields(client, kind, ["status.nothing"]):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


# --- F52, F53


def _one_watch_only(patch: pytest.MonkeyPatch) -> None:
    async def once(self: Feed) -> None:
        await self.load()
        await self._watch()
        await asyncio.Event().wait()

    patch.setattr(Feed, "_follow_for_ever", once)


@proven(without=_one_watch_only)
async def test_f052_a_watcher_that_a_real_server_cuts_for_being_slow_misses_nothing(
    client: Client, control_plane: ControlPlane, start: Start, tmp_path: Path
) -> None:
    """F52: a burst of 2,000 is more than the watcher reads; the server ends its watch. Holds: none is missing."""
    count, payload = 2000, "x" * 8000
    await client.create(NAMESPACE, {"metadata": {"name": "burst"}})
    writer = load(control_plane.kubeconfig)
    async with wire(control_plane, tmp_path) as (proxy, far):
        watched = Watched(far, CONFIG_MAP, Object, namespace="burst")
        start(watched.cache.run())
        async with asyncio.timeout(20):
            await watched.cache.synced.wait()
        proxy.hold()
        numbers = iter(range(count))

        async def create() -> None:
            for number in numbers:
                await Client(writer).create(CONFIG_MAP, config_map(f"c{number}", "burst", text=payload), "burst")

        await asyncio.gather(*(create() for _ in range(24)))
        proxy.release()
        await watched.until(lambda cache: len(cache) == count, seconds=30)
        counts = watched.cache.feed.counts
        assert counts.watches >= 2, "the server did not cut the watch: the burst was too small to prove anything"
        assert counts.lists == 1 + counts.gone
    await writer.close()


def _lists_only_add(patch: pytest.MonkeyPatch) -> None:
    def keep_all(self: Cache[Any], listed: set[Key], revision: str, *, forced: bool = False) -> None:
        self.synced.set()

    patch.setattr(Cache, "keep_only", keep_all)


@proven(without=_lists_only_add)
async def test_f053_a_real_server_that_forgot_its_history_is_listed_once(
    client: Client, control_plane: ControlPlane, hands: ThreadPoolExecutor, start: Start, tmp_path: Path
) -> None:
    """F53: 410 from a restarted server. Holds: one list, the difference applied, deletions inferred."""
    await client.create(NAMESPACE, {"metadata": {"name": "forgetful"}})
    for name in ("stays", "changes", "goes"):
        await client.create(CONFIG_MAP, config_map(name, "forgetful"), "forgetful")
    async with wire(control_plane, tmp_path) as (proxy, far):
        watched = Watched(far, CONFIG_MAP, namespace="forgetful", settings=FeedSettings(retry_cap=1.0))
        start(watched.cache.run())
        await watched.until(lambda cache: len(cache) == 3)
        seen: list[Change] = []
        watched.cache.subscribe(seen.append)
        seen.clear()
        await proxy.stop()
        await client.patch(CONFIG_MAP, "changes", "forgetful", {"data": {"n": "2"}})
        await client.delete(CONFIG_MAP, "goes", "forgetful")
        await client.create(CONFIG_MAP, config_map("comes", "forgetful"), "forgetful")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(hands, control_plane.kill_apiserver)
        await loop.run_in_executor(hands, control_plane.restart_apiserver)
        await proxy.start()
        await watched.until(lambda cache: len(seen) == 3)
        assert sorted((change.kind, change.key.name) for change in seen) == [
            ("added", "comes"),
            ("changed", "changes"),
            ("removed", "goes"),
        ]
        assert watched.cache.feed.counts.gone == 1
        assert watched.cache.feed.counts.lists == 2
