"""What a release has stored, the next one understands; and a server that would not keep what we store is left alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.crds import load_crds
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper.v1beta1 import status as statuses
from shoal.kube.feed import Feed
from tests.cluster import running
from tests.faults import proven
from tests.patience import PATIENCE
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched
from tests.unit.upgrade.stored import RELEASES, load, objects, start_controllers


def read(release: Path) -> list[Json]:
    return msgspec.json.decode(release.read_bytes(), type=list[Json])


def identities(stored: list[Json]) -> set[tuple[str, str, str]]:
    return {(obj["kind"], obj["metadata"]["name"], obj["metadata"]["uid"]) for obj in stored}


def states(stored: list[Json]) -> dict[str, tuple[str, str]]:
    return {
        obj["metadata"]["name"]: (obj["status"]["state"], obj["status"]["queuejobstate"])
        for obj in stored
        if obj["kind"] == "AppWrapper"
    }


def _how_an_end_is_written_was_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(statuses, "is_terminal", lambda status: False)


@pytest.mark.parametrize("release", sorted(RELEASES.glob("*.json")), ids=lambda path: path.stem)
@proven(without=_how_an_end_is_written_was_forgotten)
async def test_f048_what_an_earlier_release_has_stored_goes_on(release: Path) -> None:
    """F48: a store that an earlier release has written. Holds: what runs goes on, what waits starts when it is its
    turn, what has ended stays ended."""
    stored = read(release)
    assert sorted(states(stored)) == ["ended", "runs", "waits"]
    async with running() as cluster:
        await load(cluster, stored)
        start_controllers(cluster)
        async with asyncio.timeout(PATIENCE):
            await cluster.settled()
        found = await objects(cluster)
        assert identities(found) == identities(stored)
        assert states(found) == states(stored)
        [kept] = [obj for obj in found if obj["kind"] == "AppWrapper" and obj["metadata"]["name"] == "runs"]
        [before] = [obj for obj in stored if obj["kind"] == "AppWrapper" and obj["metadata"]["name"] == "runs"]
        assert kept["status"]["admission"] == before["status"]["admission"]
        await cluster.client.delete(kinds.APP_WRAPPER, "runs", "default")
        await cluster.until(kinds.APP_WRAPPER, "waits", dispatched)
        await cluster.until(kinds.RAY_CLUSTER, "waits", lambda found: True)
        await cluster.until_gone(kinds.RAY_CLUSTER, "runs")


def _no_schema_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Feed) -> None:
        self._unchecked = ()

    patch.setattr(Feed, "_check_schema", nothing)


@proven(without=_no_schema_is_looked_at)
async def test_f067_with_a_crd_older_than_us_nothing_is_done_and_it_is_said() -> None:
    """F67: the AppWrapper CRD on the server does not know where admissions are stored. Holds: no AppWrapper is touched
    and the missing field is named; once the CRD is updated they are served without a restart."""
    async with running() as cluster:
        [definition] = [crd for crd in load_crds() if crd["metadata"]["name"] == kinds.APP_WRAPPER.resource]
        old = msgspec.json.decode(msgspec.json.encode(definition))
        for version in old["spec"]["versions"]:
            del version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["admission"]
        await cluster.client.patch(kinds.CRD, kinds.APP_WRAPPER.resource, None, {"spec": old["spec"]})
        await cluster.add_node("node-1")
        controller = planned(cluster.client, AppWrapperSettings(trust_unstamped=True))
        cluster.start(controller.run())
        await cluster.create(kinds.APP_WRAPPER, app_wrapper("early", config_map("early")))
        await cluster.settled()
        assert "status" not in await cluster.get(kinds.APP_WRAPPER, "early")
        trouble = controller.wrappers.caches.wrappers[kinds.APP_WRAPPER].trouble
        assert trouble is not None and trouble.reason == "SchemaTooOld"
        assert "drops status.admission" in trouble.message and "shoal install" in trouble.message
        await cluster.client.patch(kinds.CRD, kinds.APP_WRAPPER.resource, None, {"spec": definition["spec"]})
        await cluster.until(kinds.APP_WRAPPER, "early", dispatched)
