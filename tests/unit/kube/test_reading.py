"""What reading survives on any server: here on the embedded one in memory, in the integration tests on a real one.

Both collect `TestReading`; each has a `site` fixture of its own (`site.py`).
"""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api.kind import Key, Kind
from shoal.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, CONFIG_MAP, CRD, SECRET
from shoal.api.meta import Object
from shoal.kube.cache import Cache, Change
from shoal.kube.feed import Feed, FeedSettings
from shoal.kube.trouble import Trouble
from tests.faults import proven

from .samples import config_map, crd, custom
from .site import Site


class Counted(Object):
    spec: dict[str, int] | None = None


def undecodable_ends_the_list(patch: pytest.MonkeyPatch) -> None:
    def give_up(self: object, data: bytes, error: Exception) -> None:
        raise error

    patch.setattr(Cache, "_cannot_decode", give_up)


def index_failure_is_fatal(patch: pytest.MonkeyPatch) -> None:
    def give_up(self: object, key: object, reason: str) -> None:
        raise RuntimeError(reason)

    patch.setattr(Cache, "_quarantine", give_up)


def missing_kind_is_fatal(patch: pytest.MonkeyPatch) -> None:
    def give_up(self: object, error: Exception) -> None:
        raise error

    patch.setattr(Feed, "_name_trouble", give_up)


def nothing_is_named(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Feed, "_name_trouble", lambda self, error: None)


def lists_only_add(patch: pytest.MonkeyPatch) -> None:
    def keep_all(self: Cache[Any], listed: set[Key], revision: str, *, forced: bool = False) -> None:
        self.synced.set()

    patch.setattr(Cache, "keep_only", keep_all)


class TestReading:
    @proven(without=undecodable_ends_the_list)
    async def test_f062_one_undecodable_object_never_stops_the_others(self, site: Site) -> None:
        """F62: one undecodable object in a list or watch. Holds: it is named with what to do and left as it was last
        read, others go on; mending it helps."""
        client, where = site.client, site.namespace
        cog = Kind("example.test", "v1", "Cog", "cogs")
        await site.install(cog)
        await client.create(cog, custom(cog, "bad", spec={"n": "many"}), where)
        await client.create(cog, custom(cog, "good", spec={"n": 1}), where)
        reports: list[Trouble] = []
        cache = site.cache(cog, Counted, report=reports.append)
        await site.until(lambda: len(cache) == 1 and bool(cache.undecodable))
        assert [(report.reason, report.key) for report in reports] == [("Undecodable", Key(where, "bad"))]
        assert reports[0].message.startswith(f"cogs.example.test {where}/bad cannot be read and is left alone")
        assert "Expected `int`, got `str`" in reports[0].message
        assert reports[0].message.endswith("Correct or delete it.")

        await client.patch(cog, "good", where, {"spec": {"n": "spoilt"}})
        await client.create(cog, custom(cog, "next", spec={"n": 2}), where)
        await site.until(lambda: len(cache) == 2)
        assert sorted(key.name for key in cache) == ["good", "next"]
        assert cache.get(Key(where, "good")).spec == {"n": 1}  # the last good state, not a pretended deletion

        await client.patch(cog, "bad", where, {"spec": {"n": 3}})
        await site.until(lambda: len(cache) == 3)
        assert set(cache.undecodable) == {Key(where, "good")}

    @proven(without=index_failure_is_fatal)
    async def test_f045_a_stored_object_that_breaks_our_code_is_set_aside(self, site: Site) -> None:
        """F45: a stored object breaks our code at every start. Holds: set aside and reported, the rest is served."""
        where = site.namespace
        await site.client.create(CONFIG_MAP, config_map("good", namespace=where, queue="a"), where)
        await site.client.create(CONFIG_MAP, config_map("odd", namespace=where), where)
        for _ in range(2):  # a restart meets the same object
            reports: list[Trouble] = []
            indexes = {"queue": lambda obj: [obj["data"]["queue"]]}
            cache = site.cache(CONFIG_MAP, namespace=where, indexes=indexes, report=reports.append)
            await site.until(lambda cache=cache: len(cache) == 1 and bool(cache.undecodable))  # type: ignore[misc]
            assert [obj["metadata"]["name"] for obj in cache.by_index("queue", "a")] == ["good"]
            assert [report.key for report in reports] == [Key(where, "odd")]

    @proven(without=missing_kind_is_fatal)
    async def test_f049_a_kind_that_is_not_installed_is_waited_for_by_name(self, site: Site) -> None:
        """F49: a kind is installed later, or another version of it. Holds: waited for by name, joins without a
        restart."""
        first, second = (Kind("example.test", version, "Gadget", "gadgets") for version in ("v1", "v2"))
        reports: list[Trouble] = []
        by_pages, by_stream = (
            site.cache(kind, report=reports.append, settings=FeedSettings(streaming_lists=streams, retry_cap=1.0))
            for kind, streams in ((first, False), (second, True))
        )
        await site.until(lambda: by_pages.trouble is not None and by_stream.trouble is not None)
        assert [report.reason for report in reports] == ["KindNotInstalled"] * 2

        await site.install(first)
        await site.client.create(first, custom(first, "g"), site.namespace)
        # a real server makes the kind's storage anew while it is installed, and asks to wait meanwhile
        await site.until(lambda: len(by_pages) == 1 and by_pages.trouble is None)
        assert by_stream.trouble is not None  # half served: the other version is there, this one is not
        assert "gadgets.example.test (example.test/v2) is not served" in by_stream.trouble.message

        [served] = crd(first)["spec"]["versions"]
        versions = [served, {**served, "name": "v2", "storage": False}]
        await site.client.patch(CRD, first.resource, None, {"spec": {"versions": versions}})
        await site.until(lambda: len(by_stream) == 1 and by_stream.trouble is None)
        await site.client.delete(first, "g", site.namespace)
        await site.until(lambda: len(by_stream) == 0)

    @proven(without=nothing_is_named)
    async def test_f060_a_missing_permission_is_named_and_other_kinds_go_on(self, site: Site) -> None:
        """F60: a right is missing. Holds: verb and resource are named once and within 10 s, other kinds go on;
        granted, it joins."""
        rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}
        subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "newcomer"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "newcomer"}
        binding = {"metadata": {"name": "newcomer"}, "roleRef": role, "subjects": [subject]}
        await site.client.create(CLUSTER_ROLE, {"metadata": {"name": "newcomer"}, "rules": [rule]})
        await site.client.create(CLUSTER_ROLE_BINDING, binding)
        newcomer = site.reader.impersonating("newcomer")
        reports: list[Trouble] = []
        allowed = site.cache(CONFIG_MAP, by=newcomer, settings=FeedSettings(retry_cap=0.5))
        denied = site.cache(SECRET, by=newcomer, settings=FeedSettings(retry_cap=0.5), report=reports.append)
        await site.until(lambda: denied.trouble is not None, seconds=10)
        await site.synced(allowed, seconds=10)
        assert [report.reason for report in reports] == ["Forbidden"]  # once, not at every attempt
        assert "grant the verbs list and watch on secrets" in reports[0].message
        assert 'User "newcomer" cannot list resource "secrets"' in reports[0].message
        both = {**rule, "resources": ["configmaps", "secrets"]}
        await site.client.patch(CLUSTER_ROLE, "newcomer", None, {"rules": [both]})
        await site.synced(denied, seconds=10)
        assert denied.trouble is None

    @proven(without=lists_only_add)
    async def test_f053_history_that_is_gone_leads_to_one_list_with_its_difference(self, site: Site) -> None:
        """F53: 410 Gone after a compaction or a restart of the server. Holds: one list, its difference applied,
        deletions inferred, no storm."""
        client, where = site.client, site.namespace
        for name in ("stays", "changes", "goes"):
            await client.create(CONFIG_MAP, config_map(name, namespace=where), where)
        cache = site.cache(CONFIG_MAP, namespace=where, settings=FeedSettings(retry_cap=1.0))
        await site.until(lambda: len(cache) == 3)
        seen: list[Change] = []
        cache.subscribe(seen.append)
        seen.clear()
        async with site.forgetting():
            await client.patch(CONFIG_MAP, "changes", where, {"data": {"n": "2"}})
            await client.delete(CONFIG_MAP, "goes", where)
            await client.create(CONFIG_MAP, config_map("comes", namespace=where), where)
        await site.until(lambda: len(seen) == 3)
        assert sorted((change.kind, change.key.name) for change in seen) == [
            ("added", "comes"),
            ("changed", "changes"),
            ("removed", "goes"),
        ]
        assert cache.feed.counts.gone == 1 and cache.feed.counts.lists == 2
