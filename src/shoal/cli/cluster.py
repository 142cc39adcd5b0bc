"""One machine's cluster, put together: API server, controllers, scheduler, node agent, autoscaler in one process.

The composition root of `shoal up`; nothing below knows all of these at once. A part that fails is started again and the
others go on; stopping ends every pod's processes before the API server closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.api.crds import load_crds
from shoal.api.kinds import CRD, NODE, POD
from shoal.api.meta import Json
from shoal.cli import choices
from shoal.cli.hosting import make_agent
from shoal.cli.local_admission import (
    judges,
    preparers,
    ray_settings,
    status_judges,
    updaters,
    with_environments,
    with_sandbox,
)
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import AlreadyExists, KubeError, NotFound
from shoal.kube.transport import Request, Response
from shoal.kube.writes import Writes, contains
from shoal.local import machine
from shoal.local.apiserver import Server
from shoal.local.apiserver.requests.route import Route
from shoal.local.apiserver.server import PortsElsewhere
from shoal.local.gateway_kinds import gateway_crds
from shoal.local.home import DEFAULT_NODE, Home
from shoal.local.images import ImageTable
from shoal.local.load import BASE_LOAD, base_load_pods
from shoal.local.nodes.agent import Agent, NodeKeeper, NodeShape
from shoal.local.nodes.agent.nodes import MANAGED, POOL
from shoal.local.nodes.agent.streams import PodStreams
from shoal.local.nodes.runtime.limits import find_limits
from shoal.local.nodes.sandbox import Sandbox, outside
from shoal.local.nodes.sandbox.choose import choose_sandbox
from shoal.local.nodes.sandbox.ownspace import OwnSpace
from shoal.local.scheduler import Scheduler
from shoal.local.settings import LocalSettings

if TYPE_CHECKING:
    from shoal.cli.local_visibility import LocalVisibility
    from shoal.controllers.appwrapper import AppWrapperSettings
    from shoal.controllers.multicluster import ClusterSettings, HubPlaces
    from shoal.controllers.planning.history.store import HistoryStore
    from shoal.controllers.queues import QueueSettings
    from shoal.controllers.ray import RaySettings
    from shoal.web import PageServer

log = logging.getLogger(__name__)

RESTART_PAUSE = 1.0
TROUBLE_SHOWN = 60.0
Part = Callable[[], Awaitable[None]]


class LocalCluster:
    """`start` until ready, `run` until told to stop, `stop` leaves nothing running."""

    def __init__(
        self,
        home: Home,
        settings: LocalSettings,
        space: OwnSpace | None = None,
        audit_log: Path | None = None,
        page_port: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`page_port`: where the page is served, 0 for a free port; None: nowhere."""
        self.home = home
        self._space = space
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.server = Server(home.api, durability=settings.durability, audit_log=audit_log, clock=self.clock)
        self.port = 0
        self.page: PageServer | None = None
        self._page_port = page_port
        self._troubles: dict[str, tuple[str, float]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, port: int = 0) -> None:
        """Back when kubectl works, nodes are there and pods would be bound and run."""
        declared_before = set(self.home.remembered_nodes())
        await self.server.start()
        self.port = await self._serve(port)
        self.client = Client(self.server.transport(), manager="shoal")
        self.home.remember(port=self.port)
        self.server.write_kubeconfig(self.home.kubeconfig, context=self.home.context)
        await self._install_kinds()
        of_ray = ray_settings(self.settings)
        gangs, clusters = wrapper_settings(self.settings), hub_settings(self.settings)
        queues = queue_settings(self.settings)
        choices.use_job_kinds(queues)
        choices.use_frameworks(queues)
        self.server.admission.judges.update(
            judges(
                self.client,
                of_ray,
                queues,
                as_creator=gangs.create_as_creator,
                supply=gangs.supply,
                unserved=clusters.unserved_kinds,
            )
        )
        self.server.admission.status_judges.update(status_judges())
        self.server.admission.preparers.update(preparers(self.client, queues, of_ray))
        self.server.admission.updaters.update(updaters(of_ray))
        self.sandbox = choose_sandbox(
            self.settings.sandbox,
            self.home.identity,
            ("127.0.0.1", self.port),
            self.home.runtime / "pods",
            self._space.outward if self._space is not None else None,
        )
        self.keeper = NodeKeeper(self.client, self.home.name, self.sandbox.host_ip(), self.clock)
        if of_ray.admission != "off":
            known = self.server.admission.judges
            if not self.sandbox.isolates:
                known.update(with_sandbox(known, self.sandbox.roots, self._runs_all_pods))
            known.update(with_environments(known, ImageTable(self.settings.images), self._runs_all_pods))
        self.agent = self._make_agent(self.sandbox)
        self.scheduler = Scheduler(self.client, clock=self.clock)
        await self.keeper.register(self._nodes())
        await self._remove_nodes(declared_before)
        streams = PodStreams(self.agent, self.clock)
        self.server.set_log_source(streams.log)
        self.server.set_exec(streams.start)
        self.server.set_attach(streams.attach)
        self.server.set_port_forward(streams.connect)
        self._begin("agent", self.agent.run)
        self._begin("scheduler", self.scheduler.run)
        authority = self.server.identity.ca.certificate.decode()
        from shoal.cli.local_visibility import LocalVisibility
        from shoal.controllers.multicluster import HubPlaces
        from shoal.controllers.planning.history.store import HistoryStore
        from shoal.controllers.queues.visibility import GROUP as VISIBILITY_GROUP

        history = HistoryStore(f"sqlite:///{self.home.history}")
        visible = LocalVisibility()
        self.server.own_groups[VISIBILITY_GROUP] = visible.answer
        places = HubPlaces(clusters, self.clock)
        self.server.other_clusters = partial(read_member, places)
        parts = controllers(self.client, self.settings, self.home.name, authority, history, visible, self.clock, places)
        for name, part in parts.items():
            self._begin(name, part)
        await self.agent.ready.wait()
        await self.scheduler.ready.wait()
        await self._place_base_load()
        if self._page_port is not None:
            from shoal.cli.page import serve_locally

            listener = self._space.page if self._space is not None else None
            self.page = await serve_locally(self.server, streams.connect, self._page_port, listener)

    async def stop(self, grace: float) -> None:
        """End every process of every pod, then everything else. State stays."""
        if self.page is not None:
            await self.page.stop()
        if hasattr(self, "agent"):
            await self.agent.stop_pods(grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if hasattr(self, "sandbox"):
            await self.sandbox.stop()
            find_limits(self.home.identity).release()
        await self.server.stop()

    def counts(self) -> dict[str, int]:
        """For the status line."""
        pods = self.agent.pods.list()
        phases = [(pod.get("status") or {}).get("phase") for pod in pods]
        return {
            "nodes": len(self.keeper.shapes),
            "pods": len(pods),
            "running": phases.count("Running"),
            "pending": phases.count("Pending") + phases.count(None),
        }

    def troubles(self) -> list[str]:
        """Parts that failed and began again within the last minute."""
        now = self.clock.monotonic()
        return [f"{name}: {why}" for name, (why, when) in self._troubles.items() if now - when < TROUBLE_SHOWN]

    # --- parts

    def _begin(self, name: str, part: Part) -> None:
        self._tasks.append(asyncio.create_task(self._for_ever(name, part), name=name))

    async def _for_ever(self, name: str, part: Part) -> None:
        """This loop owns one part: whatever ends it, it begins again, and the status line says so."""
        while True:
            try:
                await part()
                return
            except Exception as error:
                self._troubles[name] = (str(error) or type(error).__name__, self.clock.monotonic())
                log.error("%s failed and starts again", name, exc_info=error)
            await self.clock.sleep(RESTART_PAUSE)

    async def _serve(self, port: int) -> int:
        if self._space is not None:  # for the machine, and for this process's own network
            found = await self.server.serve(listener=self._space.listener)
            return await self.server.serve(port=found)
        wanted = port or self.home.last_port()
        try:
            return await self.server.serve(port=wanted)
        except OSError as error:
            if port:
                raise ShoalError(f"port {port} cannot be used: {error.strerror}; choose another with --port") from error
            return await self.server.serve(port=0)

    def _make_agent(self, sandbox: Sandbox) -> Agent:
        certificate = self.server.identity.ca.certificate.decode()
        images, api = ImageTable(self.settings.images), ("127.0.0.1", self.port)
        return make_agent(
            self.client, self.home, self.keeper, sandbox, api, certificate, images, self.clock, binds_claims=True
        )

    def _runs_all_pods(self) -> bool:
        """Whether every pod is a process of this machine; on a simulated node anything can run."""
        runtimes = {shape.runtime for shape in self.keeper.shapes.values()}
        return runtimes | {pool.runtime for pool in self.settings.pools} <= {"process"}

    def _nodes(self) -> list[NodeShape]:
        """As declared, without those that were removed by hand since."""
        nodes = list(self.settings.nodes)
        if not nodes and not self.settings.pools:
            runtime, labels = self.settings.runtime, machine.gpu_labels()
            nodes = [NodeShape(name=DEFAULT_NODE, capacity=machine.capacity(), labels=labels, runtime=runtime)]
        return [one for one in nodes if one.name not in self.settings.removed]

    async def _remove_nodes(self, declared: set[str]) -> None:
        """Nodes and pools that an earlier start declared and this one does not, and their pods; added ones stay."""
        pools = {pool.name for pool in self.settings.pools}
        pooled = await self.client.list(NODE, label_selector=f"{POOL},{MANAGED}={self.home.name}")
        orphans = {node["metadata"]["name"] for node in pooled if node["metadata"]["labels"][POOL] not in pools}
        for name in (declared | orphans) - set(self.keeper.shapes):
            await self.keeper.remove(name)
            for pod in await self.client.list(POD, field_selector=f"spec.nodeName={name}"):
                metadata = pod["metadata"]
                with contextlib.suppress(NotFound):
                    await self.client.delete(POD, metadata["name"], metadata["namespace"], grace_seconds=0)

    async def _install_kinds(self) -> None:
        """Our CRDs, as they are in this release, and those of others that are served here unless they are there."""

        async def one(definition: Json) -> None:
            try:
                await self.client.create(CRD, definition)
            except AlreadyExists:
                name = definition["metadata"]["name"]
                found = await self.client.get(CRD, name)
                if not contains(found["spec"], definition["spec"]):
                    await self.client.patch(CRD, name, None, {"spec": definition["spec"]})

        async def missing(definition: Json) -> None:
            with contextlib.suppress(AlreadyExists):
                await self.client.create(CRD, definition)

        await asyncio.gather(*map(one, load_crds()), *map(missing, gateway_crds()))

    async def _place_base_load(self) -> None:
        """The pods of the base load as they are declared now, and none of an earlier start."""
        nodes = sorted(self.keeper.shapes)
        wanted = {pod["metadata"]["name"]: pod for pod in base_load_pods(self.settings.base_load, nodes[:1])}
        try:
            for found in await self.client.list(POD, "kube-system", label_selector=f"{BASE_LOAD}=true"):
                name = found["metadata"]["name"]
                if name in wanted and contains(found["spec"], wanted[name]["spec"]) and not is_over(found):
                    del wanted[name]
                else:
                    await self.client.delete(POD, name, "kube-system", grace_seconds=0)
            for pod in wanted.values():
                await self.client.create(POD, pod, "kube-system")
        except KubeError as error:
            raise ShoalError(f"the base load cannot be placed: {error}") from error


def is_over(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def controllers(
    client: Client,
    settings: LocalSettings,
    cluster: str,
    root_ca: str,
    history: HistoryStore | None = None,
    visible: LocalVisibility | None = None,
    clock: Clock | None = None,
    places: HubPlaces | None = None,
) -> dict[str, Part]:
    """What runs beside the API server, by name."""
    from msgspec import structs

    from shoal.controllers import ray
    from shoal.controllers.multicluster import HubLeases, HubPlaces
    from shoal.local import autoscaler, builtin

    writes, of_ray, hub = Writes(client, clock=clock), ray_settings(settings), hub_settings(settings)
    places = places or HubPlaces(hub, clock)
    gangs = structs.replace(wrapper_settings(settings), ray_sidecars=of_ray.sidecars)
    queues = structs.replace(queue_settings(settings), ray_sidecars=of_ray.sidecars)
    return {
        "builtin": lambda: builtin.run_all(client, clock, root_ca=root_ca),
        "ray": lambda: ray.run(client, of_ray, clock, writes),
        "gangs": lambda: run_gangs(writes, gangs, queues, of_ray, history, visible, places),
        "autoscaler": lambda: autoscaler.run(client, settings, cluster, clock),
        "clusters": lambda: run_clusters(writes, hub, places),
        "hub leases": lambda: HubLeases(client, clock=clock, writes=writes).run(),
    }


def queue_settings(settings: LocalSettings) -> QueueSettings:
    return choices.queue_settings({"device_tolerations": True}, settings.gangs)


async def run_gangs(
    writes: Writes,
    settings: AppWrapperSettings,
    queues: QueueSettings,
    of_ray: RaySettings,
    history: HistoryStore | None = None,
    visible: LocalVisibility | None = None,
    places: HubPlaces | None = None,
) -> None:
    """AppWrappers, queued jobs and Ray objects without a queue, in one loop: they compete for the same room."""
    from msgspec import structs

    from shoal.controllers.appwrapper import AppWrapperController
    from shoal.controllers.planning import PlanningLoop
    from shoal.controllers.planning.history.notices import from_environment
    from shoal.controllers.queues import QueueController
    from shoal.controllers.ray.job import HttpDashboard
    from shoal.controllers.ray.nodes import DashboardNodes
    from shoal.controllers.ray_gangs import RayGangController

    planned = structs.replace(settings.planning, queues=queues.decisions)
    planning = PlanningLoop(
        writes.client, planned, writes.clock, writes, history=history, notices=from_environment(os.environ)
    )
    if places is not None:
        places.placing.keeper_for = planning.keeper_for
    AppWrapperController(planning, settings, places.for_wrappers if places is not None else None)
    if of_ray.gang == "on":
        RayGangController(planning, of_ray.sidecars, of_ray.namespaces)
    elsewhere = places.for_queues if places is not None else None
    queued = QueueController(planning, queues, DashboardNodes(writes.client, of_ray, HttpDashboard()), elsewhere)
    if visible is not None:
        from shoal.controllers.queues.visibility import PendingWorkloads

        visible.follow(PendingWorkloads(queued.caches, planning.engine))
    await planning.run()


async def run_clusters(writes: Writes, settings: ClusterSettings, places: HubPlaces) -> None:
    """Gives gangs to other clusters, once one is named; until then it watches for that alone."""
    from shoal.controllers.multicluster import ClusterController

    await ClusterController(writes.client, settings, writes=writes, places=places, clock=writes.clock).run()


async def read_member(
    places: HubPlaces, cluster: str, request: Request, route: Route | None
) -> Response | AsyncIterator[bytes] | PortsElsewhere:
    """What gangs of this cluster have in another one, for users that the API server let through."""
    from shoal.controllers.multicluster.reading import MemberObject, MemberReading, refusal

    members = places.placing.members
    if members is None:
        return refusal(404, "NotFound", f"there is no other cluster {cluster}")
    wanted = None
    if route is not None:
        wanted = MemberObject(route.group, route.plural, route.namespace, route.name, route.subresource)
    return await MemberReading(members).read(cluster, request, wanted)


def hub_settings(settings: LocalSettings) -> ClusterSettings:
    """What was chosen about several clusters."""
    return choices.cluster_settings({"trust_unstamped": wrapper_settings(settings).trust_unstamped}, settings.gangs)


def wrapper_settings(settings: LocalSettings) -> AppWrapperSettings:
    """What was chosen about AppWrappers."""
    chosen = {
        "supply": settings.supply,
        "policy": settings.policy,
        "preemption": settings.preemption,
        "obtain": True,
        "device_tolerations": True,
    }
    return choices.wrapper_settings(chosen, settings.gangs)


def spare_descriptors() -> None:
    """Raise the soft limit of open files: sockets and pidfds of many pods."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def quiet_environment() -> None:
    """A proxy meant for the outside world must not stand between us and our pods; pods may still go out through it."""
    if proxy := os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY"):
        os.environ[outside.KEPT] = proxy
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        os.environ.pop(name, None)
