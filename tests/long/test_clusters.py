"""A hub and two members on this machine with real Ray: AppWrappers go to one, to the other, and wait."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.kube import kubeconfig
from shoal.kube.client import Client
from shoal.local.home import Home
from tests.e2e.machine import Machine

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1800)]

SAMPLE = Path(__file__).parents[2] / "samples" / "appwrapper" / "raycluster.yaml"
SIZE = "cpu=3,memory=6Gi"
ROUNDS = int(os.environ.get("SHOAL_ROUNDS", "5"))
SECONDS = 300.0


class Place(Machine):
    """One cluster of the three, with a client of its own."""

    @property
    def credential(self) -> str:
        return str(Home(self.name, self.home / "shoal").kubeconfig)

    def client(self) -> Client:
        return Client(kubeconfig.load(Path(self.credential)))


def wrapped(name: str) -> Json:
    found: Json = yaml.safe_load(SAMPLE.read_text())
    found["metadata"]["name"] = name
    found["spec"]["resources"]["GenericItems"][0]["generictemplate"]["metadata"]["name"] = name
    return found


@pytest.fixture
def places(tmp_path: Path) -> Iterator[dict[str, Place]]:
    made = {name: Place(name, tmp_path / name) for name in ("hub", "a", "b")}
    for place in made.values():
        place.home.mkdir()
    try:
        made["hub"].up(
            "--sandbox", "loopback", "--node", "cpu=1,memory=1Gi",
            "--set", "clusters.app_wrappers=everywhere", "--set", "clusters.app_wrapper_namespaces=any",
        )  # fmt: skip
        for name in ("a", "b"):
            made[name].up("--node", SIZE)
            made["hub"].shoal(
                "cluster", "add", name, "--from", made[name].credential, "--check", "everywhere", "--name", "hub"
            )
        yield made
    finally:
        for place in made.values():
            place.shoal("down", "--name", place.name, "--purge")


async def until(client: Client, name: str, state: str) -> Json:
    async with asyncio.timeout(SECONDS):
        while True:
            found: Json = await client.get(kinds.APP_WRAPPER, name, "default")
            if (found.get("status") or {}).get("state") == state:
                return found
            await asyncio.sleep(0.2)


async def ready(client: Client, name: str) -> str:
    """Its Ray cluster runs. The name of its head's pod."""
    async with asyncio.timeout(SECONDS):
        while True:
            pods = await client.list(kinds.POD, "default", label_selector=f"ray.io/cluster={name}")
            running = [one for one in pods if (one.get("status") or {}).get("phase") == "Running"]
            if len(running) == 2:
                heads = [one for one in running if one["metadata"]["labels"]["ray.io/node-type"] == "head"]
                return str(heads[0]["metadata"]["name"])
            await asyncio.sleep(0.2)


async def handed_over(hub: Client, member: Client, first: str, third: str) -> float:
    """Seconds from the end of the first's last pod to the third's first, once the first is deleted at the hub."""
    found = await member.list(kinds.POD, "default")
    left = {one["metadata"]["name"] for one in found if one["metadata"]["labels"].get("ray.io/cluster") == first}
    version = (await member.get(kinds.POD, next(iter(left)), "default"))["metadata"]["resourceVersion"]
    gone = 0.0
    await hub.delete(kinds.APP_WRAPPER, first, "default")
    async with asyncio.timeout(SECONDS):
        async for event in member.watch(kinds.POD, "default", resource_version=version):
            pod = json.loads(event.object)
            name, cluster = pod["metadata"]["name"], pod["metadata"]["labels"].get("ray.io/cluster")
            if event.type == "DELETED" and name in left:
                left.discard(name)
                gone = time.monotonic() if not left else gone
            if event.type == "ADDED" and cluster == third:
                assert not left, f"{third} starts beside {left}"
                return time.monotonic() - gone
    raise AssertionError("the watch ended")


async def test_one_runs_here_one_there_and_the_third_waits_with_nothing_anywhere(places: dict[str, Place]) -> None:
    hub, a, b = (places[name].client() for name in ("hub", "a", "b"))
    for name, home in (("g0", a), ("g1", b)):
        await hub.create(kinds.APP_WRAPPER, wrapped(name), "default")
        await until(hub, name, "Running")
        assert [one["metadata"]["name"] for one in await home.list(kinds.APP_WRAPPER, "default")] == [name]
    heads = {"a": await ready(a, "g0"), "b": await ready(b, "g1")}

    for name, gang in (("a", "g0"), ("b", "g1")):  # read at the hub
        assert "Ray runtime started" in places["hub"].shoal("logs", gang, "--name", "hub")
        server = kubeconfig.resolve(Path(places["hub"].credential)).cluster.server
        log = places["hub"].kubectl(
            "--kubeconfig", places["hub"].credential, "--server", f"{server}/clusters/{name}", "logs", heads[name]
        )
        assert "Ray runtime started" in log
        assert "Pod/" in places["hub"].shoal("events", gang, "--name", "hub")

    waits: list[float] = []
    running = {"a": "g0", "b": "g1"}
    for at in range(ROUNDS):
        home, member = ("a", a) if at % 2 == 0 else ("b", b)
        third = f"g{at + 2}"
        await hub.create(kinds.APP_WRAPPER, wrapped(third), "default")
        waiting = await until(hub, third, "Pending")
        async with asyncio.timeout(SECONDS):
            while "Cannot find a cluster" not in json.dumps(waiting):  # its reason is told a moment later
                await asyncio.sleep(0.1)
                waiting = await hub.get(kinds.APP_WRAPPER, third, "default")
        for client in (a, b, hub):
            assert third not in {one["metadata"]["name"] for one in await client.list(kinds.RAY_CLUSTER, "default")}
        for client in (a, b):
            assert third not in {one["metadata"]["name"] for one in await client.list(kinds.APP_WRAPPER, "default")}
        waits.append(await handed_over(hub, member, running[home], third))
        await until(hub, third, "Running")
        running[home] = third
        await ready(member, third)
    print(f"\nfrom the last pod's end to the next gang's first pod: {[round(one * 1000) for one in waits]} ms")
    assert max(waits) < 0.5
    for name in running.values():
        await hub.delete(kinds.APP_WRAPPER, name, "default")
