"""AppWrappers that MCAD dispatched: counted and left alone until an administrator's record names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper.reconciler import AppWrapperReconciler
from shoal.controllers.planning import imports
from shoal.controllers.planning.imports import ImportedObject, StoppedParts
from shoal.kube.client import Client
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, needs, ray_cluster
from tests.unit.appwrapper.test_rights import grant
from tests.unit.upgrade import stored

OURS = "kube-system"
MCAD: Json = {"canrun": True, "state": "Running", "queuejobstate": "Running", "running": 1}
"""The status of an AppWrapper that MCAD has dispatched, as far as it matters."""


async def of_mcad(cluster: Cluster, name: str, wrapped: Json, status: Json) -> Json:
    """Stored as MCAD left it, with its object, before Shoal was there."""
    mcad = Client(cluster.server.transport(user="mcad"), manager="mcad")
    made = await cluster.create(kinds.APP_WRAPPER, app_wrapper(name, wrapped, needs=[needs(1, cpu="1")]))
    if status:
        made = await mcad.patch(kinds.APP_WRAPPER, name, "default", {"status": status}, subresource="status")
        owner = {"apiVersion": made["apiVersion"], "kind": "AppWrapper", "name": name, "uid": made["metadata"]["uid"]}
        body = {**wrapped, "metadata": {**wrapped["metadata"], "ownerReferences": [{**owner, "controller": True}]}}
        await mcad.create(kinds.CONFIG_MAP, body, "default")
    return made


async def name_in_record(cluster: Cluster, *wrappers: Json, user: str = "ann") -> None:
    listed = {
        one["metadata"]["uid"]: ImportedObject(object=f"AppWrapper/default/{one['metadata']['name']}", user=user)
        for one in wrappers
    }
    await cluster.client.create(kinds.CONFIG_MAP, imports.record_of(OURS, listed, StoppedParts()), OURS)


def start(cluster: Cluster) -> Any:
    made = planned(cluster.client, AppWrapperSettings(stamps="webhook", record_namespace=OURS))
    cluster.start(made.run())
    return made


def _takes_whatever_is_there(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AppWrapperReconciler, "_is_of_another", lambda self, wrapper: False)


@proven(without=_takes_whatever_is_there)
async def test_f335_what_another_controller_runs_is_left_alone_until_the_record_names_it() -> None:
    """F335: Shoal starts where MCAD has dispatched AppWrappers, and an administrator's import record lists one of two.
    Holds: the other is counted, told about and not changed; the listed one is followed; no object is made again."""
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="4", memory="8Gi")
        listed = await of_mcad(cluster, "listed", config_map("l"), MCAD)
        other = await of_mcad(cluster, "other", config_map("o"), MCAD)
        objects = {name: (await cluster.get(kinds.CONFIG_MAP, name))["metadata"]["uid"] for name in ("l", "o")}
        await name_in_record(cluster, listed)
        made = start(cluster)
        await cluster.until(
            kinds.APP_WRAPPER, "listed", lambda one: one["status"].get("running") != 1
        )  # counted by us: none
        await cluster.settled()
        kept = await cluster.get(kinds.APP_WRAPPER, "other")
        assert kept["metadata"]["resourceVersion"] == other["metadata"]["resourceVersion"]
        events = await cluster.client.list(kinds.EVENT, "default")
        assert {one["involvedObject"]["name"] for one in events if one["reason"] == "NotImported"} == {"other"}
        assert made.loop.engine.gang("AppWrapper/default/other").state == "admitted"
        found = {name: (await cluster.get(kinds.CONFIG_MAP, name))["metadata"]["uid"] for name in ("l", "o")}
        assert found == objects


def _no_creator_is_looked_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(imports, "imported_creator", lambda record, uid: None)
    patch.setattr("tests.cluster.PATIENCE", 2.0)


@proven(without=_no_creator_is_looked_up)
async def test_f336_an_imported_app_wrapper_starts_with_its_recorded_creators_rights(quiet: Cluster) -> None:
    """F336: AppWrappers without a believable stamp wait, and the record names a user for two of three. Holds: those
    start where that user may create what they wrap, and only those."""
    await grant(quiet, "ann", "default", ("", "configmaps"))
    may = await of_mcad(quiet, "may", config_map("may"), {})
    may_not = await of_mcad(quiet, "may-not", ray_cluster("may-not"), {})
    await of_mcad(quiet, "unlisted", config_map("unlisted"), {})
    await name_in_record(quiet, may, may_not)
    start(quiet)
    await quiet.until(kinds.APP_WRAPPER, "may", dispatched)
    refused = await quiet.until(
        kinds.APP_WRAPPER, "may-not", lambda one: one.get("status", {}).get("state") == "Failed"
    )
    assert "User ann is not authorized to create rayclusters.ray.io" in refused["status"]["message"]
    waiting = await quiet.get(kinds.APP_WRAPPER, "unlisted")
    assert not waiting["status"].get("canrun") and "creator" in waiting["status"]["message"]


def _owners_are_not_read(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: object, wrapper: object) -> None: ...

    patch.setattr("shoal.controllers.appwrapper.reconciler.AppWrapperReconciler._follow_imported", nothing)


@proven(without=_owners_are_not_read)
async def test_f447_what_the_real_mcad_left_runs_on() -> None:
    """F447: MCAD itself had dispatched two AppWrappers long ago, one through a Deployment, and held a third back; an
    import record lists all. Holds: their pods are counted through their owners, none is requeued, the third starts."""
    dump = msgspec.json.decode((Path(__file__).parent / "mcad-dump.json").read_bytes())
    read = (kinds.NODE, kinds.APP_WRAPPER, kinds.DEPLOYMENT, kinds.REPLICA_SET, kinds.POD)
    async with running() as cluster:
        await stored.load(cluster, dump, read)
        await grant(cluster, "ann", "default", ("", "pods"))
        await name_in_record(cluster, *(one for one in dump if one["kind"] == "AppWrapper"))
        before = {one["metadata"]["name"]: one["metadata"]["uid"] for one in dump if one["kind"] == "Pod"}
        start(cluster)
        await cluster.until(kinds.APP_WRAPPER, "large", lambda one: "needed" in one["status"].get("message", ""))
        await cluster.add_node("large", cpu="1100", memory="64Gi")
        await cluster.until(kinds.APP_WRAPPER, "large", dispatched)
        await cluster.settled()
        after = {
            one["metadata"]["name"]: one["metadata"]["uid"] for one in await cluster.client.list(kinds.POD, "default")
        }
        assert before.items() <= after.items() and set(after) == {*before, "large"}
        for name in ("pods", "served"):
            assert (await cluster.get(kinds.APP_WRAPPER, name))["status"]["state"] == "Running"


def test_a_record_that_is_spoilt_names_no_one() -> None:
    assert imports.imported_creator({"data": {"u": "{"}}, "u") is None
    assert imports.imported_creator({"data": {"u": '{"object": "x"}'}}, "u") is None
    assert imports.stopped_parts({"data": {"controllers": "["}}) == StoppedParts()
    made = imports.record_of("lab", {"u": ImportedObject(object="x", user="ann", groups=("team",))}, StoppedParts())
    found = imports.imported_creator(made, "u")
    assert found is not None and (found.user, found.groups) == ("ann", ("team",))
    assert not imports.is_imported(made, imports.STOPPED) and msgspec.json.decode(made["data"]["u"])["object"] == "x"
