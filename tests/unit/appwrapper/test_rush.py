"""Many gangs start at once: their objects go first, the word that a gang was dispatched follows."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from shoal.api import kinds
from shoal.controllers.appwrapper import AppWrapperSettings, reconciler
from shoal.kube.transport import Request, Response
from tests.cluster import Cluster
from tests.faults import proven
from tests.patience import PATIENCE, patiently
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, needs
from tests.unit.appwrapper.meddler import Meddler
from tests.unit.appwrapper.test_queue import start

FIRST, OTHERS = 20, reconciler.RUSH + 10
TRUSTING = AppWrapperSettings(trust_unstamped=True)


def tells_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "RUSH", 1_000_000)


@proven(without=tells_at_once)
async def test_f862_what_gangs_wrap_goes_before_the_word_that_one_was_dispatched(quiet: Cluster) -> None:
    """F862: many gangs are to start, and the API server is the limit. Holds: it creates what they wrap, each once,
    before it stores that a gang was dispatched; that is stored once they have started."""
    names = [f"w{number:03}" for number in range(FIRST + OTHERS)]
    for name in names:
        await quiet.create(kinds.APP_WRAPPER, app_wrapper(name, config_map(name), needs=[needs(1, cpu="1m")]))
    late = set(names[FIRST:])
    sent: list[str] = []
    all_created, let_go = asyncio.Event(), asyncio.Event()

    async def note(request: Request) -> Response | None:
        if request.method == "POST" and request.path.endswith("/configmaps"):
            sent.append("created")
            if sent.count("created") == FIRST:
                all_created.set()
        elif request.path.endswith("/status") and "/appwrappers/" in request.path:
            state = msgspec.json.decode(request.body).get("status", {}).get("state")
            if state not in (None, "", "Pending"):
                sent.append("dispatched")
            elif request.path.split("/")[-2] in late:
                await let_go.wait()
        return None

    start(quiet, TRUSTING, Meddler(quiet.server.transport(), before=note))
    async with patiently(PATIENCE):
        await all_created.wait()
    await quiet.settled()
    assert "dispatched" not in sent
    let_go.set()
    for name in names:
        await quiet.until(kinds.APP_WRAPPER, name, dispatched)
    assert sent.count("created") == sent.count("dispatched") == FIRST + OTHERS
