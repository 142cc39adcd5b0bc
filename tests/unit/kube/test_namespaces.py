"""A client that is limited to some namespaces reads those alone, by one list and watch for each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal.api.kind import Key
from shoal.api.kinds import CONFIG_MAP, NAMESPACE, NODE, POD, ROLE, ROLE_BINDING
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.kube.errors import Forbidden
from shoal.kube.slices import NamespaceSlice
from tests.embedded import Embedded
from tests.faults import proven

from .conftest import Start
from .samples import config_map, pod
from .site import EmbeddedSite

RED, BLUE = "red", "blue"
RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
async def limited(server: Embedded, client: Client) -> Client:
    for name in (RED, BLUE):
        await client.create(NAMESPACE, {"metadata": {"name": name}})
    return Client(server.transport(), namespaces=(RED, BLUE))


async def filled(cache: Cache[Any], count: int) -> None:
    await cache.synced.wait()
    changed = asyncio.Event()
    end = cache.subscribe(lambda change: changed.set())
    async with asyncio.timeout(10):
        while len(cache) != count:
            changed.clear()
            await changed.wait()
    end()


async def test_other_namespaces_are_not_read(
    client: Client, limited: Client, clock: VirtualClock, start: Start
) -> None:
    for where in (RED, BLUE, "team"):
        await client.create(CONFIG_MAP, config_map("settings", namespace=where), where)
        await client.create(POD, pod("busy", namespace=where), where)
    maps: Cache[Any] = Cache(limited, CONFIG_MAP, clock=clock)
    pods: Cache[Any] = Cache(limited, POD, everywhere=True, clock=clock)
    nodes: Cache[Any] = Cache(limited, NODE, clock=clock)
    for cache in (maps, pods, nodes):
        start(cache.run())
    await filled(maps, 2)
    assert {key.namespace for key in maps} == {RED, BLUE}
    await filled(pods, 3)
    await filled(nodes, 0)
    made = await client.create(CONFIG_MAP, config_map("later", namespace=BLUE), BLUE)
    await client.delete(CONFIG_MAP, "settings", RED)
    await filled(maps, 2)
    async with asyncio.timeout(10):
        await maps.catch_up()
    assert {(key.namespace, key.name) for key in maps} == {(BLUE, "settings"), (BLUE, "later")}
    elsewhere = await client.create(CONFIG_MAP, config_map("elsewhere", namespace="team"), "team")
    maps.note_write(elsewhere)
    maps.note_write(made)
    assert len(maps) == 2 and maps.feed.counts.lists + maps.feed.counts.watches >= 2 and maps.trouble is None


def _forgets_the_namespace(patch: pytest.MonkeyPatch) -> None:
    def whole(self: NamespaceSlice, listed: set[Key], revision: str, *, forced: bool = False) -> None:
        self._whole.keep_only(listed, revision, forced=forced)

    patch.setattr(NamespaceSlice, "keep_only", whole)


@proven(without=_forgets_the_namespace)
async def test_f440_a_list_of_one_namespace_removes_nothing_of_another(
    site: EmbeddedSite, client: Client, limited: Client
) -> None:
    """F440: the controller looks after two namespaces with rights in these alone, and the history of both watches is
    lost. Holds: its cache is filled only with both, and a new list of one takes nothing of the other out of it."""
    controller = Client(site.reader.transport, namespaces=limited.namespaces).impersonating("controller")
    for where in (RED, BLUE):
        await client.create(CONFIG_MAP, config_map("settings", namespace=where), where)
    await grant(client, RED)
    with pytest.raises(Forbidden):
        await controller.list(CONFIG_MAP)
    removed: list[Key] = []
    maps = site.cache(CONFIG_MAP, by=controller)
    maps.subscribe(lambda change: removed.append(change.key) if change.new is None else None)
    await site.until(lambda: len(maps) == 1 and maps.trouble is not None)
    assert not maps.synced.is_set() and {key.namespace for key in maps} == {RED}
    await grant(client, BLUE)
    await site.until(maps.synced.is_set)
    async with site.forgetting():
        for where in (RED, BLUE):
            await client.create(CONFIG_MAP, config_map("later", namespace=where), where)
    await site.until(lambda: maps.feed.counts.gone == 2 and len(maps) == 4)
    assert removed == [] and maps.trouble is None


async def grant(client: Client, where: str) -> None:
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]
    role = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": "reader"}, "rules": rules}
    subject = {"kind": "User", "apiGroup": RBAC, "name": "controller"}
    reference = {"apiGroup": RBAC, "kind": "Role", "name": "reader"}
    binding = {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": {"name": "reader"}}
    await client.create(ROLE, role, where)
    await client.create(ROLE_BINDING, {**binding, "roleRef": reference, "subjects": [subject]}, where)
