"""The networks of a machine change with every pod, and a browser then gives up what it loads: the page comes anyway."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, Request, Route

from shoal.kube.client import Client
from shoal.web import PageServer, files, sessions
from shoal.web.sessions import Visitor
from tests.browser.conftest import Look
from tests.faults import proven

COUNT = """addEventListener('error', () => setTimeout(
  () => sessionStorage.setItem('failures', Number(sessionStorage.getItem('failures')) + 1)), true)"""
"""Counts files that were not loaded, each after the page's own code has seen it."""


async def window_of(browser: Browser, served: PageServer) -> Look:
    context = await browser.new_context()
    return Look(await context.new_page(), served)


def invited(served: PageServer) -> str:
    return served.invite(Visitor(user="ann", client=Client(None)))  # type: ignore[arg-type]  # nothing is asked here


def _loaded_once(patch: pytest.MonkeyPatch) -> None:
    found = dict(files.contents())
    data, kind, tag = found["index.html"]
    found["index.html"] = (re.sub(rb"<script>.*?</script>", b"", data, flags=re.DOTALL), kind, tag)
    patch.setattr(files, "contents", lambda: found)
    patch.setattr("tests.browser.conftest.PATIENCE", 2.0)


@proven(without=_loaded_once)
@pytest.mark.parametrize("name", ["page.js", "waiting.js", "page.css"])
async def test_f791_a_page_whose_files_were_not_loaded_is_loaded_again(
    browser: Browser, served: PageServer, name: str
) -> None:
    """F791: a pod starts while the browser loads the page, which gives up one of its files. Holds: the page loads
    itself again, is logged in by the same address and shows what it has; the reader need not load it."""
    window = await window_of(browser, served)
    asked: list[str] = []

    async def lost_once(route: Route, request: Request) -> None:
        asked.append(request.url)
        await (route.abort("failed") if len(asked) == 1 else route.continue_())

    await window.page.route(f"**/static/{name}", lost_once)
    await window.to(invited(served))
    await window.page.wait_for_function("() => performance.getEntriesByType('navigation')[0].type === 'reload'")
    await window.until("ann", "header")
    assert len(asked) == 2


async def test_a_page_whose_file_is_missing_for_good_is_not_loaded_for_ever(
    browser: Browser, served: PageServer
) -> None:
    window = await window_of(browser, served)
    await window.page.add_init_script(COUNT)
    await window.page.route("**/static/waiting.js", lambda route: route.abort("failed"))
    await window.to(invited(served))
    await window.page.wait_for_function("() => sessionStorage.getItem('failures') === '6'")
    assert await window.page.evaluate("() => sessionStorage.getItem('shoal-again')") == "5"
    assert "Loading" in await window.text()


def _used_up(patch: pytest.MonkeyPatch) -> None:
    real = sessions.Sessions.enter
    patch.setattr(sessions.Sessions, "enter", lambda self, code, attempt="": real(self, code))
    patch.setattr("tests.browser.conftest.PATIENCE", 2.0)


@proven(without=_used_up)
async def test_f792_a_login_whose_answer_never_came_is_sent_again(browser: Browser, served: PageServer) -> None:
    """F792: the networks change after the server took the code and before the browser has read the answer. Holds: the
    browser asks again and is in; the visitor need not run `shoal open` a second time."""
    window = await window_of(browser, served)
    answers: list[int] = []

    async def lost_once(route: Route, request: Request) -> None:
        answer = await route.fetch()
        answers.append(answer.status)
        await (route.abort("failed") if len(answers) == 1 else route.fulfill(response=answer))

    await window.page.route("**/login", lost_once)
    await window.to(invited(served))
    await window.until("ann", "header")
    assert answers == [200, 200]
