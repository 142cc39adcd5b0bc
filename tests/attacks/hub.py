"""A user of a hub against its members: rights that the hub's credential has there and the user has not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shoal.api import kinds
from shoal.api.meta import Json
from tests.attacks.attack import Room, Succeeded
from tests.unit.appwrapper.test_rights import RBAC, WRAPPERS, as_user, grant
from tests.unit.clusters.build import Town, our_check, town
from tests.unit.clusters.test_app_wrappers import says
from tests.unit.clusters.test_creator_rights import WIDGET, submit, wrapper
from tests.unit.clusters.wrappers import SendingTown, gang, sending_town


@asynccontextmanager
async def world() -> AsyncIterator[Town]:
    """Bob may create AppWrappers and Jobs at the hub, and nothing else."""
    async with town("a") as found:
        await grant(found.hub, "bob", "default", WRAPPERS, ("batch", "jobs"))
        found.start_hub()
        await found.connected()
        yield found


@asynccontextmanager
async def sending() -> AsyncIterator[SendingTown]:
    """A hub that sends AppWrappers, and a member whose namespace has never heard of it."""
    async with sending_town("a", accepted=False) as found:
        await grant(found.hub, "bob", "default", WRAPPERS, ("", "pods"))
        found.send()
        await found.connected()
        yield found


ROOM = Room("the members, as a user of the hub", world)


async def sent(t: Town, name: str, wrapped: Json) -> str:
    """Submit it as bob, and wait for the hub's word."""
    workload = await submit(t, wrapper(name, wrapped))
    found = await t.hub.until(kinds.WORKLOAD, workload, lambda one: bool(our_check(one).get("message")))
    await t.settled()
    if await t.where(kinds.APP_WRAPPER_V1BETA2, name):
        raise Succeeded(f"the member got an AppWrapper with a {wrapped['kind']}")
    return str(our_check(found)["message"])


def _named(kind: str, **content: object) -> Json:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "loot"}, **content}


@ROOM.attack("a user of the hub", "wraps a Secret that may not be created at the hub")
async def secret(t: Town) -> str:
    return await sent(t, "secret", _named("Secret", stringData={"a": "b"}))


@ROOM.attack("a user of the hub", "wraps a kind that only the member serves")
async def unserved(t: Town) -> str:
    return await sent(t, "unserved", WIDGET)


@ROOM.attack("a user of the hub", "wraps a RoleBinding that the hub's credential could create")
async def binding(t: Town) -> str:
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}
    body = {**_named("RoleBinding", roleRef=role), "apiVersion": f"{RBAC}/v1"}
    return await sent(t, "binding", body)


SENDING_ROOM = Room("the members' namespaces, as a user of a hub that sends AppWrappers", sending)


@SENDING_ROOM.attack("a user of the hub", "sends pods into a member's namespace that does not name the hub's")
async def stranger(t: SendingTown) -> str:
    await as_user(t.hub, "bob").create(kinds.APP_WRAPPER, gang("loot"), "default")
    found = await t.hub.until(kinds.APP_WRAPPER, "loot", says("does not take gangs"))
    if t.wires["a"].sent:
        raise Succeeded(f"the member got {t.wires['a'].sent}")
    return str(found["status"]["message"])
