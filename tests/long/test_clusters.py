"""A hub and two members on this machine with real Ray: AppWrappers go to one, to the other, and wait; some 15 minutes.

The hub is once of `shoal up` and once a kube-apiserver with `shoal controller`. `CLUSTERS_ROUNDS` and `CLUSTERS_RAY`
say how often a gang is deleted and the next one starts in its place: light ones, which are measured, and Ray clusters.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest
import yaml

from shoal.api import kinds
from shoal.api.crds import load_crds
from shoal.api.meta import Json
from shoal.kube import kubeconfig
from shoal.kube.client import Client
from shoal.local.home import Home
from tests.cluster import Cluster, RemoteCluster
from tests.controlplane import build
from tests.controlplane.plane import ControlPlane, await_kinds
from tests.e2e.machine import SHOAL, Machine
from tests.unit.appwrapper.build import app_wrapper, pod
from tests.unit.clusters.build import SYSTEM, is_true
from tests.unit.clusters.test_app_wrappers import backs_off

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1800)]

SAMPLE = Path(__file__).parents[2] / "samples" / "appwrapper" / "raycluster.yaml"
MEMBERS = ("a", "b")
SIZE = "cpu=3,memory=6Gi"
ROUNDS = int(os.environ.get("CLUSTERS_ROUNDS", "120"))
RAY_ROUNDS = int(os.environ.get("CLUSTERS_RAY", "2"))
SECONDS = 300.0
LIMIT = 0.5
PROGRAM = "import ray; ray.init(); print('CPU:', ray.cluster_resources()['CPU'])"
SENDS = ("--set", "clusters.app_wrappers=everywhere", "--set", "clusters.app_wrapper_namespaces=any")


class Place(Machine):
    """One cluster of `shoal up`."""

    @property
    def credential(self) -> Path:
        return Home(self.name, self.home / "shoal").kubeconfig


class Walk:
    """A hub with its members; its commands run in the folder of `commands`. `reaches`: pods of members, for users."""

    def __init__(self, credential: Path, members: dict[str, Place], commands: Machine, *, reaches: bool) -> None:
        self.credential, self.places, self.commands, self.reaches = credential, members, commands, reaches
        self.kubectl = shutil.which("kubectl") or str(build.binaries("kubectl")["kubectl"])
        commands.environment["PATH"] = f"{Path(self.kubectl).parent}:{commands.environment['PATH']}"

    def shoal(self, *arguments: str) -> str:
        return self.commands.shoal(*arguments, "--kubeconfig", str(self.credential))

    def session(self, gang: str, program: str) -> str:
        """What a program prints that runs in the Ray cluster of a gang."""
        words = ["--", sys.executable, "-c", program]
        return self.commands.shoal("session", gang, "--kubeconfig", str(self.credential), *words)

    @asynccontextmanager
    async def clusters(self) -> AsyncIterator[tuple[Cluster, dict[str, Cluster]]]:
        transports = {name: kubeconfig.load(place.credential) for name, place in self.places.items()}
        hub = kubeconfig.load(self.credential)
        try:
            yield (
                RemoteCluster(Client(hub)),
                {name: RemoteCluster(Client(transport)) for name, transport in transports.items()},
            )
        finally:
            for transport in (hub, *transports.values()):
                await transport.close()


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Place]]:
    made = {name: Place(name, tmp_path_factory.mktemp(name)) for name in MEMBERS}
    try:
        for place in made.values():
            place.up("--node", SIZE)
        yield made
    finally:
        for place in made.values():
            place.down("--purge")


@pytest.fixture(scope="module", params=["shoal up", "kube-apiserver"])
def walk(
    request: pytest.FixtureRequest, members: dict[str, Place], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Walk]:
    folder = tmp_path_factory.mktemp("hub")
    commands = Place("hub", folder)
    with own_hub(commands) if request.param == "shoal up" else real_hub(folder) as credential:
        made = Walk(credential, members, commands, reaches=request.param == "shoal up")
        for name, place in members.items():
            made.shoal("cluster", "add", name, "--from", str(place.credential), "--check", "everywhere")
        yield made
        for name in members:
            made.shoal("cluster", "remove", name, "--force")


@contextmanager
def own_hub(hub: Place) -> Iterator[Path]:
    hub.up("--sandbox", "loopback", "--node", "cpu=1,memory=1Gi", *SENDS)
    try:
        yield hub.credential
    finally:
        hub.down("--purge")


@contextmanager
def real_hub(folder: Path) -> Iterator[Path]:
    plane = ControlPlane(folder / "plane", controllers=True).start()
    try:
        crds = {"apiVersion": "v1", "kind": "List", "items": load_crds()}
        plane.kubectl("create", "-f", "-", stdin=json.dumps(crds))
        await_kinds(plane.kubectl)
        plane.kubectl("create", "namespace", SYSTEM)
        options = ["--only", "appwrapper,clusters", "--trust-unstamped", *SENDS]
        with (folder / "controller.log").open("wb") as log:
            running = subprocess.Popen(
                [SHOAL, "controller", "--kubeconfig", str(plane.kubeconfig), *options], stdout=log, stderr=log
            )
            try:
                yield plane.kubeconfig
            finally:
                running.terminate()
                running.wait(60)
    finally:
        plane.stop()


def ray_gang(name: str) -> Json:
    found: Json = yaml.safe_load(SAMPLE.read_text())
    found["metadata"]["name"] = name
    found["spec"]["resources"]["GenericItems"][0]["generictemplate"]["metadata"]["name"] = name
    return found


def light_gang(name: str) -> Json:
    one = pod(name, cpu="2")
    one["spec"]["terminationGracePeriodSeconds"] = 0
    one["spec"]["containers"][0] |= {"image": "busybox", "command": ["sleep", "100000"]}
    return app_wrapper(name, one)


def runs(found: Json) -> bool:
    return (found.get("status") or {}).get("state") == "Running"


def is_ready(found: Json) -> bool:
    return (found.get("status") or {}).get("state") == "ready"


async def emptied(*members: Cluster) -> None:
    """Until what ran there before is gone to its last pod."""
    for member in members:
        for name in await member.names(kinds.POD):
            await member.until_gone(kinds.POD, name)


async def assert_nowhere(name: str, *clusters: Cluster) -> None:
    """Nothing of a gang that waits is in a member, and nothing that it wraps is at the hub."""
    _, *members = clusters
    for cluster in clusters:
        for kind in (kinds.RAY_CLUSTER, kinds.POD):
            assert not [one for one in await cluster.names(kind) if one.startswith(name)]
    for cluster in members:
        assert name not in await cluster.names(kinds.APP_WRAPPER)


class Replaced(msgspec.Struct, frozen=True):
    """How long after one gang's deletion, and after its last pod's end, the first pod of the next one was there."""

    from_deletion: float
    from_end: float


async def replace(hub: Cluster, member: Cluster, first: str, third: str) -> Replaced:
    listed = await member.client.list_raw(kinds.POD, "default")
    pods = sum(gang_of(msgspec.json.decode(one)) == first for one in listed.items or ())
    began = ended = time.monotonic()
    await hub.client.delete(kinds.APP_WRAPPER, first, "default")
    async with asyncio.timeout(SECONDS):
        async for event in member.client.watch(kinds.POD, "default", resource_version=listed.metadata.resource_version):
            name = gang_of(msgspec.json.decode(event.object))
            if (event.type, name) == ("DELETED", first):
                pods, ended = pods - 1, time.monotonic()
            elif (event.type, name) == ("ADDED", third):
                assert pods == 0, f"{third} starts beside {first}"
                return Replaced(time.monotonic() - began, time.monotonic() - ended)
    raise AssertionError("the watch ended")


def gang_of(found: Json) -> str:
    return str((found["metadata"].get("labels") or {}).get("ray.io/cluster") or found["metadata"]["name"])


def shown(name: str, times: list[float]) -> str:
    ordered = sorted(times)
    middle, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return (
        f"{name}: {len(times)} times, p50 {middle * 1000:.0f} ms, p99 {p99 * 1000:.0f}, at most {max(times) * 1000:.0f}"
    )


@pytest.mark.not_at_rest("what is where is asserted; the members are judged when they end")
async def test_one_runs_here_one_there_and_the_third_waits_with_nothing_anywhere(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.cluster.PATIENCE", SECONDS)
    async with walk.clusters() as (hub, members):
        for name in MEMBERS:
            await hub.until(kinds.MULTIKUEUE_CLUSTER, name, is_true("Active"))
        await emptied(*members.values())
        running = {"a": "g0", "b": "g1"}
        for home, name in running.items():
            began = time.monotonic()
            await hub.client.create(kinds.APP_WRAPPER, ray_gang(name), "default")
            await members[home].until(kinds.RAY_CLUSTER, name, lambda one: True)
            print(f"\n{name}: in cluster {home} after {(time.monotonic() - began) * 1000:.0f} ms")
            await hub.until(kinds.APP_WRAPPER, name, runs)
            assert await members[home].names(kinds.APP_WRAPPER) == [name]
        for home, name in running.items():
            await members[home].until(kinds.RAY_CLUSTER, name, is_ready)
            assert await hub.names(kinds.RAY_CLUSTER) == []
        for name in running.values() if walk.reaches else ():
            assert "Ray runtime started" in await asyncio.to_thread(walk.shoal, "logs", name)
            assert "Pod/" in await asyncio.to_thread(walk.shoal, "events", name)
            assert "CPU: 3.0" in await asyncio.to_thread(walk.session, name, PROGRAM)
        took: list[Replaced] = []
        for at in range(RAY_ROUNDS):
            home, third = MEMBERS[at % 2], f"g{at + 2}"
            await hub.client.create(kinds.APP_WRAPPER, ray_gang(third), "default")
            await hub.until(kinds.APP_WRAPPER, third, backs_off)
            await assert_nowhere(third, hub, *members.values())
            took.append(await replace(hub, members[home], running[home], third))
            await hub.until(kinds.APP_WRAPPER, third, runs)
            await members[home].until(kinds.RAY_CLUSTER, third, is_ready)
            running[home] = third
        print(shown("Ray clusters, from the last pod's end to the next one's first", [one.from_end for one in took]))
        for home, name in running.items():
            await hub.client.delete(kinds.APP_WRAPPER, name, "default")
            await hub.until_gone(kinds.APP_WRAPPER, name)
            await members[home].until_gone(kinds.APP_WRAPPER, name)
        assert max(one.from_end for one in took) < LIMIT


@pytest.mark.not_at_rest("what is where is asserted; the members are judged when they end")
async def test_the_next_gang_starts_within_half_a_second_of_a_deletion(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.cluster.PATIENCE", SECONDS)
    async with walk.clusters() as (hub, members):
        for name in MEMBERS:
            await hub.until(kinds.MULTIKUEUE_CLUSTER, name, is_true("Active"))
        await emptied(*members.values())
        running = {"a": "l0", "b": "l1"}
        for home, name in running.items():
            await hub.client.create(kinds.APP_WRAPPER, light_gang(name), "default")
            await hub.until(kinds.APP_WRAPPER, name, runs)
            assert await members[home].names(kinds.APP_WRAPPER) == [name]
        took: list[Replaced] = []
        for at in range(ROUNDS):
            home, third = MEMBERS[at % 2], f"l{at + 2}"
            await hub.client.create(kinds.APP_WRAPPER, light_gang(third), "default")
            await hub.until(kinds.APP_WRAPPER, third, backs_off)
            await assert_nowhere(third, hub, *members.values())
            took.append(await replace(hub, members[home], running[home], third))
            await hub.until(kinds.APP_WRAPPER, third, runs)
            running[home] = third
        deleted, ended = [one.from_deletion for one in took], [one.from_end for one in took]
        print("\n" + shown("from the deletion to the next gang's pod", deleted))
        print(shown("from the pod's end to the next gang's pod", ended))
        for home, name in running.items():
            await hub.client.delete(kinds.APP_WRAPPER, name, "default")
            await hub.until_gone(kinds.APP_WRAPPER, name)
            await members[home].until_gone(kinds.APP_WRAPPER, name)
        assert sorted(ended)[int(len(ended) * 0.99)] < LIMIT
