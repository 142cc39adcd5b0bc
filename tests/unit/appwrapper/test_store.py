"""How statuses are written: by the endpoint that the kind's definition offers, whatever an answer seemed to say."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.api import kinds
from shoal.kube.transport import Request, Response
from tests.cluster import Cluster
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
