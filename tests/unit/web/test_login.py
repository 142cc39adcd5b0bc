"""Who gets in: codes that work once, two secrets that travel apart, and nothing for other web pages."""

from __future__ import annotations

import aiohttp
import pytest

from shoal.errors import BadInput
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.web import PageServer, PageSettings, guard, sessions
from shoal.web.server import COOKIE, page_url
from shoal.web.sessions import AGAIN_SECONDS, CODE_SECONDS, MOST_OF_ONE_USER, SESSION_SECONDS, Sessions, Visitor
from tests.faults import proven
from tests.unit.web.visiting import served, tab


def visitor(user: str = "ann") -> Visitor:
    return Visitor(user=user, client=Client(None))  # type: ignore[arg-type]  # nothing is asked here


async def test_a_code_logs_in_and_the_answer_has_a_cookie_that_scripts_cannot_read() -> None:
    async with served() as page, tab(page) as browser:
        assert await browser.get("/data/me") == (401, {"error": "you are not logged in; run: shoal open"})
        code = page.invite(visitor()).partition("#login=")[2]
        async with browser.http.post(f"{page.address}/login", json={"code": code}) as answer:
            browser.key = (await answer.json())["key"]
            cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and browser.key not in cookie
        status, told = await browser.get("/data/me")
        assert (status, told["user"]) == (200, "ann")
        assert (await browser.post("/logout", {}))[0] == 200
        assert (await browser.get("/data/me"))[0] == 401


def _reused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions.Invitation, "session", property(lambda self: None, lambda self, value: None), raising=False)


@proven(without=_reused)
async def test_f320_a_code_opens_one_session_and_soon_none() -> None:
    """F320: the address that logged a user in is found in a terminal and opened again, or opened first after minutes.
    Holds: it logs in once and within two minutes; after that it is worth nothing."""
    clock = VirtualClock()
    found = Sessions(clock)
    code, late = found.invite(visitor()), found.invite(visitor())
    assert found.enter(code) is not None
    assert found.enter(code) is None
    await clock.advance(CODE_SECONDS)
    assert found.enter(late) is None


@proven(without=lambda patch: patch.setattr(sessions.hmac, "compare_digest", lambda one, other: True))
async def test_f790_a_login_whose_answer_was_lost_is_asked_for_again_by_the_same_browser_alone() -> None:
    """F790: the networks of the machine change while a browser logs in: the server has used the code, the browser never
    reads the answer. Holds: the same attempt gets the same session for a while; another attempt with that code, or one
    without a name, gets nothing."""
    clock = VirtualClock()
    found = Sessions(clock)
    code = found.invite(visitor())
    session = found.enter(code, "one")
    assert session is not None
    assert found.enter(code, "one") is session
    assert found.enter(code, "another") is None
    assert found.enter(code) is None
    nameless = found.invite(visitor())
    assert found.enter(nameless) is not None
    assert found.enter(nameless) is None
    await clock.advance(AGAIN_SECONDS)
    assert found.enter(code, "one") is None
    ended = found.invite(visitor())
    session = found.enter(ended, "two")
    assert session is not None
    found.end(session)
    assert found.enter(ended, "two") is None


@proven(without=lambda patch: patch.setattr(sessions.hmac, "compare_digest", lambda one, other: True))
async def test_f321_a_cookie_alone_is_worth_nothing() -> None:
    """F321: a program at another port of this machine is opened in the same browser, which sends it the page's cookie:
    browsers keep cookies of hosts apart, not of ports. Holds: without the key, which the browser keeps for this origin
    alone, the cookie opens nothing."""
    async with served() as page, tab(page, Client(None)) as browser:  # type: ignore[arg-type]
        assert (await browser.get("/data/me"))[0] == 200
        stolen = {cookie.key: cookie.value for cookie in browser.http.cookie_jar}
        assert list(stolen) == [COOKIE]
        async with aiohttp.ClientSession(cookies=stolen) as thief:
            for key in ("", "guess"):
                async with thief.get(f"{page.address}/data/me", headers={"X-Shoal-Key": key}) as answer:
                    assert answer.status == 401


STRANGE = [
    {"Host": "evil.example:80"},
    {"Host": "127.0.0.1:1"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
]


@proven(without=lambda patch: patch.setattr(guard, "refusal", lambda request, origins: ""))
@pytest.mark.parametrize("headers", STRANGE, ids=str)
async def test_f322_other_web_pages_get_no_answer(headers: dict[str, str]) -> None:
    """F322: a web page elsewhere makes the visitor's browser send requests here, also under a name of its own that it
    points at this address. Holds: a foreign Host, Origin or Sec-Fetch-Site is refused, whatever else is sent."""
    async with served() as page, tab(page, Client(None)) as browser:  # type: ignore[arg-type]
        status, told = await browser.get("/data/me", **headers)
        assert status == 403 and "error" in told
        async with browser.http.post(f"{page.address}/login", json={"code": "x"}, headers=headers) as answer:
            assert answer.status == 403


async def test_every_answer_forbids_what_is_not_ours() -> None:
    async with served() as page, aiohttp.ClientSession() as http:
        for path in ("/", "/static/page.js", "/data/me", "/nothing", "/ray/x/"):
            async with http.get(page.address + path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Referrer-Policy"] == "no-referrer"
        async with http.get(f"{page.address}/static/page.js") as answer:
            tag = answer.headers["ETag"]
        async with http.get(f"{page.address}/static/page.js", headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304


@pytest.mark.parametrize("name", ["..%2fserver.py", "%2e%2e/server.py", "page.js%00", "nothing.js"])
async def test_only_the_pages_own_files_are_served(name: str) -> None:
    async with served() as page, aiohttp.ClientSession() as http, http.get(f"{page.address}/static/{name}") as answer:
        assert answer.status == 404


async def test_a_session_ends_by_the_clock_and_a_user_has_few() -> None:
    clock = VirtualClock()
    found = Sessions(clock)
    ended: list[str] = []
    made = []
    for number in range(MOST_OF_ONE_USER + 1):
        session = found.enter(found.invite(visitor()))
        assert session is not None
        session.on_end.append(lambda number=number: ended.append(str(number)))
        made.append(session)
    assert ended == ["0"] and found.find(made[0].cookie, made[0].key) is None
    assert found.find(made[1].cookie, made[1].key) is made[1]
    await clock.advance(SESSION_SECONDS)
    assert found.find(made[1].cookie, made[1].key) is None and ended == ["0", "1"]


async def test_behind_a_proxy_the_cookie_is_for_https_alone_and_tokens_are_not_taken_from_pages() -> None:
    async def by_token(token: str) -> Visitor:
        return visitor(token)

    settings = PageSettings(url="https://shoal.example")
    async with served(PageServer(settings, by_token=by_token)) as page, aiohttp.ClientSession() as http:
        port = page._runner.addresses[0][1]  # type: ignore[union-attr]
        inside, outside = f"http://127.0.0.1:{port}", {"Host": "shoal.example"}
        bearer = {**outside, "Authorization": "Bearer bob"}
        async with http.post(f"{inside}/login/token", headers={**bearer, "Origin": "https://shoal.example"}) as answer:
            assert answer.status == 403
        async with http.post(f"{inside}/login/token", headers=bearer) as answer:
            address = (await answer.json())["address"]
        assert address.startswith("https://shoal.example/#login=")
        code = address.partition("#login=")[2]
        async with http.post(f"{inside}/login", json={"code": code}, headers=outside) as answer:
            assert (await answer.json())["user"] == "bob" and "Secure" in answer.headers["Set-Cookie"]


@pytest.mark.parametrize(
    "text", ["shoal.example", "http://shoal.example", "https://shoal.example/page", "ftp://x", "https://"]
)
def test_an_address_that_would_not_be_safe_or_one_origin_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        page_url(text)
