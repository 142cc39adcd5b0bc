"""One chromium for all tests of the page; a browser context, and so its cookies and storage, for each."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, async_playwright
from playwright.async_api import Error as BrowserError

from shoal.kube.client import Client
from shoal.web import PageServer
from shoal.web.sessions import Visitor
from tests.browser import chromium
from tests.patience import PATIENCE

TRIES = 10


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    found = chromium.find()
    if found is None:
        pytest.fail(chromium.WHAT_TO_DO)
    async with async_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []  # root has no other choice
        started = await playwright.chromium.launch(executable_path=found, args=options)
        yield started
        await started.close()


@pytest.fixture
async def served() -> AsyncIterator[PageServer]:
    page = PageServer()
    await page.start()
    yield page
    await page.stop()


class Look:
    """A browser window that is logged in, and what went wrong in it."""

    def __init__(self, page: Page, server: PageServer) -> None:
        self.page = page
        self.server = server
        self.troubles: list[str] = []
        page.set_default_timeout(PATIENCE * 1000)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("console", lambda message: self._said(message.type, message.text))

    def _said(self, kind: str, text: str) -> None:
        if "Content Security Policy" in text or "TrustedHTML" in text:
            self.troubles.append(f"{kind}: {text}")

    async def to(self, path: str) -> None:
        """Where another process of this machine adds or removes a network, chromium gives up what is under way."""
        address = path if "://" in path else self.server.address + path
        for left in reversed(range(TRIES)):
            try:
                await self.page.goto(address)
                return
            except BrowserError as error:
                if "ERR_NETWORK_CHANGED" not in str(error) or not left:
                    raise

    async def text(self, selector: str = "main") -> str:
        return await self.page.inner_text(selector)

    async def until(self, words: str, selector: str = "main") -> None:
        """Until this text can be read there."""
        where = "([selector, words]) => document.querySelector(selector)?.innerText.includes(words)"
        await self.page.wait_for_function(where, arg=[selector, words])


async def look(
    browser: Browser, server: PageServer, client: Client, *, width: int = 1280, height: int = 800, dark: bool = False,
    user: str = "system:admin",
) -> Look:  # fmt: skip
    """A new window, logged in as the client's user by the address that `shoal open` prints."""
    scheme = "dark" if dark else "light"
    context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    opened = Look(await context.new_page(), server)
    await opened.to(server.invite(Visitor(user=user, client=client)))
    await opened.until(user, "header")
    assert "login" not in opened.page.url
    return opened
