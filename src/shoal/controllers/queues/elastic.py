"""Workers of elastic jobs beyond what these were admitted with: let in when a plan says so, taken when it says so.

The pods themselves are the record: one without the gate is granted and charged, one with the mark of leaving is deleted
when its time is over, also by the next leader. Ray's autoscaler, or a user, says how many workers there are; nothing
rewrites that here. A worker that is taken comes back as a new pod behind the gate, as a bid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from shoal.api import kinds, kueue_names
from shoal.api.kind import Key
from shoal.api.kueue_workload import Workload
from shoal.api.labels import RAY_CLUSTER_NAME
from shoal.api.meta import Json
from shoal.controllers.planning import PlanningLoop
from shoal.controllers.planning.growth import RETRY_PAUSE, Growth
from shoal.controllers.planning.pods import SeenPod, key_of
from shoal.controllers.queues.checks.draft import SECOND
from shoal.controllers.queues.context import QueueContext
from shoal.controllers.queues.draining import Draining, is_at_work, leaves_at, mark_of
from shoal.engine.model import Plan, Shortfall, Shrink
from shoal.kube.cache import Change
from shoal.kube.client import Client
from shoal.kube.clock import sleep_or
from shoal.kube.errors import Conflict, KubeError, NotFound
from shoal.kube.writes import Writer

log = logging.getLogger(__name__)


class ElasticWorkers:
    def __init__(self, context: QueueContext, planning: PlanningLoop, writer: Writer, draining: Draining) -> None:
        self._context = context
        self._planning = planning
        self._writer = writer
        self._draining = draining
        self._pods = planning.caches.pods
        self._growth = Growth(writer, self._pods, kueue_names.ELASTIC, self._growth_waits)
        self._leaving: dict[str, Shrink] = {}
        """By UID of the pod: decided, and neither marked nor deleted as far as is known."""
        self._marked: dict[str, SeenPod] = {}
        """By UID: pods that have the mark of leaving and are there."""
        self._due = asyncio.Event()

    def subscribe(self) -> None:
        self._growth.subscribe()
        self._pods.subscribe(self._pod_changed)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._growth.run(self._context.clock))
            tasks.create_task(self._shrink())

    def planned(self, plan: Plan) -> None:
        self._growth.planned(plan)
        for one in plan.shrinks:
            self._leaving[one.pod] = one
        if plan.shrinks:
            self._due.set()

    def _pod_changed(self, change: Change) -> None:
        pod: SeenPod = change.new or change.old
        uid = pod.metadata.uid
        if change.new is None or pod.metadata.deletion_timestamp:
            self._leaving.pop(uid, None)
            self._marked.pop(uid, None)
        elif leaves_at(pod):
            if uid not in self._marked:
                self._due.set()
            self._leaving.pop(uid, None)
            self._marked[uid] = pod

    # --- taking workers

    async def _shrink(self) -> None:
        clock = self._context.clock
        while True:
            await self._due.wait()
            self._due.clear()
            done = await self._tell_to_leave()
            done = await self._take() and done
            waits = [(leaves_at(pod) - clock.now()) / SECOND for pod in self._marked.values()]
            pause = min([*(max(0.1, one) for one in waits), *(() if done else (RETRY_PAUSE,))], default=0.0)
            if pause:
                await self._wait(pause)

    async def _wait(self, seconds: float) -> None:
        """So long, or until there is something new."""
        await sleep_or(self._due, self._context.clock, seconds)
        self._due.set()

    async def _tell_to_leave(self) -> bool:
        """What plans decided since: marked, where its queue gives it time, or deleted. False: not all could be."""
        by_gang: dict[str, list[Shrink]] = {}
        for one in self._leaving.values():
            by_gang.setdefault(one.uid, []).append(one)
        done = True
        for uid, decided in by_gang.items():
            workload = self._workload(uid)
            seconds = self._draining.seconds(workload)
            for one in await self._idle_first(workload, decided):
                pod = self._pod(one.pod, workload)
                self._leaving.pop(one.pod, None)
                if pod is None or pod.metadata.deletion_timestamp:
                    continue
                if seconds and is_at_work(pod):
                    until = self._context.clock.now() + int(seconds * SECOND)
                    told = await self._mark(pod, mark_of(one.preemptor_uid, until))
                else:
                    told = await self._delete(pod)
                if told:
                    self._say(one, workload, pod.metadata.name)
                else:
                    self._leaving[one.pod] = one
                    done = False
        return done

    async def _take(self) -> bool:
        """Ray is told of marked workers; those whose time is over are deleted. False: of one it could not be."""
        now, done = self._context.clock.now(), True
        at_work: dict[tuple[str, int], list[SeenPod]] = {}
        for pod in list(self._marked.values()):
            if is_at_work(pod) and leaves_at(pod) > now:
                at_work.setdefault((self._planning.cluster.gang_of(pod), leaves_at(pod)), []).append(pod)
            elif await self._delete(pod):
                self._marked.pop(pod.metadata.uid, None)
            else:
                done = False
        for (gang, until), pods in at_work.items():
            done = await self._draining.ask(gang, pods, until) and done
        return done

    async def _idle_first(self, workload: Workload | None, decided: list[Shrink]) -> list[Shrink]:
        """Idle workers leave instead of busy ones: where only quota is short any of the pod set does, else one on the
        same node. Which are idle, Ray says."""
        pods = {pod.metadata.uid: pod for pod in self._context.caches.pods_of(workload)} if workload is not None else {}
        chosen = {one.pod for one in decided}
        spare = [pod for uid, pod in pods.items() if uid not in chosen and is_at_work(pod) and not leaves_at(pod)]
        named = {(pod.metadata.labels or {}).get(RAY_CLUSTER_NAME, "") for pod in pods.values()} - {""}
        if not spare or len(named) != 1 or workload is None:
            return decided
        idle = await self._draining.ray.idle(Key(workload.metadata.namespace, named.pop()))
        found = []
        for one in decided:
            told = pods.get(one.pod)
            busy = told is not None and told.metadata.name not in idle
            may = [pod for pod in spare if pod.metadata.name in idle] if busy else []
            other = next((pod for pod in may if told is not None and self._is_equal(one, told, pod)), None)
            if other is not None and self._planning.engine.exchange(one.pod, other.metadata.uid):
                spare.remove(other)
                self._leaving.pop(one.pod, None)
                self._planning.replan()
                one = msgspec.structs.replace(one, pod=other.metadata.uid)
            found.append(one)
        return found

    def _is_equal(self, one: Shrink, told: SeenPod, other: SeenPod) -> bool:
        same_set = _pod_set(told) == _pod_set(other)
        return same_set and (not one.node or one.node == self._node_of(one.uid, other.metadata.uid))

    def _node_of(self, gang: str, uid: str) -> str:
        return next((pod.fact.node for pod in self._planning.pods(gang) if pod.fact.uid == uid), "")

    def _pod(self, uid: str, workload: Workload | None) -> SeenPod | None:
        found = self._context.caches.pods_of(workload) if workload is not None else []
        return next((pod for pod in found if pod.metadata.uid == uid), None)

    async def _mark(self, pod: SeenPod, annotations: Json) -> bool:
        metadata = pod.metadata
        change = {"metadata": {"uid": metadata.uid, "annotations": annotations}}

        async def write(server: Client) -> None:
            self._pods.note_write(
                await server.patch(kinds.POD, metadata.name, metadata.namespace, change, type=SeenPod)
            )

        return await self._sent(pod, write)

    async def _delete(self, pod: SeenPod) -> bool:
        metadata = pod.metadata

        async def write(server: Client) -> None:
            await server.delete(kinds.POD, metadata.name, metadata.namespace, uid=metadata.uid)

        return await self._sent(pod, write)

    async def _sent(self, pod: SeenPod, write: Callable[[Client], Awaitable[None]]) -> bool:
        try:
            await self._writer.send(write)
        except (NotFound, Conflict):
            return True  # another one has its name by now
        except KubeError as error:
            log.warning("worker %s could not be taken: %s", key_of(pod), error)
            return False
        return True

    # --- what people are told

    def _say(self, one: Shrink, workload: Workload | None, pod: str) -> None:
        job = self._job(workload)
        if job is not None:
            name = self._planning.known_as(one.preemptor)
            self._context.tell(job, "Normal", "Shrunk", f"Worker {pod} leaves: {name} needs what it takes")
        log.info("worker %s of %s leaves: %s needs what it takes", pod, one.gang, one.preemptor)

    def _growth_waits(self, pod: SeenPod, missing: tuple[Shortfall, ...]) -> None:
        job = self._job(self._workload(self._planning.cluster.gang_of(pod)))
        if job is not None:
            lacks = "; ".join(one.message for one in missing)
            text = f"Pod {pod.metadata.name} is more than was admitted and waits: {lacks}"
            self._context.tell(job, "Normal", "GrowthWaits", text)

    def _workload(self, uid: str) -> Workload | None:
        """The Workload of the gang with this UID."""
        _, _, address = self._planning.engine.key_of(uid).partition("/")
        namespace, _, name = address.partition("/")
        return self._context.caches.workloads.get(Key(namespace, name))

    def _job(self, workload: Workload | None) -> Json | None:
        if workload is None:
            return None
        found = self._context.caches.job_of(Key(workload.metadata.namespace, workload.metadata.name))
        return found[1] if found is not None else None


def _pod_set(pod: SeenPod) -> str:
    return (pod.metadata.labels or {}).get(kueue_names.POD_SET, "")
