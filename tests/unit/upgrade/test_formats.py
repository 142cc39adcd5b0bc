"""Up, back, and side by side: stored formats have a number, queues go on, and a rolling upgrade loses no gang."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.appwrapper.status import admission as admissions
from shoal.controllers.multicluster import record
from shoal.kube.lease import LeaseSettings
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.patience import PATIENCE
from tests.unit.appwrapper.build import app_wrapper, dispatched, needs, ray_cluster
from tests.unit.cli.test_readiness import Replica, admin, running_replica
from tests.unit.queues.build import cluster_queue, counts, flavor, local_queue, make, ray_job
from tests.unit.upgrade import queued
from tests.unit.upgrade.stored import RELEASES, load, objects, start_controllers
from tests.unit.upgrade.test_upgrade import identities, read


def _conditions_were_renamed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("shoal.controllers.queues.reconciler.is_true", lambda workload, condition: False)


@pytest.mark.parametrize("release", sorted(queued.QUEUES.glob("*.json")), ids=lambda path: path.stem)
@proven(without=_conditions_were_renamed)
async def test_f333_queues_of_an_earlier_release_go_on(release: Path) -> None:
    """F333: a store with queues that an earlier release has written, one RayJob running and one waiting. Holds: not one
    object is made again or removed, the quota stays counted, and the next starts when the first is gone."""
    stored = read(release)
    async with running() as cluster:
        await load(cluster, stored, queued.KEPT)
        queued.start_controllers(cluster)
        async with asyncio.timeout(PATIENCE):
            await cluster.settled()
        assert identities(await objects(cluster, queued.KEPT)) == identities(stored)
        assert counts(await cluster.get(kinds.CLUSTER_QUEUE, "cluster-queue")) == (1, 1, 1)
        await cluster.client.delete(kinds.RAY_JOB, "runs", "default")
        await cluster.until(kinds.RAY_JOB, "waits", lambda one: not one["spec"].get("suspend"))


NEXT: Json = {"format": 2, "epoch": 1, "generation": 1, "objects": "kept elsewhere", "zones": ["a"]}
"""An admission as a release after this one might write it: a field has another type, and one is new."""


def _newer_formats_are_overlooked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admissions, "FORMAT", 2)
    patch.setattr(record, "FORMAT", 2)


@proven(without=_newer_formats_are_overlooked)
async def test_f334_what_a_later_release_has_stored_is_left_as_it_is() -> None:
    """F334: after a downgrade, an AppWrapper that runs has an admission in the format of the later release. Holds: it
    is not changed, not stopped and not made to make way; others start; the later release goes on from what it wrote."""
    stored = read(RELEASES / "0.1.0.json")
    for obj in stored:
        if obj["kind"] == "AppWrapper" and obj["metadata"]["name"] == "runs":
            obj["status"]["admission"] = json.dumps(NEXT)
    async with running() as cluster:
        await load(cluster, stored)
        start_controllers(cluster)
        await cluster.settled()
        await cluster.create(
            kinds.APP_WRAPPER, app_wrapper("small", ray_cluster("small"), needs=[needs(1, cpu="500m")])
        )
        await cluster.until(kinds.APP_WRAPPER, "small", dispatched)
        await cluster.settled()
        kept = await cluster.get(kinds.APP_WRAPPER, "runs")
        assert json.loads(kept["status"]["admission"]) == NEXT
        before = {one for one in identities(stored) if one[1] != "waits"}
        assert before <= identities(await objects(cluster))
        events = await cluster.client.list(kinds.EVENT, "default")
        assert "StoredByNewerRelease" in {one["reason"] for one in events if one["involvedObject"]["name"] == "runs"}


def test_an_admission_of_today_has_no_number_and_one_that_cannot_be_read_is_not_newer() -> None:
    written = admissions.write(admissions.StoredAdmission(epoch=3))
    assert msgspec.json.decode(written) == {"epoch": 3} and not admissions.is_newer(written)
    assert not admissions.is_newer("{") and not admissions.is_newer("")
    assert admissions.is_newer('{"format":2}') and admissions.is_newer('{"format":2,"epoch":"three"}')


STEADY = LeaseSettings(15.0)
WAVES = 3


async def gangs(cluster: Cluster, wave: int) -> None:
    name = f"wrapped-{wave}"
    await cluster.create(kinds.APP_WRAPPER, app_wrapper(name, ray_cluster(name), needs=[needs(1, cpu="100m")]))
    await make(cluster, ray_job(f"queued-{wave}", 1))


def has_cluster(job: Json) -> bool:
    return bool((job.get("status") or {}).get("rayClusterName"))


def replica(cluster: Cluster, name: str) -> Replica:
    made = Replica(admin(cluster), name)
    made.leadership._settings = STEADY  # a standby takes a lease that is given back at once
    return made


async def test_a_rolling_upgrade_of_two_replicas_loses_no_gang_and_starts_none_twice() -> None:
    """Each replica is replaced in its turn while gangs come in, as a Deployment does it."""
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="64", memory="64Gi")
        await make(cluster, flavor(), cluster_queue(quota={"cpu": "64", "memory": "64Gi"}), local_queue())
        made: dict[str, set[str]] = {}

        async def follow() -> None:
            """Every RayCluster that ever was, by what it was made for."""
            async for event in cluster.client.watch(kinds.RAY_CLUSTER, "default", send_initial_events=True):
                metadata = msgspec.json.decode(event.object)["metadata"]
                if event.type == "ADDED":
                    owner = next((one["name"] for one in metadata.get("ownerReferences") or ()), metadata["name"])
                    made.setdefault(owner, set()).add(metadata["uid"])

        following = asyncio.ensure_future(follow())
        old = [running_replica(replica(cluster, f"old-{number}")) for number in range(2)]
        new = [running_replica(replica(cluster, f"new-{number}")) for number in range(2)]
        for one in old:
            await one.__aenter__()
        await gangs(cluster, 0)
        for wave, (leaving, coming) in enumerate(zip(old, new, strict=True), 1):
            await coming.__aenter__()
            await asyncio.gather(gangs(cluster, wave), leaving.__aexit__(None, None, None))
        names = [f"{kind}-{wave}" for kind in ("wrapped", "queued") for wave in range(WAVES)]
        for wave in range(WAVES):
            await cluster.until(kinds.APP_WRAPPER, f"wrapped-{wave}", dispatched)
            await cluster.until(kinds.RAY_JOB, f"queued-{wave}", has_cluster)
        await cluster.settled()
        for one in new:
            await one.__aexit__(None, None, None)
        following.cancel()
        assert {name: len(made.get(name, ())) for name in names} == dict.fromkeys(names, 1)
