"""A session: the dashboard opens for the holder of the printed key, with the cluster's token, and for no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import ClientSession, CookieJar, web

from shoal.errors import ShoalError
from shoal.sdk import session
from shoal.sdk.connecting import ClusterChoice
from tests.faults import proven


async def dashboard() -> tuple[web.AppRunner, str]:
    """A dashboard that tells what it was sent."""

    async def tell(request: web.Request) -> web.Response:
        return web.json_response({"token": request.headers.get("x-ray-authorization"), "path": request.path_qs,
                                  "cookie": request.headers.get("cookie"), "body": await request.text()})  # fmt: skip

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", tell)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


def lets_everyone_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.hmac, "compare_digest", lambda given, wanted: True)


@proven(without=lets_everyone_in)
async def test_f303_another_user_of_the_machine_does_not_get_into_a_session() -> None:
    """F303: another user of the machine, or a page in the browser, calls the local port of an open session. Holds: only
    the key that was printed, or its cookie, lets in; the token is never sent back."""
    runner, behind = await dashboard()
    try:
        async with session._front(behind, "secret-token") as address:
            base = address.partition("/?")[0]
            async with ClientSession() as stranger:
                for url in (f"{base}/api/jobs", f"{base}/?key=guess"):
                    refused = await stranger.get(url)
                    assert refused.status == 403 and "secret-token" not in await refused.text()
            async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as user:
                assert (await user.get(address)).status == 200
                told = await (await user.post(f"{base}/api/jobs?x=1", data="{}")).json()
            assert told == {"token": "Bearer secret-token", "path": "/api/jobs?x=1", "cookie": None, "body": "{}"}
    finally:
        await runner.cleanup()


def test_a_program_finds_address_and_token_in_its_environment() -> None:
    made = session.RaySession(cluster="a/b", dashboard="", address="ray://127.0.0.1:1", token_file="/x/token")
    assert made.environment() == {
        "RAY_ADDRESS": "ray://127.0.0.1:1", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/x/token",
    }  # fmt: skip
    assert session.RaySession(cluster="a/b", dashboard="", address="ray://h:1").environment() == {
        "RAY_ADDRESS": "ray://h:1"
    }


async def test_what_kubectl_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\necho 'error: pods \"head\" not found' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    words = session._kubectl(ClusterChoice(context="there"), "team", "head", "")
    assert words[:3] == [str(program), "--context", "there"]
    with pytest.raises(ShoalError, match='pods "head" not found'):
        async with session._forwarded(words):
            raise AssertionError("it is not forwarded")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ShoalError, match="kubectl is not on the PATH"):
        session._kubectl(ClusterChoice(), "team", "head", "")
