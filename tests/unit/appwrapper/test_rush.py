"""Many gangs start at once: their objects go first, the word that a gang was dispatched follows."""

from __future__ import annotations

import msgspec

from shoal.api import kinds
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.kube.transport import Request, Response
from tests.cluster import Cluster
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, needs
from tests.unit.appwrapper.meddler import Meddler
from tests.unit.appwrapper.test_queue import start

MANY = 100
TRUSTING = AppWrapperSettings(trust_unstamped=True)


async def test_what_gangs_wrap_is_created_before_they_are_told_to_be_dispatched(quiet: Cluster) -> None:
    names = [f"w{number:03}" for number in range(MANY)]
    for name in names:
        await quiet.create(kinds.APP_WRAPPER, app_wrapper(name, config_map(name), needs=[needs(1, cpu="1m")]))
    sent: list[str] = []

    async def note(request: Request) -> Response | None:
        if request.method == "POST" and request.path.endswith("/configmaps"):
            sent.append("created")
        elif request.path.endswith("/status") and "/appwrappers/" in request.path:
            state = msgspec.json.decode(request.body).get("status", {}).get("state")
            sent.append("dispatched" if state not in (None, "", "Pending") else "admitted")
        return None

    start(quiet, TRUSTING, Meddler(quiet.server.transport(), before=note))
    for name in names:
        await quiet.until(kinds.APP_WRAPPER, name, dispatched)
    assert sent.count("created") == MANY  # none twice
    assert sent.count("dispatched") == MANY
    half = [index for index, what in enumerate(sent) if what == "created"][MANY // 2]
    assert sent[:half].count("dispatched") < MANY // 10


async def test_one_gang_alone_is_told_at_once(quiet: Cluster) -> None:
    start(quiet, TRUSTING)
    made = app_wrapper("alone", config_map("alone"), needs=[needs(1, cpu="1m")])
    await quiet.create(kinds.APP_WRAPPER, made)
    found = await quiet.until(kinds.APP_WRAPPER, "alone", dispatched)
    assert found["status"]["state"] == "Running"
