"""The hub of several clusters, put together: watch → record → other clusters → status back.

Costs one watch until the first MultiKueueCluster exists. Beside the queue controller, which reserves quota and admits,
it answers the admission checks whose `controllerName` is MultiKueue's; the two meet only in stored objects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from random import Random

from shoal.api import kinds
from shoal.api.kind import Key, Kind
from shoal.api.meta import Json
from shoal.api.objects import annotation, key_of
from shoal.controllers.multicluster import words
from shoal.controllers.multicluster.abandoned import abandoned
from shoal.controllers.multicluster.credentials import connect as connect_by_kubeconfig
from shoal.controllers.multicluster.dispatcher import Dispatcher
from shoal.controllers.multicluster.hub import Hub, secret_name
from shoal.controllers.multicluster.members import IDENTITY, Connect, Members
from shoal.controllers.multicluster.places import HubPlaces
from shoal.controllers.multicluster.pulse import SYSTEM
from shoal.controllers.multicluster.record import record_of
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.controllers.queues.checks.draft import Draft
from shoal.kube.backoff import Backoff
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import KubeError, NotFound
from shoal.kube.events import Recorder
from shoal.kube.lease import FencedTransport
from shoal.kube.runtime import Controller
from shoal.kube.transport import Transport
from shoal.kube.writes import Writes

log = logging.getLogger(__name__)
LONGEST_ORIGIN = 63
ROOM_PAUSE, ROOM_PAUSE_EACH = 0.02, 0.002
"""Seconds between a change of room in other clusters and the look at gangs that wait for it: at least, and for each."""


class ClusterController:
    def __init__(
        self,
        client: Client,
        settings: ClusterSettings | None = None,
        clock: Clock | None = None,
        connect: Connect = connect_by_kubeconfig,
        writes: Writes | None = None,
        places: HubPlaces | None = None,
    ) -> None:
        """`places`: what the AppWrapper controller and the queue controller ask about other clusters."""
        self.settings = settings or ClusterSettings()
        self.clock: Clock = clock or SystemClock()
        self._client = client
        self._recorder = Recorder(client, "shoal", clock=self.clock)
        self._writer = (writes or Writes(client, clock=self.clock)).writer("clusters")
        self.clusters: Cache[Json] = Cache(
            client, kinds.MULTIKUEUE_CLUSTER, dict, clock=self.clock, indexes={IDENTITY: _identity}
        )
        self.hub = Hub(client, self.settings, self.clock)
        places = places or HubPlaces(self.settings, self.clock)
        self._placing = places.placing
        self.members = Members(
            self.hub,
            self.clusters,
            self._writer,
            self.settings,
            self.clock,
            _fenced_like(client, connect),
            heard=lambda key: self.queue.enqueue(key),
            concerned=lambda key: self.queue.set_aside(key),
            changed=lambda name: self.keeping.enqueue(name),
            placing=places.placing,
            places=places.wrappers,
        )
        self._room_changed = asyncio.Event()
        places.placing.attach(self.hub, self.members, lambda cluster: self._room_changed.set())
        self._dispatcher = Dispatcher(
            self.hub,
            self.members,
            places.queued,
            self._writer,
            self._recorder,
            self.settings,
            self.clock,
        )
        self.queue: Controller[Key] = Controller(
            "clusters", self._dispatcher.reconcile, workers=16, clock=self.clock, returns_aside=True
        )
        self.keeping: Controller[str] = Controller("members", self.members.reconcile, workers=4, clock=self.clock)
        self.leaving: Controller[tuple[Kind, Key]] = Controller(
            "cluster-jobs", lambda address: self._let_go(*address), workers=4, clock=self.clock
        )
        self.checks: Controller[Key] = Controller("cluster-checks", self._publish_check, workers=2, clock=self.clock)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.clusters.run())
                await self._configured()
                await self._learn_who_we_are()
                tasks.create_task(self.hub.run())
                await self.clusters.synced.wait()
                await self.hub.synced()
                self._subscribe()
                for loop in (self.queue, self.keeping, self.checks, self.leaving):
                    tasks.create_task(loop.run())
                tasks.create_task(self._offer_again())
        finally:
            self.members.stop()
            await self._recorder.close()

    async def _configured(self) -> None:
        """Until there is another cluster at all."""
        found = asyncio.Event()
        end = self.clusters.subscribe(lambda change: found.set())
        await found.wait()
        end()

    async def _learn_who_we_are(self) -> None:
        backoff = Backoff(Random(), cap=8.0)
        while True:
            try:
                system = await self._client.get(kinds.NAMESPACE, SYSTEM)
                break
            except KubeError as error:
                log.warning("several clusters wait: the UID of this cluster cannot be read: %s", error)
                await self.clock.sleep(backoff.after(error))
        self.members.hub_identity = str(system["metadata"]["uid"])
        self.members.origin = (self.settings.origin or f"shoal-{self.members.hub_identity}")[:LONGEST_ORIGIN]

    # --- changes

    def _subscribe(self) -> None:
        self.clusters.subscribe(self._cluster_changed)
        self.hub.secrets.subscribe(self._secret_changed)
        self.hub.checks.subscribe(lambda change: self._checks_changed([change.key]))
        self.hub.configs.subscribe(self._config_changed)
        for kind, cache in self.hub.jobs.items():
            cache.subscribe(partial(self._job_changed, kind))
        self.hub.workloads.subscribe(self._workload_changed)

    def _workload_changed(self, change: Change) -> None:
        self.queue.enqueue(change.key)
        for one in filter(None, (change.old, change.new)):
            for name in record_of(one).on:
                member = self.members.get(name)
                if member is not None:
                    member.queue.enqueue(change.key)

    def _job_changed(self, kind: Kind, change: Change) -> None:
        job: Json = change.new or change.old
        if change.new is not None and abandoned(kind, job):
            self.leaving.enqueue((kind, change.key))
        workload = self.hub.workload_of(str(job["metadata"]["uid"]))
        if workload is not None:
            self.queue.enqueue(key_of(workload))

    def _cluster_changed(self, change: Change) -> None:
        self.keeping.enqueue(change.key.name)
        if change.old is not None and change.new is not None and _for_gangs(change.old) == _for_gangs(change.new):
            return
        self._placing.room_changed(change.key.name)
        self._checks_changed(map(key_of, self.hub.checks.list()))
        if change.old is not None and change.new is not None and _orders(change.old) != _orders(change.new):
            self.members.tell(change.key.name)
        if change.old is not None and change.new is not None and _active(change.old) != _active(change.new):
            for cluster in self.clusters.list():  # one that is lost or back moves the clocks of all
                for workload in self.hub.workloads.by_index("on", cluster["metadata"]["name"]):
                    self.queue.set_aside(key_of(workload))

    def _config_changed(self, change: Change) -> None:
        self._checks_changed(map(key_of, self.hub.checks.list()))
        self._placing.room_changed()

    def _secret_changed(self, change: Change) -> None:
        for cluster in self.clusters.list():
            if secret_name(cluster) == change.key.name:
                self.keeping.enqueue(cluster["metadata"]["name"])

    def _checks_changed(self, checks: Iterable[Key]) -> None:
        for check in checks:
            self.checks.enqueue(check)
            for workload in self.hub.workloads.by_index("check", check.name):
                self.queue.set_aside(key_of(workload))

    async def _offer_again(self) -> None:
        """Gangs whose quota another program gave keep it while no cluster would start them, and wait here for room."""
        while True:
            await self._room_changed.wait()
            await self.clock.sleep(ROOM_PAUSE + ROOM_PAUSE_EACH * len(self._dispatcher.nowhere))
            self._room_changed.clear()
            for key in self._dispatcher.nowhere:
                self.queue.set_aside(key)

    # --- jobs that are deleted

    async def _let_go(self, kind: Kind, key: Key) -> None:
        """Its own controller does not look at it any more; its Workload stays until nothing of it is anywhere."""
        job = self.hub.jobs[kind].get(key)
        left_behind = abandoned(kind, job) if job is not None else []
        if job is None or not left_behind:
            return
        kept = [one for one in job["metadata"]["finalizers"] if one not in left_behind]
        try:
            await self._writer.patch(kind, job, {"metadata": {"finalizers": kept or None}})
        except NotFound:
            return

    # --- what our checks show of themselves

    async def _publish_check(self, key: Key) -> None:
        check = self.hub.checks.get(key)
        if check is None or not self.hub.is_ours(key.name):
            return
        draft = Draft(check, self.clock.now())
        names = self.hub.clusters_of(key.name)
        if names is None:
            said = "spec.parameters must name a MultiKueueConfig of kueue.x-k8s.io that exists"
            draft.put("Active", False, "BadConfig", said)
        else:
            silent = [name for name in names if not _active(self.clusters.get(Key("", name)))]
            if not silent:
                draft.put("Active", True, "Active", "The admission check is active")
            elif len(silent) < len(names):
                draft.put("Active", True, "SomeActiveClusters", f"Inactive clusters: {', '.join(silent)}")
            else:
                draft.put("Active", False, "NoUsableClusters", f"Inactive clusters: {', '.join(silent)}")
        if draft.change:
            try:
                made = await self._writer.patch(
                    kinds.ADMISSION_CHECK, check, {"status": draft.change}, subresource="status"
                )
            except NotFound:
                return
            self.hub.checks.note_write(made)


def _identity(cluster: Json) -> tuple[str, ...]:
    return (annotation(cluster, words.IDENTITY),)


def _active(cluster: Json | None) -> bool:
    return cluster is not None and Draft(cluster, 0).is_true("Active")


def _for_gangs(cluster: Json) -> Json:
    """Without what the hub notes there for itself."""
    metadata = cluster["metadata"]
    notes = (words.REMOVALS, words.KINDS)
    said = {name: text for name, text in (metadata.get("annotations") or {}).items() if name not in notes}
    shown = {name: value for name, value in metadata.items() if name not in ("resourceVersion", "managedFields")}
    return {**cluster, "metadata": {**shown, "annotations": said}}


def _orders(cluster: Json) -> tuple[str, ...]:
    """What an administrator says of the gangs that are there."""
    return (
        annotation(cluster, words.FORGOTTEN),
        annotation(cluster, words.DRAINING),
        annotation(cluster, words.CORDONED),
    )


def _fenced_like(client: Client, connect: Connect) -> Connect:
    """Writes to other clusters end with the same term as those to our own."""
    ours = client.transport

    def connect_fenced(content: bytes, source: str) -> Transport:
        transport = connect(content, source)
        return FencedTransport(transport, ours.term) if isinstance(ours, FencedTransport) else transport

    return connect_fenced
