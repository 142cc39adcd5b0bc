"""Nodes to come: requested for waiting gangs, one all-or-nothing ProvisioningRequest each.

The engine decides which gang gets which nodes; this carries it out and tells the engine what is under way. The request
is the memory: made under a name of gang UID and attempt, owned by the workload, read back after a restart. Templates
come first, then the request. Never two live requests for one gang, and none once it has started or ended.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable

import msgspec

from shoal.api import gang as marks
from shoal.api.booking import booking_of, is_over, owner_of
from shoal.api.kind import Kind
from shoal.api.kinds import CONFIG_MAP, POD_TEMPLATE, PROVISIONING_REQUEST
from shoal.api.meta import Json
from shoal.api.node_pools import NAME, NAMESPACE, OBTAINS, obtains, published
from shoal.api.quantity import amounts
from shoal.api.times import parse_time
from shoal.controllers.planning.bookings import Bookings
from shoal.controllers.planning.caches import SharedCaches
from shoal.controllers.planning.provisioning_objects import reference_to, request_objects
from shoal.controllers.planning.source import NodeRequester, WorkloadSource
from shoal.engine import Engine
from shoal.engine.model import Gang, NodePool, Obtain, Taint
from shoal.errors import BadInput
from shoal.kube.cache import Cache, Change
from shoal.kube.clock import Clock
from shoal.kube.errors import AlreadyExists, Forbidden, Invalid
from shoal.kube.events import Recorder
from shoal.kube.runtime import Controller
from shoal.kube.writes import Writes

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 60.0, 1800.0
"""Seconds until the next attempt after one that came to nothing: doubled each time."""
PATIENCE = 900.0
"""Seconds after which a request that is accepted but not provisioned is given up and thought over."""
SECOND = 1_000_000
_ATTEMPT = re.compile(r"-([0-9]+)$")


def asks(gang: Gang) -> bool:
    """Does it stand in the line for room? AppWrappers from the start, queued gangs once they have quota."""
    return gang.state == ("reserved" if gang.dialect == "kueue" else "waiting")


class NodeProvisioning:
    """`replan()` asks for a plan."""

    def __init__(
        self,
        engine: Engine,
        caches: SharedCaches,
        sources: list[WorkloadSource],
        writes: Writes,
        recorder: Recorder,
        clock: Clock,
        replan: Callable[[], None],
    ) -> None:
        self._client, self._engine, self._clock = caches.client, engine, clock
        self._sources, self._recorder, self._replan = sources, recorder, replan
        self._writer = writes.writer("provisioning", attempts=1)
        self._lacking = asyncio.Event()
        """The pools may not be read: then nothing is requested until they are."""
        self.requests = caches.watch_requests()
        self.pools: Cache[Json] = Cache(
            self._client,
            CONFIG_MAP,
            dict,
            namespace=NAMESPACE,
            field_selector=f"metadata.name={NAME}",
            clock=clock,
            report=lambda trouble: self._lacking.set(),
        )
        self.queue: Controller[str] = Controller("provisioning", self._reconcile, workers=8, clock=clock)
        self._wanted: dict[str, Obtain] = {}
        """Decided by the engine, and not seen as a request yet; by UID."""
        self._attempts: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        """UIDs of gangs that no request can name, with their generation."""
        self.bookings = Bookings(engine, self.requests, caches.pods, self._keeps)

    async def run(self, ready: asyncio.Event) -> None:
        """Until cancelled; `ready` is set once all is read that a decision depends on."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.pools.run())
            waits = [asyncio.ensure_future(event.wait()) for event in (self._lacking, self.pools.synced)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()
            ready.set()
            await self.queue.run()

    def subscribe(self) -> None:
        """Before gangs are told."""
        self.bookings.subscribe()
        self.pools.subscribe(self._pools_changed)
        self.requests.subscribe(self._request_changed)

    def wants(self, obtain: Obtain) -> None:
        """The engine decided that this gang asks for nodes."""
        self._wanted[obtain.uid] = obtain
        self.queue.enqueue(obtain.uid)

    def with_request(self, gang: Gang) -> Gang:
        """The gang with what is under way for it: decided, requested, or not to be tried again yet."""
        wanted, made = self._wanted.get(gang.uid), self._made(gang.uid)
        if gang.uid in self._refused:
            return msgspec.structs.replace(gang, may_obtain=False)
        if not asks(gang) or not (wanted or made):
            return gang
        if wanted is not None:
            return msgspec.structs.replace(gang, obtaining=wanted.nodes)
        live = next((request for request in made if not is_over(request)), None)
        if live is not None:
            return msgspec.structs.replace(gang, obtaining=obtains(live))
        return msgspec.structs.replace(gang, may_obtain=self._pause(made[0]) <= 0)

    # --- one gang

    async def _reconcile(self, uid: str) -> float | None:
        """Bring the requests of one gang to where its state says. Returns seconds until it wants to be called again."""
        requester = self._requester(uid)
        gang = self._engine.gang(requester.gang) if requester is not None else None
        if requester is None or gang is None or gang.uid != uid or not (asks(gang) or gang.state == "admitted"):
            self._wanted.pop(uid, None)
            self._attempts.pop(uid, None)
            self._refused.pop(uid, None)
            await self._drop(self._made(uid))
            return None
        if gang.state == "admitted":  # what is booked is kept until its pods have taken it
            self._wanted.pop(uid, None)
            await self._drop([request for request in self._made(uid) if booking_of(request) is None])
            return None
        return await self._request(requester, gang)

    def _requester(self, uid: str) -> NodeRequester | None:
        return next((found for one in self._sources if (found := one.requester(uid)) is not None), None)

    def _keeps(self, request: Json) -> bool:
        return any(one.keeps(request) for one in self._sources)

    async def _request(self, requester: NodeRequester, gang: Gang) -> float | None:
        uid, made = gang.uid, self._made(gang.uid)
        live = next((request for request in made if not is_over(request)), None)
        if live is not None:
            self._wanted.pop(uid, None)
            left = PATIENCE - self._age(live["metadata"].get("creationTimestamp"))
            if _generation(live) != str(requester.generation) or (left <= 0 and booking_of(live) is None):
                await self._drop([live])
                requester.update()
                return None
            await self._drop([request for request in made if request is not live])
            return left if left > 0 else None
        if uid in self._wanted:
            await self._create(requester, gang, self._wanted[uid])
            await self._drop(made)
            return None
        if made:
            pause = self._pause(made[0])
            if pause <= 0 or gang.obtaining:  # tried again, or no longer counted on what came to nothing
                requester.update()
            return pause if pause > 0 else None
        return None

    async def _create(self, requester: NodeRequester, gang: Gang, wanted: Obtain) -> None:
        """Templates first: a request must never name what does not exist."""
        number = max([self._attempts.get(gang.uid, 0), *(_attempt(request) for request in self._made(gang.uid))]) + 1
        name = f"shoal-{gang.uid}-{number}"
        annotations = {
            OBTAINS: msgspec.json.encode(wanted.nodes).decode(),
            marks.GANG_NAME: gang.key,
            marks.GANG_UID: gang.uid,
            GENERATION: str(requester.generation),
        }
        owner = requester.owner
        try:
            templates, body = request_objects(name, gang, annotations)
            made = [await self._make(POD_TEMPLATE, template, gang.namespace, owner) for template in templates]
            request = await self._make(PROVISIONING_REQUEST, body, gang.namespace, owner)
        except (BadInput, Invalid, Forbidden) as error:
            self._refuse(requester, gang, str(error))
            return
        self._attempts[gang.uid] = number
        self.requests.note_write(request)
        self._wanted.pop(gang.uid, None)  # from here on the request speaks: it may come to nothing at once
        message = f'Created ProvisioningRequest: "{name}"'
        self._recorder.event(requester.about, "Normal", "ProvisioningRequestCreated", message)
        handed = {"ownerReferences": [reference_to(request)]}
        for template in made:  # from now on they go with the request
            await self._writer.patch(POD_TEMPLATE, template, {"metadata": handed}, unchanged=False)

    async def _make(self, kind: Kind, body: Json, namespace: str, owner: Json) -> Json:
        """Create it, or find what an earlier try made under the same name. Raises BadInput for a stranger's."""
        body["metadata"].update(namespace=namespace, ownerReferences=[owner])
        try:
            made: Json = await self._writer.create(kind, body)
        except AlreadyExists:
            made = await self._client.get(kind, body["metadata"]["name"], namespace)
            if owner_of(made) != owner["uid"]:
                name = made["metadata"]["name"]
                raise BadInput(f"{kind.kind} {namespace}/{name} exists and belongs to another owner") from None
        return made

    def _refuse(self, requester: NodeRequester, gang: Gang, why: str) -> None:
        """No request can be made for this gang as it is: it waits for room on nodes that exist."""
        log.warning("no nodes are asked for %s: %s", gang.key, why)
        self._recorder.event(requester.about, "Warning", "ProvisioningRequestRefused", why)
        self._wanted.pop(gang.uid, None)
        self._refused[gang.uid] = requester.generation
        requester.update()

    async def _drop(self, requests: list[Json]) -> None:
        for request in requests:
            await self._writer.delete(PROVISIONING_REQUEST, request, propagation=None)
            self.requests.note_delete(request)

    # --- facts

    def _made(self, uid: str) -> list[Json]:
        """Our requests for this gang, the newest attempt first."""
        found = [request for request in self.requests.by_index("owner", uid) if obtains(request)]
        return sorted(found, key=_attempt, reverse=True)

    def _pause(self, request: Json) -> float:
        """Seconds until another attempt may follow this one, which came to nothing."""
        conditions = (request.get("status") or {}).get("conditions") or ()
        ended = [one.get("lastTransitionTime") for one in conditions if one.get("status") == "True"]
        since = min((self._age(moment) for moment in ended), default=0.0)
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(_attempt(request) - 1, 20)) - since

    def _age(self, moment: str | None) -> float:
        try:
            return (self._clock.now() - parse_time(moment)) / SECOND if moment else 0.0
        except BadInput:
            return 0.0

    def _request_changed(self, change: Change) -> None:
        request = change.new or change.old
        if not obtains(request):
            return
        uid = owner_of(request)
        self.queue.enqueue(uid)
        requester = self._requester(uid)
        if requester is not None:
            requester.update()

    def refresh(self, uid: str, generation: int) -> None:
        """A gang is not what it was."""
        if self._refused.get(uid) not in (None, generation):
            del self._refused[uid]
        if uid in self._wanted or self._made(uid):
            self.queue.enqueue(uid)

    def _pools_changed(self, change: Change) -> None:
        engine = self._engine
        for name in published(change.old or {}).keys() - published(change.new or {}).keys():
            engine.remove(f"NodePool/{name}")
        for name, pool in published(change.new or {}).items():
            taints = tuple(
                Taint(one.get("key", ""), one.get("value", ""), one.get("effect", "")) for one in pool.taints
            )
            try:
                sizes = amounts(pool.allocatable)
            except BadInput as error:
                log.warning("node pool %s is left out: %s", name, error)
                continue
            engine.update(
                NodePool(name=name, labels=pool.labels, taints=taints, allocatable=sizes, obtainable=pool.obtainable)
            )
        self._replan()


GENERATION = marks.PREFIX + "generation"
"""Annotation of a request: the generation of the workload that it was made for."""


def _generation(request: Json) -> str:
    return str((request["metadata"].get("annotations") or {}).get(GENERATION, ""))


def _attempt(request: Json) -> int:
    found = _ATTEMPT.search(request["metadata"]["name"])
    return int(found[1]) if found else 0
