"""A visitor of the page without a browser: its cookie and key, and the stream of rows as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from shoal.kube.client import Client
from shoal.web import PageServer
from shoal.web.sessions import Visitor
from tests.patience import PATIENCE, patiently


class VisitingTab:
    """One browser that has logged in, or has not."""

    def __init__(self, page: PageServer, http: aiohttp.ClientSession) -> None:
        self.page = page
        self.http = http
        self.key = ""

    async def login(self, address: str) -> int:
        code = address.partition("#login=")[2].partition("&")[0]
        async with self.http.post(f"{self.page.address}/login", json={"code": code}) as answer:
            told = await answer.json()
            self.key = told.get("key", "")
            return answer.status

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.http.get(self.page.address + path, headers={"X-Shoal-Key": self.key, **headers}) as answer:
            return answer.status, await answer.json()

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        sent = {"X-Shoal-Key": self.key, **headers}
        async with self.http.post(self.page.address + path, json=body, headers=sent) as answer:
            return answer.status, await answer.json()

    @asynccontextmanager
    async def live(self, namespace: str = "") -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The stream of rows."""
        headers, query = {"X-Shoal-Key": self.key}, {"namespace": namespace}
        no_limit = aiohttp.ClientTimeout(total=None)
        url = f"{self.page.address}/data/live"
        async with self.http.get(url, params=query, headers=headers, timeout=no_limit) as answer:
            assert answer.status == 200, await answer.text()
            yield _events(answer)


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    rest = b""
    while True:
        async with patiently(PATIENCE):
            chunk = await answer.content.readany()
        if not chunk:
            return
        *whole, rest = (rest + chunk).split(b"\n\n")
        for event in whole:
            if event.startswith(b"data: "):
                yield msgspec.json.decode(event[6:])


@asynccontextmanager
async def served(page: PageServer | None = None) -> AsyncIterator[PageServer]:
    started = page or PageServer()
    await started.start()
    try:
        yield started
    finally:
        await started.stop()


@asynccontextmanager
async def tab(page: PageServer, client: Client | None = None, user: str = "ann") -> AsyncIterator[VisitingTab]:
    """A browser; with a client, logged in with its rights."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        made = VisitingTab(page, http)
        if client is not None:
            assert await made.login(page.invite(Visitor(user=user, client=client))) == 200
        yield made


async def until_told(events: AsyncIterator[dict[str, Any]], topic: str, holds: Any) -> Any:
    """Read on until a row of this topic is so; rows that are dropped come as None."""
    async with asyncio.timeout(None):
        async for told in events:
            change = (told.get("changes") or {}).get(topic) or {}
            rows = (told.get("rows") or {}).get(topic) or change.get("put") or ()
            for row in [*rows, *([None] if change.get("drop") else [])]:
                if holds(row):
                    return row
    raise AssertionError("the stream ended")
