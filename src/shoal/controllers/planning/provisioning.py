"""Asks for nodes on behalf of waiting gangs: one all-or-nothing ProvisioningRequest each.

The engine decides who asks for which nodes; this carries it out and tells the engine what is under way. The request is
the memory: made under a name of gang UID and attempt, owned by the AppWrapper, read back after a restart. Templates
come first, then the request. Never two live requests for one gang, and none once it has started or ended.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable

import msgspec

from shoal.api import gang as marks
from shoal.api.appwrapper import AppWrapper
from shoal.api.booking import booking_of, is_over, owner_of
from shoal.api.kind import Kind
from shoal.api.kinds import CONFIG_MAP, POD_TEMPLATE, PROVISIONING_REQUEST
from shoal.api.meta import Json
from shoal.api.node_pools import NAME, NAMESPACE, OBTAINS, obtains, published
from shoal.api.quantity import amounts
from shoal.api.times import parse_time
from shoal.controllers.appwrapper.planner import Planner
from shoal.controllers.appwrapper.world import World
from shoal.controllers.appwrapper.wrapped import gang_key, owner_reference
from shoal.controllers.planning.bookings import Bookings
from shoal.controllers.planning.provisioning_objects import reference_to, request_objects
from shoal.controllers.planning.source import Asker
from shoal.engine.model import Gang, NodePool, Obtain, Taint
from shoal.errors import BadInput
from shoal.kube.cache import Cache, Change
from shoal.kube.clock import Clock
from shoal.kube.errors import AlreadyExists, Forbidden, Invalid, NotFound
from shoal.kube.events import Recorder
from shoal.kube.runtime import Controller

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
    """`tell(wrapper)` tells the engine about an AppWrapper again, `replan()` asks for a plan, `others(uid)` finds gangs
    that are no AppWrappers."""

    def __init__(
        self,
        world: World,
        planner: Planner,
        recorder: Recorder,
        clock: Clock,
        tell: Callable[[AppWrapper], None],
        replan: Callable[[], None],
        kept: Callable[[Json], bool] = lambda request: False,
        others: Callable[[str], Asker | None] = lambda uid: None,
    ) -> None:
        self._client, self._world, self._planner, self._clock = world.client, world, planner, clock
        self._recorder, self._tell, self._replan, self._others = recorder, tell, replan, others
        self._lacking = asyncio.Event()
        """A kind is not installed, or may not be read: then nothing is asked for until it is."""
        self.requests: Cache[Json] = Cache(
            self._client,
            PROVISIONING_REQUEST,
            dict,
            indexes={"owner": _owned_by},
            clock=clock,
            report=lambda trouble: self._lacking.set(),
        )
        self.pools: Cache[Json] = Cache(
            self._client,
            CONFIG_MAP,
            dict,
            namespace=NAMESPACE,
            field_selector=f"metadata.name={NAME}",
            clock=clock,
            report=lambda trouble: self._lacking.set(),
        )
        self.queue: Controller[str] = Controller("obtaining", self._reconcile, workers=8, clock=clock)
        self._wanted: dict[str, Obtain] = {}
        """Decided by the engine, and not seen as a request yet; by UID."""
        self._attempts: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        """UIDs of gangs that no request can name, with their generation."""
        self.bookings = Bookings(planner.engine, self.requests, world.pods, kept)

    async def run(self, ready: asyncio.Event) -> None:
        """Until cancelled; `ready` is set once all is read that a decision depends on."""
        async with asyncio.TaskGroup() as tasks:
            for cache in (self.requests, self.pools):
                tasks.create_task(cache.run())
            waits = [asyncio.ensure_future(self._lacking.wait()), asyncio.ensure_future(self._synced())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()
            ready.set()
            await self.queue.run()

    async def _synced(self) -> None:
        await asyncio.gather(self.requests.synced.wait(), self.pools.synced.wait())

    def subscribe(self) -> None:
        """Before AppWrappers are told."""
        self.bookings.subscribe()
        self.pools.subscribe(self._pools_changed)
        self.requests.subscribe(self._request_changed)
        for cache in self._world.wrappers.values():
            cache.subscribe(self._wrapper_changed)

    def wants(self, obtain: Obtain) -> None:
        """The engine decided that this gang asks for nodes."""
        self._wanted[obtain.uid] = obtain
        self.queue.enqueue(obtain.uid)

    def asked(self, gang: Gang) -> Gang:
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
        asker = self._asker(uid)
        gang = self._planner.engine.gang(asker.gang) if asker is not None else None
        if asker is None or gang is None or gang.uid != uid or not (asks(gang) or gang.state == "admitted"):
            self._wanted.pop(uid, None)
            self._attempts.pop(uid, None)
            self._refused.pop(uid, None)
            await self._drop(self._made(uid))
            return None
        if gang.state == "admitted":  # what is booked is kept until its pods have taken it
            self._wanted.pop(uid, None)
            await self._drop([request for request in self._made(uid) if booking_of(request) is None])
            return None
        return await self._ask(asker, gang)

    def _asker(self, uid: str) -> Asker | None:
        wrapper = self._world.wrapper_by_uid(uid)
        if wrapper is None:
            return self._others(uid)
        return Asker(
            gang=gang_key(wrapper),
            generation=wrapper.metadata.generation,
            owner=owner_reference(wrapper),
            about=wrapper,
            tell=lambda: self._tell(wrapper),
        )

    async def _ask(self, asker: Asker, gang: Gang) -> float | None:
        uid, made = gang.uid, self._made(gang.uid)
        live = next((request for request in made if not is_over(request)), None)
        if live is not None:
            self._wanted.pop(uid, None)
            left = PATIENCE - self._age(live["metadata"].get("creationTimestamp"))
            if _generation(live) != str(asker.generation) or (left <= 0 and booking_of(live) is None):
                await self._drop([live])
                asker.tell()
                return None
            await self._drop([request for request in made if request is not live])
            return left if left > 0 else None
        if uid in self._wanted:
            await self._create(asker, gang, self._wanted[uid])
            await self._drop(made)
            return None
        if made:
            pause = self._pause(made[0])
            if pause <= 0 or gang.obtaining:  # tried again, or no longer counted on what came to nothing
                asker.tell()
            return pause if pause > 0 else None
        return None

    async def _create(self, asker: Asker, gang: Gang, wanted: Obtain) -> None:
        """Templates first: a request must never name what does not exist."""
        number = max([self._attempts.get(gang.uid, 0), *(_attempt(request) for request in self._made(gang.uid))]) + 1
        name = f"shoal-{gang.uid}-{number}"
        annotations = {
            OBTAINS: msgspec.json.encode(wanted.nodes).decode(),
            marks.GANG_NAME: gang.key,
            marks.GANG_UID: gang.uid,
            GENERATION: str(asker.generation),
        }
        owner = asker.owner
        try:
            templates, body = request_objects(name, gang, annotations)
            for template in templates:
                await self._make(POD_TEMPLATE, template, gang.namespace, owner)
            request = await self._make(PROVISIONING_REQUEST, body, gang.namespace, owner)
        except (BadInput, Invalid, Forbidden) as error:
            self._refuse(asker, gang, str(error))
            return
        self._attempts[gang.uid] = number
        self.requests.note_write(request)
        self._wanted.pop(gang.uid, None)  # from here on the request speaks: it may come to nothing at once
        message = f'Created ProvisioningRequest: "{name}"'
        self._recorder.event(asker.about, "Normal", "ProvisioningRequestCreated", message)
        handed = {"ownerReferences": [reference_to(request)]}
        for template in templates:  # from now on they go with the request
            await self._client.patch(POD_TEMPLATE, template["metadata"]["name"], gang.namespace, {"metadata": handed})

    async def _make(self, kind: Kind, body: Json, namespace: str, owner: Json) -> Json:
        """Create it, or find what an earlier try made under the same name. Raises BadInput for a stranger's."""
        body["metadata"]["ownerReferences"] = [owner]
        try:
            made: Json = await self._client.create(kind, body, namespace)
        except AlreadyExists:
            made = await self._client.get(kind, body["metadata"]["name"], namespace)
            if owner_of(made) != owner["uid"]:
                name = made["metadata"]["name"]
                raise BadInput(f"{kind.kind} {namespace}/{name} exists and belongs to someone else") from None
        return made

    def _refuse(self, asker: Asker, gang: Gang, why: str) -> None:
        """No request can be made for this gang as it is: it waits for room on nodes that exist."""
        log.warning("no nodes are asked for %s: %s", gang.key, why)
        self._recorder.event(asker.about, "Warning", "ProvisioningRequestRefused", why)
        self._wanted.pop(gang.uid, None)
        self._refused[gang.uid] = asker.generation
        asker.tell()

    async def _drop(self, requests: list[Json]) -> None:
        for request in requests:
            metadata = request["metadata"]
            try:
                await self._client.delete(
                    PROVISIONING_REQUEST, metadata["name"], metadata.get("namespace"), uid=metadata["uid"]
                )
            except NotFound:
                pass
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
        asker = self._asker(uid)
        if asker is not None:
            asker.tell()

    def _wrapper_changed(self, change: Change) -> None:
        metadata = (change.new or change.old).metadata
        self.look(metadata.uid, metadata.generation)

    def look(self, uid: str, generation: int) -> None:
        """A gang is not what it was."""
        if self._refused.get(uid) not in (None, generation):
            del self._refused[uid]
        if uid in self._wanted or self._made(uid):
            self.queue.enqueue(uid)

    def _pools_changed(self, change: Change) -> None:
        engine = self._planner.engine
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
"""Annotation of a request: the generation of the AppWrapper that it was made for."""


def _generation(request: Json) -> str:
    return str((request["metadata"].get("annotations") or {}).get(GENERATION, ""))


def _attempt(request: Json) -> int:
    found = _ATTEMPT.search(request["metadata"]["name"])
    return int(found[1]) if found else 0


def _owned_by(request: Json) -> tuple[str, ...]:
    uid = owner_of(request)
    return (uid,) if uid else ()
