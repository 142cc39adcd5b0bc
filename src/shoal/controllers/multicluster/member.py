"""One other cluster: what of ours is there, and the hands that bring it to what the hub has stored.

Made for one credential and never changed; a new credential makes a new member. It has a work queue of its own, so that
a slow cluster holds up no other. It writes only into its cluster, only under the hub's mark, deletes by UID, and
reads the hub's caches to know what belongs here; what the hub stores about it is the dispatcher's work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper
from shoal.api.kind import Key, Kind
from shoal.api.kueue_names import PREBUILT
from shoal.api.labels import KUEUE_MULTIKUEUE_ORIGIN
from shoal.api.meta import Json
from shoal.api.objects import annotation, controller_of, group_of, key_of
from shoal.controllers.multicluster import words
from shoal.controllers.multicluster.bare_copies import BareCopies
from shoal.controllers.multicluster.copies import (
    Verdict,
    altered,
    is_ours,
    job_copy,
    judge,
    marks,
    wanted_on,
    workload_copy,
)
from shoal.controllers.multicluster.hub import Hub
from shoal.controllers.multicluster.member_logs import MemberLogs
from shoal.controllers.multicluster.pulse import Pulse
from shoal.controllers.multicluster.record import record_of
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.controllers.multicluster.supply import MemberSupply
from shoal.controllers.multicluster.turns import MemberTurns
from shoal.controllers.multicluster.wrapper_copies import WrapperCopies, round_of
from shoal.controllers.planning.caches import UNREADABLE
from shoal.controllers.queues.checks.draft import Draft
from shoal.controllers.queues.jobs import BY_NAME, GangJob, sendable
from shoal.kube.awaited import Awaited
from shoal.kube.bounded import BoundedTransport
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid, NotFound
from shoal.kube.runtime import Controller
from shoal.kube.transport import Transport
from shoal.kube.writes import Writes

log = logging.getLogger(__name__)

LOOK_AGAIN = 1.0
AT_ONCE = 4
LONGEST_REFUSAL = 1024
"""Characters of what a member says that are stored at the hub."""
Round = tuple[str, int]
"""UID of a hub's Workload and its round."""


class Town(Protocol):
    """What a member asks of the object that keeps all of them."""

    def may_write(self, name: str) -> bool: ...
    def removed_up_to(self, name: str, workload: str) -> int | None: ...
    def noted(self, name: str, key: Key, *, held: bool) -> None: ...
    def known_identity(self, name: str) -> str: ...
    def sent_kinds(self, name: str) -> tuple[str, ...]: ...
    async def remember_kinds(self, name: str, kinds: tuple[str, ...]) -> None: ...


class RefusedByMember(Exception):
    """This cluster does not take this gang; the text says why."""


class Member:
    """`heard(key)` is called when something changed here that the hub should look at."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        origin: str,
        hub: Hub,
        town: Town,
        settings: ClusterSettings,
        clock: Clock,
        heard: Callable[[Key], None],
        changed: Callable[[], None],
        wrapper_heard: Callable[[str, AppWrapper], None] = lambda name, copy: None,
        bare_heard: Callable[[str, str], None] = lambda name, uid: None,
        room_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        bounded = BoundedTransport(transport, settings.answers)
        self.client = Client(bounded, manager="shoal", timeout=settings.request_seconds)
        self.pulse = Pulse(name, self.client, settings, clock, changed, self._excess, bounded.end_watches)
        self.synced = False
        self.turns = MemberTurns(name, clock)
        self._origin, self._hub, self._town, self._settings = origin, hub, town, settings
        self._heard, self._changed, self._clock = heard, changed, clock
        self._awaited = Awaited()
        self.workloads = self._cache(kinds.WORKLOAD)
        self.jobs: dict[Kind, Cache[Json]] = {
            one.kind: self._cache(one.kind, workload=_workload_of, uid=lambda job: (str(job["metadata"]["uid"]),))
            for one in sendable()
        }
        self.queue: Controller[Key] = Controller(f"cluster {name}", self.reconcile, workers=AT_ONCE, clock=clock)
        self._writer = Writes(self.client, in_flight=AT_ONCE, clock=clock).writer("clusters")
        self._wrapper_heard, self._room_changed = wrapper_heard, room_changed
        self.wrappers = (
            WrapperCopies(self.client, self._writer, origin, settings, clock, self._awaited, self._wrapper_changed)
            if settings.app_wrappers
            else None
        )
        self.bare = (
            BareCopies(
                self.client,
                self._writer,
                origin,
                settings,
                clock,
                self._awaited,
                lambda uid: bare_heard(name, uid),
                lambda sent: town.remember_kinds(name, sent),
            )
            if settings.app_wrappers
            else None
        )
        self._read = Awaited()
        self.supply = (
            MemberSupply(self.client, settings, clock, self._read, self._hub_gang, room_changed)
            if settings.app_wrappers or settings.chooses
            else None
        )
        self.logs: MemberLogs | None = None
        """Set before it runs, where logs are kept."""
        self._gone: set[Round] = set()
        self._refusals: dict[Round, str] = {}
        self._vetted: set[Round] = set()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.pulse.run())
                every = [*self._caches, *(self.wrappers.caches if self.wrappers is not None else ())]
                supplies = self.supply.caches if self.supply is not None else []
                for cache in (*every, *supplies):
                    tasks.create_task(cache.run())
                if self.bare is not None:
                    tasks.create_task(self.bare.run())
                    every += await self.bare.begin(self._town.sent_kinds(self.name))
                await self._awaited.known(every)
                await self._read.known(supplies)
                self.workloads.subscribe(lambda change: self._noticed(change.key))
                for cache in self.jobs.values():
                    cache.subscribe(self._job_changed)
                if self.wrappers is not None:
                    self.wrappers.subscribe()
                if self.supply is not None:
                    self.supply.subscribe()
                if self.bare is not None and self.supply is not None:
                    self.supply.pods.watch(self.bare.pod_changed)
                if self.logs is not None:
                    tasks.create_task(self.logs.run())
                self.synced = True
                self._changed()
                tasks.create_task(self.queue.run())
        finally:
            await self.client.transport.close()

    # --- asked by the dispatcher

    def copy_of(self, workload: Json) -> Json | None:
        """The copy of this round."""
        found = self.workloads.get(key_of(workload))
        return found if found is not None and self._verdict(found, workload) == "current" else None

    def job_of(self, workload: Json) -> tuple[Kind, Json] | None:
        """The copy of its job, of this round."""
        current = (pair for pair in self._jobs_at(key_of(workload)) if self._verdict(pair[1], workload) == "current")
        return next(current, None)

    def is_gone(self, workload: Json) -> bool:
        """Was it looked up after the last change of mind, and nothing of this round found?"""
        return _round(workload) in self._gone

    def forget(self, workload: Json) -> None:
        """Its round is over, and the hub has stored that."""
        self._gone.discard(_round(workload))

    def refusal(self, workload: Json) -> str:
        return self._refusals.get(_round(workload), "")

    def is_vetted(self, workload: Json) -> bool:
        """Would this cluster store the job as it is?"""
        return _round(workload) in self._vetted

    def holds_younger(self, workload: Json) -> bool:
        """Is there a copy from a round that the hub does not remember?"""
        at = key_of(workload)
        found = [self.workloads.get(at), *(job for _, job in self._jobs_at(at))]
        return any(one is not None and self._verdict(one, workload) == "unknown" for one in found)

    def unknown(self) -> list[str]:
        """What carries the hub's mark and the hub does not remember."""
        found = []
        for cache in self._caches:
            for obj in cache.list():
                at = key_of(obj) if cache is self.workloads else _workload_key(obj)
                if self._verdict(obj, self._hub.workloads.get(at)) == "unknown":
                    found.append(f"{cache.kind.kind} {key_of(obj)}")
        return [name[:LONGEST_REFUSAL] for name in sorted(found)]

    def holds(self, workload: str, epoch: int) -> bool:
        """Is anything left of this hub Workload's rounds up to that one?"""
        found = [marks(obj) for cache in self._caches for obj in cache.list()]
        found += [round_of(one) for _, one in self.wrappers.every()] if self.wrappers is not None else []
        found += [marks(one) for _, one in self.bare.every()] if self.bare is not None else []
        return any(uid == workload and at <= epoch for uid, at in found)

    async def caught_up(self) -> None:
        """Until all that was there before this call is known here."""
        for cache in [*self._caches, *(self.wrappers.caches if self.wrappers is not None else ())]:
            if cache.synced.is_set():
                await cache.catch_up()
        if self.bare is not None:
            await self.bare.caught_up()

    def gang_above(self, uid: str) -> str:
        """UID at the hub of the gang whose copy has this UID here, or stands above what has it."""
        return self.supply.pods.gang_above(uid) if self.supply is not None else self._hub_gang(uid)

    def uids_in(self, namespace: str) -> set[str]:
        """Of all that is here of the hub's gangs in this namespace."""
        copies = [one for cache in self._caches for one in cache.list() if one["metadata"]["namespace"] == namespace]
        found = {str(one["metadata"]["uid"]) for one in copies}
        found |= {one.metadata.uid for _, one in (self.wrappers.every() if self.wrappers is not None else ())}
        found |= {str(one["metadata"]["uid"]) for _, one in (self.bare.every() if self.bare is not None else ())}
        return found | (self.supply.pods.uids_in(namespace) if self.supply is not None else set())

    def known(self) -> set[Key]:
        """Workloads of which something is here."""
        jobs = (_workload_key(job) for cache in self.jobs.values() for job in cache.list())
        return {*map(key_of, self.workloads.list()), *jobs}

    # --- the hands

    async def reconcile(self, key: Key) -> float | None:
        """Bring what is here of one gang to what the hub has stored. Level-triggered."""
        if not self._town.may_write(self.name):
            return None
        workload = self._hub.workloads.get(key)
        want = wanted_on(workload, self.name)
        if workload is not None and want != "nothing":
            self._gone.discard(_round(workload))
        if await self._remove(key, workload, everything=want == "nothing"):
            return LOOK_AGAIN
        if workload is None:
            return None
        if want == "nothing":
            return await self._confirm(key, workload)
        try:
            if want == "place":
                await self._place(key, workload)
            elif want == "run":
                await self._run(workload)
        except (RefusedByMember, Invalid, Forbidden, BadRequest, NotFound) as error:
            self._refuse(workload, str(error))
            return self._settings.refused_seconds
        if self._refusals.pop(_round(workload), ""):
            self._heard(key)
        return None

    async def _remove(self, key: Key, workload: Json | None, *, everything: bool) -> bool:
        """Jobs before their Workload. True while something that must go is still there."""
        found: list[tuple[Kind, Json]] = [*self._jobs_at(key)]
        copy = self.workloads.get(key)
        if copy is not None:
            found.append((kinds.WORKLOAD, copy))
        left = False
        if self.logs is not None and everything and found and workload is not None and _has_ended(workload):
            await self.logs.taken()
        for kind, obj in found:
            verdict = self._verdict(obj, workload)
            if verdict == "stale" or (verdict == "current" and everything):
                left = True
                if not obj["metadata"].get("deletionTimestamp"):
                    log.info("cluster %s: %s %s goes", self.name, kind.kind, key_of(obj))
                    await self._writer.delete(kind, obj)
        return left

    async def _confirm(self, key: Key, workload: Json) -> float | None:
        """Nothing is known to be here: look it up, for a create whose answer was lost may have left something."""
        this = _round(workload)
        if self.name not in record_of(workload).on or this in self._gone:
            return None
        for kind, name in self._names_of(workload):
            try:
                found = await self.client.get(kind, name, key.namespace)
            except NotFound:
                continue
            if is_ours(found, self._origin) and self._verdict(found, workload) != "unknown":
                self._cache_of(kind).note_write(found)
                return LOOK_AGAIN
        self._vetted.discard(this)
        self._refusals.pop(this, None)
        self._gone.add(this)
        self._heard(key)
        return None

    async def _place(self, key: Key, workload: Json) -> None:
        copy = self.copy_of(workload)
        if copy is None:
            await self.check_way(workload["metadata"]["namespace"], self._settings.namespaces)
            body = workload_copy(workload, record_of(workload), self._origin)
            await self._create(kinds.WORKLOAD, body, workload)
        elif _is_admitted(copy) and not self.is_vetted(workload):
            await self._vet(workload)
            self._heard(key)

    async def _vet(self, workload: Json) -> None:
        """The job as this cluster would store it, without storing it: no job starts that was changed on the way."""
        kind, body = self._job_body(workload)
        try:
            answer = await self.client.create(kind.kind, body, body["metadata"]["namespace"], dry_run=True)
        except AlreadyExists:
            raise RefusedByMember(
                f"{kind.kind.kind} {body['metadata']['name']} exists there already; remove it"
            ) from None
        problem = altered({**body["spec"], "suspend": None}, answer.get("spec"))
        if problem:
            raise RefusedByMember(f"it would store {kind.kind.kind} {problem} differently; is its CRD older?")
        self._vetted.add(_round(workload))

    async def _run(self, workload: Json) -> None:
        """The job, once: what was there before is not made again, whatever became of it."""
        copy = self.copy_of(workload)
        if copy is None or not _is_admitted(copy) or record_of(workload).job or self.job_of(workload) is not None:
            return
        await self.check_way(workload["metadata"]["namespace"], self._settings.namespaces)
        kind, body = self._job_body(workload)
        await self._check_rights(workload)
        await self._create(kind.kind, body, workload)
        log.info("cluster %s: %s %s is released", self.name, kind.kind.kind, key_of(body))

    async def _create(self, kind: Kind, body: Json, workload: Json) -> None:
        try:
            made = await self._writer.create(kind, body)
        except AlreadyExists:
            made = await self.client.get(kind, body["metadata"]["name"], body["metadata"]["namespace"])
            if not is_ours(made, self._origin) or self._verdict(made, workload) == "unknown":
                name = f"{kind.kind} {key_of(body)}"
                raise RefusedByMember(f"{name} exists there and is not this hub's; it is left alone") from None
        self._cache_of(kind).note_write(made)

    async def check_way(self, name: str, accepting: Literal["any", "accepted"]) -> None:
        """Directly before something is made: is it the cluster we know, and does this namespace take the hub's? Raises
        RefusedByMember."""
        known = self._town.known_identity(self.name)
        if known and await self.pulse.identity() != known:
            raise RefusedByMember("another cluster answers under this name; it gets nothing")
        try:
            namespace = await self.client.get(kinds.NAMESPACE, name)
        except NotFound:
            raise RefusedByMember(f"there is no namespace {name}") from None
        except Forbidden:
            if accepting == "accepted":
                raise RefusedByMember(f"whether namespace {name} takes this hub's gangs may not be read") from None
            return
        accepts = annotation(namespace, words.HUB_NAMESPACE)
        if accepts == self._hub.namespace_uid(name) or (not accepts and accepting == "any"):
            return
        raise RefusedByMember(
            f"namespace {name} does not take gangs from this hub's: annotate it with {words.HUB_NAMESPACE}"
        )

    async def _check_rights(self, workload: Json) -> None:
        """Directly before the job is made: what was allowed when it was offered may have been revoked."""
        found = self._hub.job_of(workload)
        if found is not None and (why := await self._hub.rights.refusal(found[0].kind, found[1])):
            raise RefusedByMember(why)

    # --- parts

    def _job_body(self, workload: Json) -> tuple[GangJob, Json]:
        found = self._hub.job_of(workload)
        if found is None:
            raise RefusedByMember("its job is gone")
        return found[0], job_copy(found[0], found[1], workload, record_of(workload), self._origin)

    def _names_of(self, workload: Json) -> list[tuple[Kind, str]]:
        owner = controller_of(workload)
        kind = BY_NAME.get((group_of(owner), str(owner.get("kind")))) if owner else None
        names = [(kind.kind, str(owner["name"]))] if owner and kind and kind.kind in self.jobs else []
        return [*names, (kinds.WORKLOAD, workload["metadata"]["name"])]

    def _refuse(self, workload: Json, why: str) -> None:
        why = why if len(why) <= LONGEST_REFUSAL else f"{why[:LONGEST_REFUSAL]}…"
        if self._refusals.get(_round(workload)) != why:
            self._refusals[_round(workload)] = why
            self._heard(key_of(workload))

    def _verdict(self, obj: Json, workload: Json | None) -> Verdict:
        return judge(obj, workload, self._town.removed_up_to(self.name, marks(obj)[0]))

    def _jobs_at(self, key: Key) -> list[tuple[Kind, Json]]:
        text = str(key)
        return [(kind, job) for kind, cache in self.jobs.items() for job in cache.by_index("workload", text)]

    def _job_changed(self, change: Change) -> None:
        job: Json = change.new or change.old
        if self.supply is not None and (change.old is None or change.new is None):
            self.supply.pods.copy_changed(job["metadata"]["uid"])
        self._noticed(_workload_key(job))

    def _wrapper_changed(self, copy: AppWrapper) -> None:
        if self.supply is not None:
            self.supply.pods.copy_changed(copy.metadata.uid)
        self._wrapper_heard(self.name, copy)

    def _hub_gang(self, uid: str) -> str:
        """UID at the hub of the gang whose copy has this UID here; empty where it is none."""
        for cache in self.jobs.values():
            for job in cache.by_index("uid", uid):
                return marks(job)[0]
        if self.bare is not None and self.bare.holds(uid):
            return uid  # a pod that a wrapped object made names the hub's gang itself
        return self.wrappers.hub_gang(uid) if self.wrappers is not None else ""

    def _noticed(self, key: Key) -> None:
        held = self.workloads.get(key) is not None or bool(self._jobs_at(key))
        self._town.noted(self.name, key, held=held)
        self.queue.enqueue(key)
        self._changed()
        self._heard(key)

    @property
    def _caches(self) -> list[Cache[Json]]:
        return [self.workloads, *self.jobs.values()]

    def _excess(self) -> str:
        """What it sends too much of; empty while it keeps to its limits."""
        troubles = (cache.trouble for cache in self._caches)
        return next((one.message for one in troubles if one is not None and one.reason == "TooMuch"), "")

    def _cache_of(self, kind: Kind) -> Cache[Json]:
        return self.workloads if kind == kinds.WORKLOAD else self.jobs[kind]

    def _cache(self, kind: Kind, **indexes: Any) -> Cache[Json]:
        return Cache(
            self.client,
            kind,
            dict,
            label_selector=f"{KUEUE_MULTIKUEUE_ORIGIN}={self._origin}",
            indexes=indexes,
            clock=self._clock,
            most=self._settings.answers.held,
            report=self._awaited.report(kind, lambda trouble: trouble.reason in UNREADABLE),
        )


def _round(workload: Json) -> Round:
    return workload["metadata"]["uid"], record_of(workload).epoch


def _has_ended(workload: Json) -> bool:
    return Draft(workload, 0).is_true("Finished")


def _is_admitted(copy: Json) -> bool:
    draft = Draft(copy, 0)
    return draft.is_true("Admitted") and not draft.is_true("Evicted") and not draft.is_true("Finished")


def _workload_key(job: Json) -> Key:
    return Key(job["metadata"].get("namespace", ""), annotation(job, PREBUILT))


def _workload_of(job: Json) -> Iterable[str]:
    return (str(_workload_key(job)),)
