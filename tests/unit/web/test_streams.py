"""What streams for hours: rows and logs end with the token that opened them, and no other site can open one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from shoal.api import kinds
from shoal.cli import page as composition
from shoal.cli.page import by_token
from shoal.kube import kubeconfig
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.web import PageServer, guard
from shoal.web.sessions import SESSION_SECONDS, Visitor
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.patience import PATIENCE, patiently
from tests.unit.web.visiting import VisitingTab, served, tab

AFTER_THE_TOKEN = 30.0
"""Seconds within which a stream must have ended."""


class EndlessLog(Client):
    """A client whose pods never stop talking."""

    async def logs(self, *given: object, **more: object) -> AsyncIterator[bytes]:  # type: ignore[override]
        while True:
            yield b"still here\n"
            await asyncio.sleep(0.01)


@asynccontextmanager
async def logged_in(page: PageServer, cluster: Cluster, tmp_path: Path) -> AsyncIterator[VisitingTab]:
    """A tab of a service account that may read everything, opened by its token as on a cluster."""
    await cluster.server.serve()
    own = tmp_path / "kubeconfig"
    cluster.server.write_kubeconfig(own)
    await cluster.create(kinds.SERVICE_ACCOUNT, {"metadata": {"name": "robot"}})
    subject = {"kind": "ServiceAccount", "name": "robot", "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    binding = {"metadata": {"name": "robot"}, "subjects": [subject], "roleRef": role}
    await cluster.client.create(kinds.CLUSTER_ROLE_BINDING, binding)
    made = await cluster.client.create(kinds.SERVICE_ACCOUNT, {}, "default", subresource="token", name="robot")
    visitor = await by_token(lambda token: kubeconfig.load_with_token(token, own))(made["status"]["token"])
    async with tab(page) as browser:
        assert await browser.login(page.invite(visitor)) == 200
        yield browser


async def ended(answer: aiohttp.ClientResponse) -> bool:
    """Read to the end, which a stream that goes on has not within our patience."""
    try:
        async with patiently(PATIENCE):
            while await answer.content.readany():
                pass
    except (aiohttp.ClientError, ConnectionError):
        pass
    return True


def _goes_on(patch: pytest.MonkeyPatch) -> None:
    async def never_asked(client: Client) -> str:
        return "robot"

    patch.setattr(composition, "user_of", never_asked)
    patch.setattr("tests.unit.web.test_streams.PATIENCE", 2.0)


@proven(without=_goes_on)
async def test_f124_rows_stop_soon_after_the_token_that_opened_them(tmp_path: Path) -> None:
    """F124: a user's token is taken back while a tab streams rows, whose watches the API server lets go on. Holds: the
    stream ends within 30 s, and the tab gets no further one."""
    clock = VirtualClock()
    async with (
        running(with_builtin=False) as cluster,
        served(PageServer(clock=clock)) as page,
        logged_in(page, cluster, tmp_path) as browser,
    ):
        headers = {"X-Shoal-Key": browser.key}
        async with browser.http.get(f"{page.address}/data/live", headers=headers) as stream:
            assert stream.status == 200 and b"rows" in await stream.content.readuntil(b"}\n\n")
            await clock.advance(AFTER_THE_TOKEN)
            await cluster.add_node("node-2", cpu="4")
            assert b"node-2" in await stream.content.readuntil(b"}\n\n")
            await cluster.client.delete(kinds.SERVICE_ACCOUNT, "robot", "default")
            before = clock.monotonic()
            reading = asyncio.ensure_future(ended(stream))
            while not reading.done() and clock.monotonic() - before < AFTER_THE_TOKEN:
                await clock.advance(5.0)
                await asyncio.wait((reading,), timeout=1.5)  # what is asked of the server takes real time
            assert await reading
        assert (await browser.get("/data/me"))[0] == 401


def _not_looked_at(patch: pytest.MonkeyPatch) -> None:
    async def asleep(sessions: object, session: object) -> None:
        await asyncio.Event().wait()

    patch.setattr("shoal.web.sessions.Sessions._watch", asleep)
    patch.setattr("tests.unit.web.test_streams.PATIENCE", 2.0)


@proven(without=_not_looked_at)
async def test_f124_a_log_stops_with_the_session() -> None:
    """F124: the hours of a session are over while a log is followed. Holds: the log is cut off within 30 s."""
    clock = VirtualClock()
    async with served(PageServer(clock=clock)) as page, tab(page) as browser:
        visitor = Visitor(user="ann", client=EndlessLog(None))  # type: ignore[arg-type]
        assert await browser.login(page.invite(visitor)) == 200
        headers, where = {"X-Shoal-Key": browser.key}, f"{page.address}/data/log?pod=a&namespace=b&follow=1"
        async with browser.http.get(where, headers=headers) as stream:
            assert await stream.content.readline() == b"still here\n"
            await clock.advance(SESSION_SECONDS + AFTER_THE_TOKEN)
            with pytest.raises(aiohttp.ClientError):
                async with patiently(PATIENCE):
                    while await stream.content.readany():
                        pass


@proven(without=lambda patch: patch.setattr(guard, "refusal", lambda request, origins: ""))
@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:1", "null"])
async def test_f124_a_page_of_another_site_opens_no_stream(origin: str) -> None:
    """F124: a script of another site opens the page's streams with the visitor's cookie and a key that it got hold of.
    Holds: the Origin is looked at before anything else, and refused."""
    async with running(with_builtin=False) as cluster, served() as page, tab(page, cluster.client) as browser:
        for path in ("/data/live", "/data/log?pod=a&namespace=default"):
            headers = {"X-Shoal-Key": browser.key, "Origin": origin}
            async with browser.http.get(page.address + path, headers=headers) as answer:
                assert answer.status == 403 and "other web pages" in await answer.text()
