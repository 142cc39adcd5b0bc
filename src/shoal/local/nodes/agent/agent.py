"""The node agent: runs the pods that are bound to its nodes and reports what became of them.

Speaks only `shoal.kube`, so it serves the embedded API server and a real one alike. Level-triggered: every pod is
brought to where its object says it should be, whatever was missed; a pod that ended is never started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Coroutine, Mapping
from functools import partial
from typing import Any

from shoal.api.kind import Key
from shoal.api.kinds import CONFIG_MAP, NODE, POD, SECRET, SERVICE
from shoal.api.labels import RAY_CLUSTER_NAME, RAY_NODE_TYPE
from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.errors import ShoalError
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import Conflict, NotFound
from shoal.kube.events import EventType, Recorder
from shoal.kube.runtime import Controller
from shoal.local.nodes.agent.admission import NodeRoom, Refusal, failed_status
from shoal.local.nodes.agent.names import Names
from shoal.local.nodes.agent.nodes import MANAGED, RUNTIME, NodeKeeper, is_given_up
from shoal.local.nodes.runtime import RunningPod, Runtime
from shoal.local.nodes.runtime.logs import CANNOT_RUN, LogOptions
from shoal.local.nodes.runtime.pod import PodRun
from shoal.local.nodes.runtime.process import ContainerProcess
from shoal.local.nodes.runtime.processes import ProcessRuntime
from shoal.local.nodes.runtime.simulated import SimulatedRuntime
from shoal.local.shapes import NodeShape

log = logging.getLogger(__name__)

TERMINAL = ("Succeeded", "Failed")


class Agent:
    """One agent for any number of nodes. `runtimes` by name; a node's label says which one its pods get."""

    def __init__(
        self,
        client: Client,
        name: str,
        runtimes: Mapping[str, Runtime],
        keeper: NodeKeeper,
        *,
        clock: Clock | None = None,
        workers: int = 16,
    ) -> None:
        self._client = client
        self._name = name
        self._runtimes = dict(runtimes)
        self.keeper = keeper
        self._clock: Clock = clock or SystemClock()
        self._recorder = Recorder(client, "kubelet", clock=self._clock)
        self.pods: Cache[Json] = Cache(client, POD, dict, clock=self._clock, share=True)
        self._services: Cache[Json] = Cache(client, SERVICE, dict, clock=self._clock)
        processes = [one for one in self._runtimes.values() if isinstance(one, ProcessRuntime)]
        self._names = Names(self.pods, self._services, processes, self._clock)
        self._written_from = {
            kind.kind: Cache(client, kind, dict, clock=self._clock) for kind in (CONFIG_MAP, SECRET) if processes
        }
        self._nodes: Cache[Json] = Cache(client, NODE, dict, label_selector=f"{MANAGED}={name}", clock=self._clock)
        self._controller: Controller[Key] = Controller("agent", self._reconcile, workers=workers, clock=self._clock)
        self._runs: dict[Key, RunningPod] = {}
        self._written: dict[str, Json] = {}
        self._stopping: set[Key] = set()
        self._room = NodeRoom()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self.ready = asyncio.Event()

    def _head_of(self, worker: Json) -> Json | None:
        metadata = worker["metadata"]
        wanted = (metadata.get("namespace"), (metadata.get("labels") or {}).get(RAY_CLUSTER_NAME))
        for pod in self.pods.list():
            labels = pod["metadata"].get("labels") or {}
            is_head = labels.get(RAY_NODE_TYPE) == "head" and not pod["metadata"].get("deletionTimestamp")
            if is_head and (pod["metadata"].get("namespace"), labels.get(RAY_CLUSTER_NAME)) == wanted:
                return pod
        return None

    # --- life

    async def run(self) -> None:
        """Until cancelled. Pods keep running then: `stop_pods` ends them, a later agent finds them."""
        for runtime in self._runtimes.values():
            await runtime.start()
            if isinstance(runtime, ProcessRuntime):
                runtime.hosts_text = self._names.hosts_text
                runtime.host.links = self._names.links
                runtime.host.head_of = self._head_of
                runtime.host.sandbox.lookup = self._names.look_up
            elif isinstance(runtime, SimulatedRuntime):
                runtime.lookup = self._names.look_up
        try:
            async with asyncio.TaskGroup() as tasks:
                for cache in (self._nodes, self._services, self.pods):
                    tasks.create_task(cache.run())
                for cache in (self._nodes, self._services, self.pods):
                    await cache.synced.wait()
                self._keep_devices()
                self._nodes.subscribe(self._node_changed)
                known = {pod["metadata"]["uid"] for pod in self.pods.list() if self._is_ours(pod)}
                for runtime in self._runtimes.values():
                    await runtime.sweep(known)
                for kind, cache in self._written_from.items():
                    tasks.create_task(cache.run())
                    cache.subscribe(partial(self._source_changed, kind))
                self.pods.subscribe(self._pod_changed)
                self._admit_in_order()
                tasks.create_task(self._names.keep())
                tasks.create_task(self.keeper.beat())
                tasks.create_task(self._controller.run())
                self.ready.set()
        finally:
            for run in self._runs.values():
                await run.detach()
            self._runs.clear()  # a next run of this agent finds its pods as after a restart
            self._stopping.clear()
            self._written.clear()
            self._room = NodeRoom()
            await self._recorder.close()

    async def stop_pods(self, grace: float) -> None:
        """End every pod of this agent without touching its object: `shoal down`."""
        self._closing = True
        for run in self._runs.values():
            run.stop(grace, keep=True)
        await asyncio.gather(*(run.finished.wait() for run in self._runs.values()))

    def announce(self, pod: Json, kind: EventType, reason: str, message: str) -> None:
        self._recorder.event({"apiVersion": "v1", "kind": "Pod", **pod}, kind, reason, message)

    async def logs(self, namespace: str, name: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        """The log of a container of one of our pods, as chunks."""
        run = self._runs.get(Key(namespace, name))
        if run is not None:
            chunks = run.logs(container, options)
        else:
            pod = self.pods.get(Key(namespace, name))
            if pod is None or not self._is_ours(pod):
                return
            chunks = self._runtime(pod).old_logs(pod["metadata"]["uid"], container, options)
        async for chunk in chunks:
            yield chunk

    def process(self, namespace: str, name: str, container: str) -> ContainerProcess | None:
        """The running container of one of our pods, to run a command in; None when there is none."""
        run = self._runs.get(Key(namespace, name))
        found = run.container(container) if isinstance(run, PodRun) else None
        return found.process if found is not None and found.running else None

    async def connect(self, namespace: str, name: str, port: int) -> socket.socket:
        """A connection to a port of one of our pods, as from inside it. Raises OSError."""
        run = self._runs.get(Key(namespace, name))
        if isinstance(run, PodRun) and run.address is not None:
            return await run.host.sandbox.connect(run.address, "localhost", port)
        address = run.status().get("podIP") if run is not None else None
        if not address:
            raise ConnectionRefusedError(f"pod {namespace}/{name} is not running here")
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (address, port))
        except BaseException:
            connection.close()
            raise
        return connection

    def running(self, namespace: str, name: str) -> RunningPod | None:
        return self._runs.get(Key(namespace, name))

    # --- one pod

    async def _reconcile(self, key: Key) -> float | None:
        if self._closing:
            return None
        pod, run = self.pods.get(key), self._runs.get(key)
        if run is not None and (pod is None or pod["metadata"]["uid"] != run.uid):
            await self._retire(key, run)
            return 0.0
        if pod is None or (run is None and not self._is_ours(pod)):
            return None
        if run is not None and not self._is_ours(pod) and not pod["metadata"].get("deletionTimestamp"):
            with contextlib.suppress(NotFound, Conflict):  # its node was removed
                await self._client.delete(POD, key.name, key.namespace, uid=run.uid)
            return None
        if pod["metadata"].get("deletionTimestamp"):
            return await self._delete(key, pod, run)
        if run is None:
            if (pod.get("status") or {}).get("phase") in TERMINAL:
                return None
            if refusal := self._room.admit(pod, self.keeper.shapes[pod["spec"]["nodeName"]].offers):
                await self._refuse(pod, refusal)
                return None
            run = self._begin(key, pod)
            if run is None:
                return None
        if isinstance(run, PodRun):
            run.update(pod)
        await self._report(pod, run)
        return None

    def _admit_in_order(self) -> None:
        """Pods of an earlier agent keep their places, the oldest first, should their node be smaller now."""
        ours = [pod for pod in self.pods.list() if self._is_ours(pod)]
        for pod in sorted(ours, key=_age):
            if (pod.get("status") or {}).get("phase") not in TERMINAL:
                self._room.admit(pod, self.keeper.shapes[pod["spec"]["nodeName"]].offers)

    async def _refuse(self, pod: Json, refusal: Refusal) -> None:
        """It does not fit on its node: failed, before anything of it started."""
        metadata = pod["metadata"]
        self.announce(pod, "Warning", refusal.reason, refusal.message)
        body = {"metadata": {"uid": metadata["uid"]}, "status": failed_status(refusal, seconds_text(self._clock.now()))}
        with contextlib.suppress(NotFound, Conflict):
            written = await self._client.patch(
                POD, metadata["name"], metadata["namespace"], body, subresource="status", patch_type="merge"
            )
            self.pods.note_write(written)

    def _begin(self, key: Key, pod: Json) -> RunningPod | None:
        try:
            run = self._runtime(pod).create(pod, lambda: self._controller.enqueue(key))
        except ShoalError as error:
            self.announce(pod, "Warning", "UnexpectedAdmissionError", str(error))
            log.warning("pod %s cannot start: %s", key, error)
            self._controller.enqueue(key, after=5.0)
            return None
        self._runs[key] = run
        run.start()
        return run

    async def _delete(self, key: Key, pod: Json, run: RunningPod | None) -> float | None:
        """The object asks to be deleted: stop within its grace, say how it ended, then let the object go."""
        if run is not None:
            if not run.finished.is_set():
                if key not in self._stopping:
                    self._stopping.add(key)
                    self.announce(pod, "Normal", "Killing", "Stopping the containers of the pod")
                run.stop(float(pod["metadata"].get("deletionGracePeriodSeconds") or 0))
                if not run.finished.is_set():
                    return None
            await self._report(pod, run)
        else:
            grace = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            await self._runtime(pod).discard(pod["metadata"]["uid"], grace)
        with contextlib.suppress(NotFound, Conflict):
            await self._client.delete(POD, key.name, key.namespace, uid=pod["metadata"]["uid"], grace_seconds=0)
        if run is not None:
            await self._retire(key, run)
        return None

    async def _retire(self, key: Key, run: RunningPod) -> None:
        """The object is gone: nothing of the pod may stay."""
        run.stop(0.0)
        await run.finished.wait()
        await run.remove()
        self._stopping.discard(key)
        self._written.pop(run.uid, None)
        if self._runs.get(key) is run:
            del self._runs[key]

    async def _report(self, pod: Json, run: RunningPod) -> None:
        status = run.status()
        if not isinstance(run, PodRun) and (debuggers := pod["spec"].get("ephemeralContainers")):
            status["ephemeralContainerStatuses"] = [_no_debugger(one) for one in debuggers]
        if self._written.get(run.uid) == status:
            return
        known = (pod.get("status") or {}).get("phase")
        if known in TERMINAL and status["phase"] != known:
            return  # what ended stays ended
        key = Key(pod["metadata"]["namespace"], pod["metadata"]["name"])
        shared = bool(pod["spec"].get("readinessGates"))
        body = {"metadata": {"uid": run.uid}, "status": status if shared else _with_others(pod, status)}
        try:
            written = await self._client.patch(
                POD, key.name, key.namespace, body, subresource="status", patch_type="strategic" if shared else "merge"
            )
        except NotFound:
            return
        self._written[run.uid] = status
        self.pods.note_write(written)

    # --- whose pods, which names

    def _pod_changed(self, change: Change) -> None:
        pod = change.new or change.old
        if change.old is not None and not _holds_room(change.new, change.old["metadata"]["uid"]):
            self._room.release(change.old["metadata"]["uid"])  # in the order in which the scheduler learns it
        if self._is_ours(pod) or change.key in self._runs:
            self._controller.enqueue(change.key)
        self._names.pod_changed(change)

    def _source_changed(self, kind: str, change: Change) -> None:
        """A config map or secret: files of running pods that are written from it follow."""
        if change.new is None:
            return
        for key, run in self._runs.items():
            if key.namespace == change.key.namespace and isinstance(run, PodRun) and run.refers(kind, change.key.name):
                self._spawn(run.refresh(kind, change.key.name))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _node_changed(self, change: Change) -> None:
        if change.new is None:
            self.keeper.forget(change.key.name)
            self._keep_devices()
            for key, pod in [(key, self.pods.get(key)) for key in self._runs]:
                if pod is not None and pod["spec"].get("nodeName") == change.key.name:
                    self._controller.enqueue(key)
            return
        node = change.new
        if is_given_up(node):
            self._spawn(self.keeper.restate(change.key.name))
        shape = NodeShape(
            name=change.key.name,
            capacity=dict((node.get("status") or {}).get("capacity") or {}),
            labels=dict(node["metadata"].get("labels") or {}),
            runtime=(node["metadata"].get("labels") or {}).get(RUNTIME, "process"),
        )
        self.keeper.adopt(shape)
        process = self._runtimes.get("process")
        if isinstance(process, ProcessRuntime):
            process.gpus.add_node(shape.name, shape.capacity)
        if change.old is None:
            for pod in self.pods.list():
                if (pod.get("spec") or {}).get("nodeName") == shape.name:
                    self._controller.enqueue(Key(pod["metadata"]["namespace"], pod["metadata"]["name"]))

    def _keep_devices(self) -> None:
        """Devices of nodes that are gone are there for others."""
        process = self._runtimes.get("process")
        if isinstance(process, ProcessRuntime):
            process.gpus.keep_nodes([node["metadata"]["name"] for node in self._nodes.list()])

    def _is_ours(self, pod: Json) -> bool:
        return (pod.get("spec") or {}).get("nodeName", "") in self.keeper.shapes

    def _runtime(self, pod: Json) -> Runtime:
        wanted = self.keeper.shapes[pod["spec"]["nodeName"]].runtime
        return self._runtimes.get(wanted) or next(iter(self._runtimes.values()))


def _age(pod: Json) -> tuple[str, str]:
    """To sort by: the oldest first, and always in the same order."""
    return pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"]


def _holds_room(pod: Json | None, uid: str) -> bool:
    """Whether this is still that pod, and still counts on its node."""
    return pod is not None and pod["metadata"]["uid"] == uid and (pod.get("status") or {}).get("phase") not in TERMINAL


def _with_others(pod: Json, status: Json) -> Json:
    """Our status with the conditions that others wrote.

    Once a pod is bound no other client writes conditions, unless it has readiness gates: then the server merges them.
    """
    ours = {condition["type"] for condition in status["conditions"]}
    theirs = [one for one in (pod.get("status") or {}).get("conditions") or () if one["type"] not in ours]
    return {**status, "conditions": [*status["conditions"], *theirs]}


def _no_debugger(container: Json) -> Json:
    """Without processes there is nothing to look into; said as an end, or `kubectl debug` would wait for ever."""
    message = "this pod is simulated: it has no processes to debug"
    ended = {"exitCode": 128, "reason": CANNOT_RUN, "message": message}
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": ended},
        "lastState": {},
    }
