"""Notices: signed, to allowed addresses alone, tried again, and never in the way of a plan."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web

from shoal.controllers.planning.history import notices
from shoal.controllers.planning.history.notices import Notices, NoticeSettings, from_environment, signature
from shoal.controllers.planning.history.records import RunRecord
from shoal.errors import BadInput
from shoal.kube.clock import SystemClock
from tests.faults import proven
from tests.patience import PATIENCE, patiently

KEY = b"a key of sixteen bytes"
S = 1_000_000
ROW = RunRecord(
    uid="a", kind="RayJob", namespace="team", name="train", user="ann", queued_at=10 * S, started_at=20 * S, gpus=2
)


def made(*allowed: str, send: object = None) -> Notices:
    settings = NoticeSettings(allowed=allowed or ("https://hooks.example.com/shoal/",), key=KEY)
    return Notices(settings, SystemClock(), send)  # type: ignore[arg-type]


@asynccontextmanager
async def delivering(one: Notices):
    running = asyncio.ensure_future(one.run())
    try:
        yield
        async with patiently(PATIENCE):
            await one.sent()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_receiver_gets_start_and_end_once_each_and_can_check_them() -> None:
    came: list[tuple[dict[str, str], bytes]] = []

    async def receive(request: web.Request) -> web.Response:
        came.append((dict(request.headers), await request.read()))
        return web.Response(status=200)

    application = web.Application()
    application.router.add_post("/shoal/ann", receive)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        one = made(f"{base}/shoal/")
        async with delivering(one):
            one.told("a", f"{base}/shoal/ann")
            one.stored(msgspec.structs.replace(ROW, started_at=0))  # it waits: nothing to tell
            one.stored(ROW)
            one.stored(msgspec.structs.replace(ROW, priority=5))
            one.stored(msgspec.structs.replace(ROW, ended_at=50 * S, outcome="Failed"))
            one.stored(msgspec.structs.replace(ROW, uid="other"))  # asks for none
    finally:
        await runner.cleanup()
    told = sorted((json.loads(body) for _, body in came), key=lambda notice: notice["at"])
    assert [(notice["event"], notice.get("outcome", "")) for notice in told] == [("Started", ""), ("Ended", "Failed")]
    assert told[1]["waitedSeconds"] == 10.0 and told[1]["ranSeconds"] == 30.0 and told[0]["id"] == "a-1-started"
    for headers, body in came:
        lowered = {name.lower(): value for name, value in headers.items()}
        assert lowered["x-shoal-signature"] == signature(KEY, lowered["x-shoal-timestamp"], body)


def allows_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Notices, "allows", lambda self, address: True)


@proven(without=allows_all)
@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254/latest/meta-data",
        "https://hooks.example.com/other",
        "https://hooks.example.com/shoal/../admin",
        "https://hooks.example.com/shoalish",
        "https://hooks.example.com:8443/shoal/x",
        "http://hooks.example.com/shoal/x",
        "https://user@hooks.example.com/shoal/x",
        "https://hooks.example.com@evil.example/shoal/x",
        "https://hooks.example.com/shoal/%2e%2e/admin",
        "file:///etc/passwd",
        "https://hooks.example.com/shoal/x\r\nX-Evil: 1",
        "https://hooks.example.com/shoal/" + "x" * 600,
    ],
)
async def test_f304_a_gang_cannot_make_the_controller_call_where_it_likes(address: str) -> None:
    """F304: a user names an address for notices that leads to a metadata service, another host or another path. Holds:
    nothing is sent but to addresses below those that an administrator allows."""
    called: list[str] = []

    async def send(address: str, body: bytes, headers: dict[str, str]) -> int:
        called.append(address)
        return 200

    one = made(send=send)
    async with delivering(one):
        one.told("a", address)
        one.stored(ROW)
        one.told("b", "https://hooks.example.com/shoal/ann")
        one.stored(msgspec.structs.replace(ROW, uid="b"))
    assert called == ["https://hooks.example.com/shoal/ann"]


@pytest.mark.parametrize("answers, tries", [([500, 200], 2), ([TimeoutError, 503, 200], 3), ([404], 1), ([500] * 9, 5)])
async def test_what_may_be_taken_later_is_tried_again(
    answers: list[object], tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "PAUSES", (0.0, 0.0, 0.0, 0.0))
    left: Iterator[object] = iter(answers)
    came: list[str] = []

    async def send(address: str, body: bytes, headers: dict[str, str]) -> int:
        came.append(json.loads(body)["id"])
        answer = next(left)
        if answer is TimeoutError:
            raise TimeoutError
        assert isinstance(answer, int)
        return answer

    one = made(send=send)
    async with delivering(one):
        one.told("a", "https://hooks.example.com/shoal/ann")
        one.stored(msgspec.structs.replace(ROW, ended_at=30 * S, outcome="Preempted"))
    assert came == ["a-1-preempted"] * tries


def test_without_a_key_or_an_allowed_address_there_are_none() -> None:
    assert from_environment({}) is None
    found = from_environment(
        {"SHOAL_NOTIFY_ALLOW": "https://a.example/, https://b.example/x/", "SHOAL_NOTIFY_KEY": "k" * 20}
    )
    assert found is not None and found.allowed == ("https://a.example/", "https://b.example/x/")
    with pytest.raises(BadInput, match="SHOAL_NOTIFY_KEY"):
        Notices(NoticeSettings(allowed=("https://a.example/",), key=b"short"), SystemClock())
    with pytest.raises(BadInput, match="no plain address"):
        Notices(NoticeSettings(allowed=("ftp://a.example/",), key=KEY), SystemClock())


async def test_too_many_are_dropped_and_nothing_waits() -> None:
    one = made()
    for number in range(notices.MOST_WAITING + 50):
        one.told(str(number), "https://hooks.example.com/shoal/x")
        one.stored(msgspec.structs.replace(ROW, uid=str(number)))
    assert one._queue.qsize() == notices.MOST_WAITING
