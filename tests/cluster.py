"""A whole cluster inside the test: the embedded API server in memory, our CRDs, and the controllers that a test asks
for.

No sockets, no processes. `until` awaits a state through a watch; `settled` returns when nothing has been written any
more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.crds import load_crds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import NotFound
from shoal.local.apiserver import Server
from tests.checker import assert_holds, from_audit
from tests.checker.at_rest import Rules
from tests.patience import PATIENCE, patiently
from tests.resting import hold_at_rest, hold_remote, objects_of
from tests.stocked import start_with


class Cluster:
    """The client of an in-memory cluster, with the verbs that tests read well."""

    def __init__(self, server: Server, client: Client | None = None) -> None:
        self.server = server
        self.client = client or Client(server.transport())
        self._tasks: list[asyncio.Task[Any]] = []
        self.rules: Rules | None = None
        """Set by the test that starts controllers that decide: then what is stored is judged once all is at rest."""

    def start(self, running: Awaitable[Any]) -> asyncio.Task[Any]:
        """Run a controller until the test ends; if it dies, the test fails."""
        task = asyncio.ensure_future(running)
        self._tasks.append(task)
        return task

    async def stop(self) -> None:
        died = [task for task in self._tasks if task.done() and not task.cancelled() and task.exception()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if died:
            raise AssertionError("a controller died during the test") from died[0].exception()

    async def create(self, kind: Kind, obj: Json) -> Json:
        namespace = obj["metadata"].setdefault("namespace", "default") if kind.namespaced else None
        made: Json = await self.client.create(kind, obj, namespace)
        return made

    async def get(self, kind: Kind, name: str, namespace: str = "default") -> Json:
        return await self.client.get(kind, name, namespace if kind.namespaced else None)

    async def names(self, kind: Kind, namespace: str = "default") -> list[str]:
        return sorted(obj["metadata"]["name"] for obj in await self.client.list(kind, namespace))

    async def until(self, kind: Kind, name: str, holds: Callable[[Json], bool], namespace: str = "default") -> Json:
        """Wait for an object to be there and in that state; the last state seen is shown when it never comes."""
        last: Json | None = None
        try:
            async with patiently(PATIENCE):
                where = namespace if kind.namespaced else None
                watch = self.client.watch(kind, where, field_selector=f"metadata.name={name}", send_initial_events=True)
                async for event in watch:
                    if event.type in ("ADDED", "MODIFIED"):
                        last = msgspec.json.decode(event.object)
                        if holds(last):
                            return last
        except TimeoutError:
            raise AssertionError(f"{kind.kind} {name} never got there; it was last seen as {last}") from None
        raise AssertionError(f"the watch of {kind.kind} {name} ended")

    async def until_gone(self, kind: Kind, name: str, namespace: str = "default") -> None:
        try:
            async with patiently(PATIENCE):
                there = await self.get(kind, name, namespace)
                revision = there["metadata"]["resourceVersion"]
                where = namespace if kind.namespaced else None
                watch = self.client.watch(
                    kind, where, field_selector=f"metadata.name={name}", resource_version=revision
                )
                async for event in watch:
                    if event.type == "DELETED":
                        return
        except NotFound:
            return
        except TimeoutError:
            raise AssertionError(f"{kind.kind} {name} is still there") from None

    async def settled(self, turns: int = 25) -> None:
        """Until the store's revision stands still for that many turns of a few milliseconds each."""
        quiet, revision = 0, ""
        while quiet < turns:
            await asyncio.sleep(0.004)
            current = await self._revision()
            quiet = quiet + 1 if current == revision else 0
            revision = current

    async def _revision(self) -> str:
        return str(self.server.storage.committed)

    async def stored(self) -> dict[str, list[Json]]:
        return objects_of(self.server)

    async def hold_at_rest(self) -> None:
        """Fail where something is not as it must be once nothing changes."""
        if self.rules is not None:
            await hold_at_rest(self.stored, partial(self.settled, 10), self.rules)

    async def add_node(self, name: str, *, labels: dict[str, str] | None = None, **sizes: str) -> None:
        """A ready node; sizes as `cpu="8", memory="16Gi"`."""
        amounts = {"cpu": "8", "memory": "16Gi", "pods": "110"}
        amounts.update({size.replace("_", "/"): value for size, value in sizes.items()})
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        await self.create(
            kinds.NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels or {}}}
        )
        await self.client.patch(kinds.NODE, name, None, {"status": status}, subresource="status")

    async def stock(self, kind: Kind, objects: Iterable[Json]) -> None:
        """Many objects at once, stored as they are: as if they had been there before anybody looked."""
        storage = self.server.storage
        collection = storage.collection(kind.resource)
        for obj in objects:
            name, revision = obj["metadata"]["name"], storage.next_revision()
            namespace = "default" if kind.namespaced else ""
            written = {"uid": f"{kind.plural}-{name}", "resourceVersion": str(revision), "namespace": namespace}
            whole = {**obj, "apiVersion": kind.api_version, "kind": kind.kind}
            whole["metadata"] = {**obj["metadata"], **written, "creationTimestamp": "2026-01-01T00:00:00Z"}
            await storage.put(collection, namespace, name, revision, msgspec.json.encode(whole))


class RemoteCluster(Cluster):
    """The same verbs on an API server that runs elsewhere."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._tasks = []
        self.rules = None

    async def _revision(self) -> str:
        return (await self.client.list_raw(kinds.NAMESPACE, limit=1)).metadata.resource_version

    async def hold_at_rest(self) -> None:
        if self.rules is not None:
            await hold_remote(self.client, self.rules)


@cache
def rendered_crds() -> list[bytes]:
    """Rendered once: hundreds of tests start a cluster."""
    return [msgspec.json.encode(crd) for crd in load_crds()]


@asynccontextmanager
async def running(*, with_builtin: bool = True, judged: bool = False) -> AsyncIterator[Cluster]:
    """An in-memory cluster with our CRDs and, unless refused, the controllers that Kubernetes itself brings.

    `judged` holds the invariants against all that was asked of its server, once it has ended without an error.
    """
    if judged:
        with TemporaryDirectory() as folder:
            log = f"{folder}/audit.log"
            async with _running(with_builtin, log) as cluster:
                yield cluster
            assert_holds(from_audit(Path(log), agents=("shoal",)))
    else:
        async with _running(with_builtin, None) as cluster:
            yield cluster


@asynccontextmanager
async def _running(with_builtin: bool, audit_log: str | None) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        server = Server(None, audit_log=audit_log)
        await start_with(server, rendered_crds())
        stack.push_async_callback(server.stop)
        cluster = Cluster(server)
        stack.push_async_callback(cluster.stop)
        if with_builtin:
            from shoal.local import builtin

            cluster.start(builtin.run_all(cluster.client))
        yield cluster
        await cluster.hold_at_rest()
