"""Workers of elastic jobs beyond what these were admitted with: let in when a plan says so, taken when it says so.

The pods themselves are the record: one without the gate is granted and charged, so that a restart finds what it needs.
Ray's autoscaler, or a user, says how many workers a cluster wants; nobody rewrites that here. A worker that is taken
comes back as a new pod behind the gate, as a bid.
"""

from __future__ import annotations

import asyncio
import logging

from shoal.api import kinds, kueue_names
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.controllers.planning import PlanningLoop
from shoal.controllers.planning.growth import RETRY_PAUSE, Growth
from shoal.controllers.planning.pods import SeenPod, key_of
from shoal.controllers.queues.context import QueueContext
from shoal.engine.model import Plan, Shortfall, Shrink
from shoal.kube.cache import Change
from shoal.kube.client import Client
from shoal.kube.errors import Conflict, KubeError, NotFound
from shoal.kube.writes import Writer

log = logging.getLogger(__name__)


class ElasticWorkers:
    def __init__(self, context: QueueContext, planning: PlanningLoop, writer: Writer) -> None:
        self._context = context
        self._planning = planning
        self._writer = writer
        self._pods = planning.caches.pods
        self._growth = Growth(writer, self._pods, kueue_names.ELASTIC, self._growth_waits)
        self._leaving: dict[str, Shrink] = {}
        """By UID of the pod: decided, and the pod is not known to be on its way out."""
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
        if self._leaving:
            self._due.set()

    def _pod_changed(self, change: Change) -> None:
        pod: SeenPod = change.new or change.old
        if change.new is None or pod.metadata.deletion_timestamp:
            self._leaving.pop(pod.metadata.uid, None)

    async def _shrink(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            if not await self._take_all():
                await self._context.clock.sleep(RETRY_PAUSE)
                self._due.set()

    async def _take_all(self) -> bool:
        """Take what was decided; False when one is to be tried again."""
        done = True
        for uid, one in list(self._leaving.items()):
            pod = next((pod.fact for pod in self._planning.pods(one.uid) if pod.fact.uid == uid), None)
            if pod is None or pod.deleting:
                self._leaving.pop(uid, None)
            elif await self._delete(pod.name, pod.namespace, uid):
                self._leaving.pop(uid, None)
                self._say(one, pod.name)
            else:
                done = False
        return done

    async def _delete(self, name: str, namespace: str, uid: str) -> bool:
        async def write(server: Client) -> Json:
            return await server.delete(kinds.POD, name, namespace, uid=uid)

        try:
            await self._writer.send(write)
        except (NotFound, Conflict):
            return True  # another one has its name by now
        except KubeError as error:
            log.warning("worker %s/%s could not be taken: %s", namespace, name, error)
            return False
        return True

    # --- what people are told

    def _say(self, one: Shrink, pod: str) -> None:
        job = self._job(one.uid)
        if job is not None:
            name = self._planning.known_as(one.preemptor)
            self._context.tell(job, "Normal", "Shrunk", f"Worker {pod} leaves: {name} needs what it takes")
        log.info("worker %s of %s leaves: %s needs what it takes", pod, one.gang, one.preemptor)

    def _growth_waits(self, pod: SeenPod, missing: tuple[Shortfall, ...]) -> None:
        job = self._job(self._planning.cluster.gang_of(pod))
        if job is not None:
            lacks = "; ".join(one.message for one in missing)
            text = f"Pod {pod.metadata.name} is more than was admitted and waits: {lacks}"
            self._context.tell(job, "Normal", "GrowthWaits", text)
        log.debug("pod %s waits: %s", key_of(pod), missing)

    def _job(self, uid: str) -> Json | None:
        """The job of the gang with this UID."""
        _, _, address = self._planning.engine.key_of(uid).partition("/")
        namespace, _, name = address.partition("/")
        found = self._context.caches.job_of(Key(namespace, name))
        return found[1] if found is not None else None
