"""A cluster as a release left it: written once per release, loaded by every later one.

`python -m tests.unit.upgrade.stored` writes what this version stores (one gang that runs, one that waits, one that
has ended) to `releases/<version>.json`. Do it when a release is cut, and never change the file of a released one.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import msgspec

from shoal import __version__
from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers import appwrapper, ray
from tests.cluster import Cluster, running
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, has_state, needs, ray_cluster, waits

RELEASES = Path(__file__).parent / "releases"
KEPT = (kinds.NODE, kinds.APP_WRAPPER, kinds.RAY_CLUSTER, kinds.POD, kinds.SERVICE, kinds.CONFIG_MAP)


def start_controllers(cluster: Cluster) -> None:
    cluster.start(appwrapper.run(cluster.client, appwrapper.AppWrapperSettings(trust_unstamped=True)))
    cluster.start(ray.run(cluster.client, ray.RaySettings()))


async def objects(cluster: Cluster, kept: tuple[Kind, ...] = KEPT) -> list[Json]:
    found = []
    for kind in kept:
        for obj in await cluster.client.list(kind, "default" if kind.namespaced else None):
            if obj["metadata"]["name"] not in ("kubernetes", "kube-root-ca.crt"):
                found.append({**obj, "apiVersion": kind.api_version, "kind": kind.kind})
    return found


async def load(cluster: Cluster, stored: list[Json], kept: tuple[Kind, ...] = KEPT) -> None:
    """Into the store as they are, UIDs and times included, as a database would be found."""
    for obj in stored:
        metadata = obj["metadata"]
        kind = next(kind for kind in kept if (kind.api_version, kind.kind) == (obj["apiVersion"], obj["kind"]))
        resource = cluster.server.registry.find(kind.group, kind.plural)
        assert resource is not None
        revision = cluster.server.storage.next_revision()
        raw = msgspec.json.encode({**obj, "metadata": {**metadata, "resourceVersion": str(revision)}})
        namespace = metadata.get("namespace", "")
        await cluster.server.storage.put(resource.collection, namespace, metadata["name"], revision, raw)


async def walk() -> list[Json]:
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="4", memory="8Gi")
        start_controllers(cluster)
        limited = app_wrapper("ended", config_map("e"), schedulingSpec={"dispatchDuration": {"limit": 1}})
        await cluster.create(kinds.APP_WRAPPER, limited)
        await cluster.until(kinds.APP_WRAPPER, "ended", has_state("Failed"))
        for name in ("runs", "waits"):
            wrapper = app_wrapper(name, ray_cluster(name), needs=[needs(1, cpu="3")])
            await cluster.create(kinds.APP_WRAPPER, wrapper)
            await cluster.until(kinds.APP_WRAPPER, name, dispatched if name == "runs" else waits)
        await cluster.until(kinds.RAY_CLUSTER, "runs", lambda found: bool(found.get("status")))
        await cluster.settled()
        return await objects(cluster)


if __name__ == "__main__":
    made = asyncio.run(walk())
    RELEASES.mkdir(exist_ok=True)
    with contextlib.closing((RELEASES / f"{__version__}.json").open("wb")) as file:
        file.write(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
    print(f"{len(made)} objects in {file.name}")
