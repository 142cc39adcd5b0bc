"""Several clusters on one virtual clock, and the weather between them: two replicas of a hub, three members.

Wires to members are cut, swallow packets, lose answers, and deliver writes long after their senders gave up; replicas
and members' controllers die; members' clocks are an hour apart. Users submit and delete AppWrappers. Every revision in
every member goes into one merged history, in which a gang may run in one place at a time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Any, Literal

import msgspec

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperController, AppWrapperSettings
from shoal.controllers.multicluster import ClusterController, ClusterSettings, HubLeases, HubPlaces
from shoal.controllers.planning import PlanningLoop
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.kube.errors import Unknown, Unsent
from shoal.kube.lease import Leadership, LeaseSettings, Term
from shoal.kube.transport import Request, Response, Stream, Transport
from tests.chaos.town import Town
from tests.cluster import rendered_crds
from tests.embedded import Embedded
from tests.faulty import FaultyTransport, Rates
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, pod
from tests.unit.clusters.build import SYSTEM, config, member_cluster, secret

MEMBERS = ("a", "b", "c")
CPU = 4
WRAPPER = AppWrapperSettings(trust_unstamped=True, events=False)
SETTINGS = ClusterSettings(
    app_wrappers="everywhere",
    app_wrapper_namespaces="any",
    probe_seconds=1.0,
    silent_seconds=3.0,
    request_seconds=2.0,
    refused_seconds=4.0,
    admit_seconds=8.0,
    lost_seconds=12.0,
)
MOVING = msgspec.structs.replace(SETTINGS, app_wrapper_loss="move", lease_seconds=6.0, fence_seconds=14.0)
"""What a silent member has stops there by itself and then starts elsewhere; pods take up to 8 seconds to end."""
LEASE = LeaseSettings(duration=4.0)
HOUR = 3600.0
NETWORK = Rates(unsent=0.02, conflict=0.02, server_error=0.02, lost_answer=0.02, lost_request=0.02, cut=0.02, gone=0.02)
LATE = {"POST": 0.3, "PATCH": 0.1, "DELETE": 0.1}
"""Share of writes to a member that arrive long after their sender gave up."""
LONGEST_DELAY = 15.0

State = Literal["fine", "cut", "swallows", "loses answers"]


class FarClock:
    """A machine whose wall clock is wrong by as much as this."""

    def __init__(self, clock: VirtualClock, wrong_by: float) -> None:
        self._clock, self._wrong_by = clock, int(wrong_by * 1_000_000)
        self.sleep, self.monotonic = clock.sleep, clock.monotonic

    def now(self) -> int:
        return self._clock.now() + self._wrong_by


class Wire:
    """The way of all replicas to one member."""

    def __init__(self, member: Embedded, clock: VirtualClock, random: Random) -> None:
        self.state: State = "fine"
        self._member, self._clock, self._random = member, clock, random
        self._broken = asyncio.Event()
        self._late: set[asyncio.Task[None]] = set()

    def become(self, state: State) -> None:
        self.state = state
        if state == "cut":
            self._broken.set()
            self._broken = asyncio.Event()

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        limit = timeout or 30.0
        if self.state == "cut":
            raise Unsent("connection refused (injected)")
        if self.state == "swallows":
            await self._clock.sleep(limit)
            raise Unknown("no answer, not done (injected)")
        if self.state == "loses answers":
            await self._member.transport().send(request)
            await self._clock.sleep(limit)
            raise Unknown("no answer, done (injected)")
        if self._random.random() < LATE.get(request.method, 0.0):
            self._post(request, limit)
            await self._clock.sleep(limit)
            raise Unknown("no answer, done later (injected)")
        return await self._member.transport().send(request)

    def _post(self, request: Request, limit: float) -> None:
        """It arrives, but not before its sender has given up."""

        async def deliver() -> None:
            await self._clock.sleep(limit + self._random.uniform(0.0, LONGEST_DELAY))
            await self._member.transport().send(request)

        task = asyncio.ensure_future(deliver())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        if self.state != "fine":
            raise Unsent("connection refused (injected)")
        async with self._member.transport().stream(request, idle_timeout=idle_timeout) as stream:
            yield _Breakable(stream, self, self._broken, self._clock, idle_timeout)

    async def close(self) -> None:
        return None


class _Breakable:
    def __init__(
        self, inner: Stream, wire: Wire, broken: asyncio.Event, clock: VirtualClock, idle: float | None
    ) -> None:
        self._inner, self._wire, self._broken, self._clock, self._idle = inner, wire, broken, clock, idle
        self.status, self.headers = inner.status, inner.headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks, broken = aiter(self._inner), asyncio.ensure_future(self._broken.wait())
        try:
            while (chunk := await self._next(chunks, broken)) is not None:
                yield chunk
        finally:
            broken.cancel()

    async def _next(self, chunks: AsyncIterator[bytes], broken: asyncio.Future[bool]) -> bytes | None:
        chunk = asyncio.ensure_future(anext(chunks, None))
        try:
            await asyncio.wait({chunk, broken}, return_when=asyncio.FIRST_COMPLETED)
            if broken.done():
                raise Unsent("the connection was cut (injected)")
            if self._wire.state != "fine":
                await self._clock.sleep(self._idle or 60.0)
                raise Unknown("idle too long (injected)")
            return chunk.result()
        finally:
            if not chunk.done():
                chunk.cancel()
                await asyncio.wait({chunk})

    async def read(self) -> bytes:
        return await self._inner.read()


class Histories:
    """The merged history of hub and members: what ran where, and what of that must not be."""

    def __init__(self, hub: Town, members: dict[str, Town]) -> None:
        self.broken: list[str] = []
        self.starts: list[tuple[int, str, str]] = []
        self._hub, self._clock = hub, hub.clock
        self._runs: dict[str, set[tuple[str, str]]] = {}
        """By name of a gang: clusters and UIDs of its pods that are not over."""
        for name, member in members.items():
            member.on_change(kinds.POD, partial(self._pod, name))

    def _pod(self, cluster: str, what: str, found: Json) -> None:
        gang = found["metadata"]["name"].partition("-")[0]
        runs, this = self._runs.setdefault(gang, set()), (cluster, found["metadata"]["uid"])
        if what == "DELETED" or found.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            runs.discard(this)
            return
        if what == "ADDED":
            self.starts.append((self._clock.now(), cluster, gang))
            stored = self._stored(gang)
            if stored not in (cluster, None):
                self.broken.append(
                    f"{self._time()}: {gang} starts in {cluster}, and the hub says {stored or 'nowhere'}"
                )
        runs.add(this)
        places = {where for where, _ in runs}
        if len(places) > 1:
            self.broken.append(f"{self._time()}: {gang} runs in {sorted(places)}")

    def _stored(self, gang: str) -> str | None:
        """None: the hub has no such gang any more."""
        found = self._hub.snapshot(kinds.APP_WRAPPER).get(("default", gang))
        return cluster_of(found) if found is not None else None

    def _time(self) -> str:
        return f"{self._clock.monotonic():.1f}"


class Weather:
    """One seed's story."""

    def __init__(self, seed: int, settings: ClusterSettings = SETTINGS) -> None:
        self.random = Random(seed)
        self.settings = settings
        self.clock = VirtualClock()
        self.hub = Town(self.clock, seed)
        self.members: dict[str, Town] = {}
        self.wires: dict[str, Wire] = {}
        self.clocks: dict[str, FarClock] = {}
        for number, name in enumerate(MEMBERS):
            wrong_by = self.random.choice((-HOUR, 0.0, HOUR))
            far = FarClock(self.clock, wrong_by)
            self.clocks[name] = far
            self.members[name] = Town(far, seed * 10 + number + 1)  # type: ignore[arg-type]
            self.wires[name] = Wire(self.members[name], self.clock, self.random)
        self.networks: dict[str, FaultyTransport] = {}
        self.replicas: dict[str, asyncio.Task[Any]] = {}
        self.number = 0

    # --- putting it together

    async def begin(self) -> None:
        for town in (self.hub, *self.members.values()):
            await Embedded.start(town, definitions=rendered_crds())
        await self.hub.ask("POST", kinds.NAMESPACE, body={"metadata": {"name": SYSTEM}})
        await self.hub.ask("POST", kinds.MULTIKUEUE_CONFIG, body=config(*MEMBERS))
        client = Client(self.hub.server.transport())
        for name, member in self.members.items():
            await member.add_node("node-1", CPU)
            await client.create(kinds.SECRET, secret(name, name), SYSTEM)
            await client.create(kinds.MULTIKUEUE_CLUSTER, member_cluster(name))
            self._start(f"member {name}", partial(self._decide, name))
        self.histories = Histories(self.hub, self.members)
        for name in ("first", "second"):
            self._start(name, partial(self._replica, name))

    def _start(self, name: str, run: Any) -> None:
        self.replicas[name] = asyncio.ensure_future(run())

    async def _decide(self, name: str) -> None:
        client, clock = Client(self.members[name].transport()), self.clocks[name]
        agent = HubLeases(client, clock=clock, random=Random(self.random.getrandbits(30)))  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(planned(client, WRAPPER, clock).run())  # type: ignore[arg-type]
            tasks.create_task(agent.run())

    async def _replica(self, name: str) -> None:
        network = FaultyTransport(self.hub.transport(), NETWORK, seed=self.random.getrandbits(30), clock=self.clock)
        self.networks[name] = network
        client = Client(network, timeout=3.0)
        leadership = Leadership(
            client, "shoal", "kube-system", name, settings=LEASE, clock=self.clock, random=Random(self.number)
        )

        async def lead(term: Term) -> None:
            fenced, places = leadership.fenced(term), HubPlaces(self.settings, self.clock)
            loop = PlanningLoop(fenced, WRAPPER.planning, self.clock)
            AppWrapperController(loop, WRAPPER, places.for_wrappers)
            clusters = ClusterController(fenced, self.settings, self.clock, connect=self._connect, places=places)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(loop.run())
                tasks.create_task(clusters.run())

        await leadership.run(lead)

    def _connect(self, content: bytes, source: str) -> Transport:
        return self.wires[content.decode()]

    # --- what happens

    async def unrest(self, seconds: int) -> None:
        for _ in range(seconds):
            if self.random.random() < 0.6:
                await self._something()
            await self.passes(1.0)

    async def _something(self) -> None:
        deeds = [
            (8, self._submit),
            (2, self._delete),
            (4, self._edit),
            (3, self._wire_changes),
            (4, self._wire_is_mended),
            (1, self._replica_dies),
            (1, self._controller_dies),
            (1, self._cordon),
            (1, self._watches_end),
        ]
        await self.random.choices([deed for _, deed in deeds], [weight for weight, _ in deeds])[0]()

    async def _submit(self) -> None:
        self.number += 1
        name = f"g{self.number:03}"
        pods = [pod(f"{name}-{at}", cpu=self.random.choice(["1", "2"])) for at in range(self.random.choice((1, 1, 2)))]
        fate = self.random.choice(["", "", "Succeeded"])
        for one in pods:
            one["metadata"]["labels"] = {"fate": fate} if fate else {}
        made = app_wrapper(name, *pods, priority=self.random.choice([0, 0, 5]))
        for item in made["spec"]["resources"]["GenericItems"] if fate else ():
            item["completionstatus"] = "Complete,Failed"
        await self.hub.ask("POST", kinds.APP_WRAPPER, body=made)

    async def _delete(self) -> None:
        names = await self.hub.names(kinds.APP_WRAPPER)
        if names:
            await self.hub.ask("DELETE", kinds.APP_WRAPPER, self.random.choice(names), {})

    async def _edit(self) -> None:
        """One that is not sent yet is called off by it."""
        every = await self.hub.objects(kinds.APP_WRAPPER)
        unsent = [one for one in every if cluster_of(one) and not one["status"].get("isdispatched")]
        for one in (unsent or every)[-1:]:
            change = {"spec": {"priority": self.random.choice((0, 3, 7))}}
            await self.hub.ask("PATCH", kinds.APP_WRAPPER, one["metadata"]["name"], change)

    async def _wire_changes(self) -> None:
        states: list[State] = ["cut", "swallows", "loses answers"]
        self.wires[self.random.choice(MEMBERS)].become(self.random.choice(states))

    async def _wire_is_mended(self) -> None:
        self.wires[self.random.choice(MEMBERS)].become("fine")

    async def _replica_dies(self) -> None:
        name = self.random.choice(("first", "second"))
        if name in self.networks:
            self.networks[name].rates = Rates(unsent=1.0)
        await self._end(name)
        self._start(name, partial(self._replica, name))

    async def _controller_dies(self) -> None:
        name = self.random.choice(MEMBERS)
        await self._end(f"member {name}")
        self._start(f"member {name}", partial(self._decide, name))

    async def _end(self, name: str) -> None:
        task = self.replicas.pop(name)
        task.cancel()
        while not task.done():
            await self.clock.advance(0.5)
        with suppress(asyncio.CancelledError):
            task.result()

    async def _cordon(self) -> None:
        since = self.random.choice(("2026-01-01T00:00:00Z", None, None))
        change = {"metadata": {"annotations": {"shoal.dev/cordoned": since}}}
        await self.hub.ask("PATCH", kinds.MULTIKUEUE_CLUSTER, self.random.choice(MEMBERS), change)

    async def _watches_end(self) -> None:
        town = self.random.choice((self.hub, *self.members.values()))
        town.compact()
        town.cut_watches()

    async def passes(self, seconds: float) -> None:
        for town in self.members.values():
            await collect(town)
            await town.tick()
        await self.clock.advance(seconds)

    # --- and comes to rest

    async def calm(self, most: int = 300, quiet: int = 45) -> None:
        """Everything is mended; until nothing is written for a while."""
        for wire in self.wires.values():
            wire.become("fine")
        for name in MEMBERS:
            change = {"metadata": {"annotations": {"shoal.dev/cordoned": None}}}
            await self.hub.ask("PATCH", kinds.MULTIKUEUE_CLUSTER, name, change)
        for network in self.networks.values():
            network.calm()
        still, before = 0, -1
        for _ in range(most // 3):
            await self.passes(3.0)
            now = sum(len(town.server.storage.collection(kinds.APP_WRAPPER.resource).events) for town in self._towns)
            still, before = still + 3 if now == before else 0, now
            if still >= quiet:
                return

    @property
    def _towns(self) -> list[Town]:
        return [self.hub, *self.members.values()]

    def differences(self) -> list[str]:
        """What is not as it must be in the calm: every gang whole in the place that the hub names, else nowhere."""
        found = [*self.histories.broken]
        gangs = {one["metadata"]["name"]: one for one in self.hub.snapshot(kinds.APP_WRAPPER).values()}
        copies = {name: member.snapshot(kinds.APP_WRAPPER) for name, member in self.members.items()}
        for name, gang in gangs.items():
            places = [at for at, known in copies.items() if ("default", name) in known]
            state = (gang.get("status") or {}).get("state")
            if state in ("Failed", "Deleted", "Completed"):
                continue
            home = cluster_of(gang)
            if places != ([home] if home else []):
                found.append(f"{name}: the hub says {home or 'nowhere'}, it is in {places}")
            elif home and state != "Running":
                found.append(f"{name} is in {home} and does not run: {gang['status']}")
            elif not home and not self._message(gang):
                found.append(f"{name} waits without a reason")
        for at, known in copies.items():
            found += [f"{name} is left in {at}" for _, name in known if name not in gangs]
            pods = {one["metadata"]["name"].partition("-")[0] for one in self.members[at].snapshot(kinds.POD).values()}
            found += [f"pods of {name} are left in {at}" for name in pods if ("default", name) not in known]
        for cluster in self.hub.snapshot(kinds.MULTIKUEUE_CLUSTER).values():
            if owed := (cluster["metadata"].get("annotations") or {}).get("shoal.dev/removals"):
                found.append(f"removals are still owed in {cluster['metadata']['name']}: {owed}")
        return found

    @staticmethod
    def _message(gang: Json) -> str:
        return str((gang.get("status") or {}).get("message") or (gang.get("status") or {}).get("explanation") or "")

    async def end(self) -> None:
        for network in self.networks.values():
            network.rates = Rates(unsent=1.0)
        for name in [*self.replicas]:
            await self._end(name)
        for town in self._towns:
            await town.stop()


async def collect(town: Town) -> None:
    """As the garbage collector: what is deleted in the foreground goes after all that it owns."""
    for copy in await town.objects(kinds.APP_WRAPPER):
        metadata = copy["metadata"]
        if "foregroundDeletion" not in (metadata.get("finalizers") or ()):
            continue
        owned = [one for one in await town.objects(kinds.POD) if _owner(one) == metadata["uid"]]
        for one in owned:
            if not one["metadata"].get("deletionTimestamp"):
                await town.ask("DELETE", kinds.POD, one["metadata"]["name"], {})
        if not owned:
            left = [one for one in metadata["finalizers"] if one != "foregroundDeletion"]
            change = {"metadata": {"finalizers": left or None}}
            await town.ask("PATCH", kinds.APP_WRAPPER, metadata["name"], change)


def _owner(found: Json) -> str:
    return next((one["uid"] for one in found["metadata"].get("ownerReferences") or () if one.get("controller")), "")


def cluster_of(gang: Json) -> str:
    return str(json.loads((gang.get("status") or {}).get("admission") or "{}").get("cluster", ""))
