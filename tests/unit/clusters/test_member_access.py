"""The aggregated API of an installed hub: what gangs have in members, under the rights of the user that asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from shoal.api import kinds
from shoal.cli.installation import member_rules
from shoal.cli.member_access import ROOT, MemberAccess
from shoal.kube import front_proxy
from shoal.kube.admission_review import User
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden
from shoal.sdk import elsewhere
from tests.faults import proven
from tests.unit.appwrapper.test_rights import WRAPPERS, as_user
from tests.unit.appwrapper.test_rights import grant as grant_user
from tests.unit.clusters.test_reading import log_of, reads
from tests.unit.clusters.test_rights import grant
from tests.unit.clusters.wrappers import SendingTown, sending_town

WHO = "x-remote-user"


class Paths:
    """As the server of the webhooks."""

    def __init__(self) -> None:
        self.app = web.Application()

    def answer(self, path: str, handler: Any, *, posts: bool = False) -> None:
        self.app.router.add_get(path, handler)
        if posts:
            self.app.router.add_post(path, handler)


def user_of(request: web.Request) -> User | None:
    name = request.headers.get(WHO)
    return User(username=name, groups=["system:authenticated"]) if name else None


@asynccontextmanager
async def access(t: SendingTown) -> AsyncIterator[TestServer]:
    paths = Paths()
    MemberAccess(t.places).serve(t.hub.client, paths, user_of)  # type: ignore[arg-type]
    async with TestServer(paths.app) as server:
        yield server


async def ask(server: TestServer, path: str, user: str = "") -> tuple[int, str]:
    async with aiohttp.ClientSession() as session:
        headers = {WHO: user} if user else {}
        async with session.get(server.make_url(f"{ROOT}{path}"), headers=headers) as answer:
            return answer.status, await answer.text()


def lets_everyone_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def may(*asked: object) -> bool:
        return True

    monkeypatch.setattr(front_proxy, "may", may)


@proven(without=lets_everyone_in)
async def test_f739_an_installed_hub_tells_of_members_under_the_users_own_rights() -> None:
    """F739: users ask the aggregated API of a hub for the log of what runs in a member: one without the right to read
    logs at the hub, one with it, and a caller that is no API server. Holds: only the second is told it."""
    async with sending_town("a") as t:
        pod = await reads(t)
        logs = f"/clusters/a/proxy/api/v1/namespaces/default/pods/{pod}/log"
        await grant_user(t.hub, "bob", "default", WRAPPERS, ("", "pods"))
        await grant_user(t.hub, "eve", "default", WRAPPERS, ("", "pods"), ("", "pods/log"))
        async with access(t) as server:
            assert (await ask(server, logs))[0] == 401
            assert (await ask(server, logs, "bob"))[0] == 403
            assert await ask(server, logs, "eve") == (200, f"hello from {pod}\n")
            assert (await ask(server, "/clusters/a/proxy/api/v1/namespaces/default/secrets", "eve"))[0] == 403
            assert (await ask(server, "/clusters/a/proxy/api/v1/nodes", "admin"))[0] == 403
            assert (await ask(server, "/clusters/z/proxy/api", "eve"))[0] == 503
            async with aiohttp.ClientSession() as session:
                for what, code in ((f"/{pod}/portforward", 403), ("", 405)):
                    address = server.make_url(f"{ROOT}/clusters/a/proxy/api/v1/namespaces/default/pods{what}")
                    async with session.post(address, headers={WHO: "bob"}) as answer:
                        assert answer.status == code
            status, told = await ask(server, "", "eve")
            assert status == 200 and "clusters/proxy" in told


async def test_logs_are_read_with_the_rights_that_are_printed_for_a_member() -> None:
    async with sending_town("a") as t:
        made = {"verbs": ["create"], "apiGroups": ["batch"], "resources": ["jobs"]}
        await grant(t.members["a"], "hub", [*member_rules(), made])
        there = t.members["a"].server.transport(user="hub", groups=("system:authenticated",))
        t.connect = lambda content, source: there  # type: ignore[method-assign]
        pod = await reads(t)
        assert await log_of(t.hub.client) == f"hello from {pod}\n".encode()
        direct = Client(elsewhere.ClusterTransport(t.hub.client.transport, "a"))
        assert await direct.list(kinds.EVENT, "default") is not None


async def test_a_user_that_may_not_read_gangs_is_not_told_where_they_run() -> None:
    async with sending_town("a") as t:
        await reads(t)
        obj = await t.hub.get(kinds.APP_WRAPPER, "train")
        with pytest.raises(Forbidden):
            await elsewhere.reading(as_user(t.hub, "mallory"), kinds.APP_WRAPPER, obj)
