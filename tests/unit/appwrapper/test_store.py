"""How statuses are written: by the endpoint that the kind's definition offers, whatever an answer seemed to say."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.controllers.planning.loop_guard import MOST_LOOKS, LoopGuard
from shoal.kube.clock import VirtualClock
from shoal.kube.transport import Request, Response
from tests.cluster import Cluster
from tests.patience import PATIENCE
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched
from tests.unit.appwrapper.meddler import Meddler, refusal
from tests.unit.appwrapper.test_queue import asks, start


async def test_an_object_that_seems_gone_does_not_change_how_statuses_are_written(quiet: Cluster) -> None:
    """A server that answers NotFound for a status, though the object and the endpoint are there, is asked again."""
    answered: list[str] = []

    async def once(request: Request) -> Response | None:
        if request.method == "PATCH" and request.path.endswith("/one/status") and not answered:
            answered.append(request.path)
            return refusal(404, "NotFound", 'appwrappers.workload.codeflare.dev "one" not found')
        return None

    meddler = Meddler(quiet.server.transport(), before=once)
    start(quiet, transport=meddler)
    await quiet.create(kinds.APP_WRAPPER, asks("one", "1"))
    await quiet.until(kinds.APP_WRAPPER, "one", dispatched)
    assert answered and meddler.count("PATCH", "/one") == 0


async def test_where_there_is_no_status_endpoint_the_object_itself_is_written(quiet: Cluster) -> None:
    """Definitions of old releases of the legacy group have no status subresource."""
    name = "appwrappers.mcad.ibm.com"
    definition: dict[str, Any] = await quiet.client.get(kinds.CRD, name)
    for version in definition["spec"]["versions"]:
        version.pop("subresources", None)
    await quiet.client.patch(kinds.CRD, name, None, {"spec": {"versions": definition["spec"]["versions"]}})
    meddler = Meddler(quiet.server.transport())
    start(quiet, transport=meddler)
    legacy = {**app_wrapper("old", config_map("inside")), "apiVersion": "mcad.ibm.com/v1beta1"}
    await quiet.create(kinds.APP_WRAPPER_LEGACY, msgspec.json.decode(msgspec.json.encode(legacy)))
    await quiet.until(kinds.APP_WRAPPER_LEGACY, "old", dispatched)
    assert (meddler.count("PATCH", "/old/status"), meddler.count("PATCH", "/old")) == (0, 2)
    assert "inside" in await quiet.names(kinds.CONFIG_MAP)


async def test_a_server_that_drops_what_is_written_is_not_hammered(quiet: Cluster) -> None:
    """Every status is answered with success and kept nowhere: nothing is made, and the server is left in peace."""
    tried = asyncio.Event()

    async def forgets(request: Request) -> Response | None:
        if request.method == "PATCH" and request.path.endswith("/status"):
            tried.set()
            there = await quiet.client.request("GET", request.path.removesuffix("/status"))
            return Response(200, {"content-type": "application/json"}, there.body)
        return None

    meddler = Meddler(quiet.server.transport(), before=forgets)
    start(quiet, transport=meddler)
    await quiet.create(kinds.APP_WRAPPER, asks("one", "1"))
    await asyncio.wait_for(tried.wait(), PATIENCE)
    await asyncio.sleep(0.5)  # time enough for hundreds
    assert meddler.count("PATCH", "/status") < 50
    assert "one" not in await quiet.names(kinds.CONFIG_MAP)


async def test_who_is_looked_at_too_often_waits(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    restless = LoopGuard(clock)
    for _ in range(MOST_LOOKS):
        await restless.count("calm")
    looking = asyncio.ensure_future(restless.count("calm"))
    await asyncio.sleep(0)
    assert not looking.done() and "going on slowly" in caplog.text
    await clock.advance(1.0)
    await looking
