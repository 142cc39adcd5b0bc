"""All other clusters: one member per MultiKueueCluster, made from its Secret, and what is shown and remembered of it.

Whether a cluster answers is stored in its `Active` condition, and the time for which it may be silent is counted from
there, so that memory and status never differ. Its identity is stored when it answers first; another
cluster that answers under its name later gets nothing. What must go from a cluster that does not answer is stored with
it until it is gone.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable

import msgspec

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.labels import HELD_ELSEWHERE
from shoal.api.meta import Json
from shoal.api.objects import annotation, key_of
from shoal.controllers.multicluster import words
from shoal.controllers.multicluster.credentials import Insecure, content_of
from shoal.controllers.multicluster.fence import Fences
from shoal.controllers.multicluster.hub import Hub, secret_name
from shoal.controllers.multicluster.lease import fence_seconds
from shoal.controllers.multicluster.loss import Standing, seconds_until_lost
from shoal.controllers.multicluster.member import Member
from shoal.controllers.multicluster.member_logs import MemberLogs
from shoal.controllers.multicluster.placing import ClusterPlacing
from shoal.controllers.multicluster.pulse import Health
from shoal.controllers.multicluster.record import (
    MOST_REMOVALS,
    Removal,
    removals_of,
    stored_removals,
    with_removal,
)
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.controllers.multicluster.wrappers import AppWrapperPlaces
from shoal.controllers.queues.checks.draft import Draft
from shoal.errors import BadInput
from shoal.kube.cache import Cache
from shoal.kube.clock import Clock
from shoal.kube.errors import KubeError, NotFound
from shoal.kube.transport import Transport
from shoal.kube.writes import Writer

log = logging.getLogger(__name__)

Connect = Callable[[bytes, str], Transport]
RESTART_PAUSE = 1.0
SHOWN = 10
IDENTITY = "identity"
"""Index of MultiKueueClusters by the UID that was stored of each."""


class _Held(msgspec.Struct, frozen=True):
    """A member, its credential's digest, and the task that it runs in."""

    member: Member
    credential: str
    task: asyncio.Task[None]


class Members:
    def __init__(
        self,
        hub: Hub,
        clusters: Cache[Json],
        writer: Writer,
        settings: ClusterSettings,
        clock: Clock,
        connect: Connect,
        heard: Callable[[Key], None],
        concerned: Callable[[Key], None],
        changed: Callable[[str], None],
        placing: ClusterPlacing,
        places: AppWrapperPlaces,
    ) -> None:
        """`heard(workload)`: something of it changed in a cluster. `concerned(workload)`: what it depends on did."""
        self.origin = settings.origin
        self.hub_identity = ""
        self._hub, self._clusters, self._writer = hub, clusters, writer
        self._settings, self._clock, self._connect = settings, clock, connect
        self._heard, self._concerned, self._changed = heard, concerned, changed
        self._placing, self._places = placing, places
        self.fences = Fences(settings, clock, self.may_write, placing.room_changed)
        self._held: dict[str, _Held] = {}
        self._was_usable: dict[str, bool] = {}
        self._looked_at: set[str] = set()
        """Those that were looked at since this hub started."""
        self._holding: dict[Key, set[str]] = {}
        """Clusters that hold something of a hub's Workload, as they said last."""
        self._may_write: dict[str, tuple[Health, str, bool]] = {}
        """Whether each is the one it should be, by its pulse and the hub's own identity, until a MultiKueueCluster
        changes."""
        clusters.subscribe(lambda change: self._may_write.clear())

    # --- asked by the dispatcher and by members

    def get(self, name: str) -> Member | None:
        held = self._held.get(name)
        return held.member if held is not None else None

    def cluster(self, name: str) -> Json | None:
        return self._clusters.get(Key("", name))

    def exists(self, name: str) -> bool:
        """So it is taken until all MultiKueueClusters are read: a hub that starts knows of none yet."""
        return self.cluster(name) is not None or not self._clusters.synced.is_set()

    @property
    def are_none(self) -> bool:
        """Is it known that there is no other cluster at all?"""
        return self._clusters.synced.is_set() and not len(self._clusters)

    def usable(self, name: str) -> Member | None:
        """It answers, it is the cluster it should be, and all that is ours there was read."""
        member = self.get(name)
        return member if member is not None and member.synced and self.may_write(name) else None

    def takes_gangs(self, name: str, cluster: Json) -> bool:
        """Is it in use, and neither cordoned nor taken away? `cluster`: its MultiKueueCluster."""
        metadata = cluster["metadata"]
        if metadata.get("deletionTimestamp") or annotation(cluster, words.CORDONED):
            return False
        return self.usable(name) is not None

    def is_leaving(self, name: str) -> bool:
        """Is it being taken away? Its gangs go back, and it gets no more."""
        cluster = self._clusters.get(Key("", name))
        return cluster is not None and bool(cluster["metadata"].get("deletionTimestamp"))

    def is_cordoned(self, name: str) -> bool:
        """Does it take no new gangs, by an administrator's word? What runs there runs on."""
        cluster = self._clusters.get(Key("", name))
        return cluster is not None and bool(annotation(cluster, words.CORDONED))

    def is_forgotten(self, name: str) -> bool:
        """Does a person say that nothing runs there any more, and it does not answer?"""
        cluster = self.cluster(name)
        return cluster is not None and bool(annotation(cluster, words.FORGOTTEN)) and self.usable(name) is None

    def moves_away(self, name: str) -> bool:
        """Do its gangs go to other clusters, one after the other?"""
        cluster = self.cluster(name)
        return cluster is not None and annotation(cluster, words.DRAINING) == "move" and self.is_cordoned(name)

    def silent_since(self, name: str) -> str:
        """Since when it does not answer, as stored; empty while it does."""
        cluster = self.cluster(name)
        found = Draft(cluster, 0).condition("Active") if cluster is not None else None
        return str(found.get("lastTransitionTime") or "") if found is not None and found.get("status") != "True" else ""

    def is_unsure(self, name: str) -> bool:
        """Is it not known yet whether it answers, or what it holds?"""
        member = self.get(name)
        health = member.pulse.health if member is not None else None
        if member is None:
            return self.exists(name) and name not in self._looked_at
        return health is None or (health.connected and not member.synced)

    def may_write(self, name: str) -> bool:
        member = self.get(name)
        health = member.pulse.health if member is not None else None
        if health is None or not health.connected:
            return False
        known = self._may_write.get(name)
        if known is not None and known[0] is health and known[1] == self.hub_identity:
            return known[2]
        found = not self._problem(name, health) and self.known_identity(name) == health.identity
        self._may_write[name] = (health, self.hub_identity, found)
        return found

    def noted(self, name: str, key: Key, *, held: bool) -> None:
        names = self._holding.setdefault(key, set())
        (names.add if held else names.discard)(name)
        if not names:
            del self._holding[key]

    def holding(self, key: Key) -> tuple[str, ...]:
        """Clusters that may hold something of this Workload."""
        return tuple(sorted(self._holding.get(key, ())))

    def known_identity(self, name: str) -> str:
        cluster = self._clusters.get(Key("", name))
        return annotation(cluster, words.IDENTITY) if cluster is not None else ""

    def removed_up_to(self, name: str, workload: str) -> int | None:
        cluster = self._clusters.get(Key("", name))
        found = removals_of(cluster) if cluster is not None else ()
        return next((one.epoch for one in found if one.workload == workload), None)

    def trouble(self, name: str) -> str:
        """Why it takes nothing now, for people."""
        cluster = self._clusters.get(Key("", name))
        if cluster is None:
            return "there is no such MultiKueueCluster"
        draft = Draft(cluster, 0)
        if annotation(cluster, words.CORDONED) and draft.is_true("Active"):
            return f"cordoned: it takes no new gangs until shoal cluster uncordon {name}"
        return "it was not reached yet" if draft.is_true("Active") else draft.message("Active") or "not reached yet"

    def until_lost(self, name: str) -> float | None:
        """Seconds; None: it is not silent, or all are. A cluster that was taken away or forgotten is lost at once."""
        if not self.exists(name) or self.is_forgotten(name):
            return 0.0
        if not self.silent_since(name):
            return None
        standings = []
        for cluster in self._clusters.list():
            draft = Draft(cluster, 0)
            if draft.condition("Active") is not None:
                standings.append(Standing(cluster["metadata"]["name"], draft.is_true("Active"), draft.since("Active")))
        return seconds_until_lost(name, standings, self._clock.now(), self._settings.lost_seconds)

    def until_stopped(self, name: str, fence: int, manifest: Json) -> float:
        """Seconds until what this hub sent there under a fence cannot run any more. `fence`: what it was sent with."""
        if not self.exists(name) or self.is_forgotten(name):
            return 0.0
        return max(fence, fence_seconds(self._settings, manifest)) - self.fences.silent_for(name)

    async def remember_removal(self, name: str, uid: str, epoch: int) -> bool:
        """Store that its copies must go from this cluster once it answers. False: there is no room to remember more, or
        it is not read yet."""
        cluster = self._clusters.get(Key("", name))
        if cluster is None:
            return not self.exists(name)
        known = removals_of(cluster)
        more = with_removal(known, Removal(uid, epoch))
        if len(more) > MOST_REMOVALS:
            return False
        if more != known:
            await self._annotate(cluster, words.REMOVALS, stored_removals(more))
        return True

    def sent_kinds(self, name: str) -> tuple[str, ...]:
        """Kinds of the objects that were ever sent to a cluster without Shoal, as `apiVersion/kind`."""
        cluster = self.cluster(name)
        return tuple(filter(None, annotation(cluster, words.KINDS).split(","))) if cluster is not None else ()

    async def remember_kinds(self, name: str, sent: tuple[str, ...]) -> None:
        cluster, known = self.cluster(name), self.sent_kinds(name)
        more = [one for one in sent if one not in known]
        if cluster is not None and more:
            await self._annotate(cluster, words.KINDS, ",".join((*known, *more)))

    def look_again(self, name: str) -> None:
        self._changed(name)

    def look_at_all(self) -> None:
        for key in self._clusters:
            self._changed(key.name)

    # --- keeping them

    async def reconcile(self, name: str) -> float | None:
        """One MultiKueueCluster: a member for its credential, and what is shown of it."""
        cluster = self._clusters.get(Key("", name))
        if cluster is None:
            self._drop(name)
            self.tell(name)
            return None
        health = self._keep(cluster)
        self._looked_at.add(name)
        if self.is_leaving(name):
            return await self._leave(cluster, health)
        cluster = await self._identify(cluster, health)
        if health is not None:
            await self._show(cluster, health)
        await self._places.sweep(name)
        await self._clear_removals(name)
        usable = self.usable(name) is not None
        if usable and annotation(self.cluster(name) or cluster, words.FORGOTTEN):
            await self._annotate(self.cluster(name) or cluster, words.FORGOTTEN, None)  # it was not gone after all
        if usable != self._was_usable.get(name):
            self._was_usable[name] = usable
            self.tell(name)
        busy = health is None or not usable or self._has_removals(name)
        return self._settings.probe_seconds if busy else None

    async def _leave(self, cluster: Json, health: Health | None) -> float | None:
        """A cluster that is taken away is let go once nothing of ours is there, or at once where it does not answer."""
        name, finalizers = cluster["metadata"]["name"], cluster["metadata"].get("finalizers") or []
        self.tell(name)
        held = self._hub.workloads.by_index("on", name) or self._places.holds(name)
        if health is None or (self.usable(name) is not None and held):
            return self._settings.probe_seconds
        if HELD_ELSEWHERE in finalizers:
            left = [one for one in finalizers if one != HELD_ELSEWHERE]
            try:
                await self._writer.patch(kinds.MULTIKUEUE_CLUSTER, cluster, {"metadata": {"finalizers": left or None}})
            except NotFound:
                pass
        return None

    def _has_removals(self, name: str) -> bool:
        return bool(removals_of(self._clusters.get(Key("", name)) or {"metadata": {}}))

    def stop(self) -> None:
        for name in [*self._held]:
            self._drop(name)

    def _keep(self, cluster: Json) -> Health | None:
        """Make the member, a new one for another credential. What is wrong with the credential, or else its pulse."""
        name = cluster["metadata"]["name"]
        try:
            content = self._credential(cluster)
            digest = hashlib.sha256(content).hexdigest()
            held = self._held.get(name)
            if held is None or held.credential != digest:
                transport = self._connect(content, f"kubeconfig of MultiKueueCluster {name}")
                self._drop(name)
                held = self._held[name] = self._start(name, digest, transport)
            return held.member.pulse.health
        except Insecure as error:
            self._drop(name)
            return Health(False, "InsecureKubeConfig", str(error))
        except BadInput as error:
            self._drop(name)
            return Health(False, "BadKubeConfig", str(error))

    def _credential(self, cluster: Json) -> bytes:
        name = secret_name(cluster)
        if not name:
            raise BadInput("spec.clusterSource.kubeConfig must name a Secret: paths and cluster profiles are not read")
        secret = self._hub.secret(name, self._settings.namespace)
        if secret is None:
            raise BadInput(f"Secret {self._settings.namespace}/{name} does not exist: put the kubeconfig there")
        return content_of(secret)

    def _start(self, name: str, digest: str, transport: Transport) -> _Held:
        member = Member(
            name,
            transport,
            self.origin,
            self._hub,
            self,
            self._settings,
            self._clock,
            self._heard,
            lambda: self._changed(name),
            self._places.heard,
            self._places.bare_heard,
            lambda: self._placing.room_changed(name),
        )
        member.logs = MemberLogs(member, self._hub, self._placing.keeper_for)
        self.fences.begin(name, member.client, self.origin)
        return _Held(member, digest, asyncio.create_task(self._run(member), name=f"cluster {name}"))

    async def _run(self, member: Member) -> None:
        """This task owns one member: whatever ends it, the others go on, and it is made again."""
        try:
            await member.run()
        except Exception as error:
            log.error("cluster %s failed and starts again", member.name, exc_info=error)
        await self._clock.sleep(RESTART_PAUSE)
        if self.get(member.name) is member:
            del self._held[member.name]
            self._changed(member.name)

    def _drop(self, name: str) -> None:
        self.fences.end(name)
        held = self._held.pop(name, None)
        if held is not None:
            held.task.cancel()

    def _problem(self, name: str, health: Health) -> str:
        """Why this is not the cluster that it should be."""
        known = self.known_identity(name)
        if known and health.identity != known:
            shown = health.identity or "one that may not be read"
            return f"another cluster answers under this name: its kube-system has UID {shown}, known is {known}"
        if health.identity and health.identity == self.hub_identity:
            return "it is this cluster itself: name another one"
        for other in self._clusters.by_index(IDENTITY, health.identity) if health.identity else ():
            if (twin := other["metadata"]["name"]) != name:
                return f"it is the same cluster as {twin}: remove one of them"
        return ""

    async def _identify(self, cluster: Json, health: Health | None) -> Json:
        """Store its identity, and that it is not let go without looking, before it gets anything."""
        name, held = cluster["metadata"]["name"], cluster["metadata"].get("finalizers") or []
        if health is None or not health.connected or self._problem(name, health):
            return cluster
        metadata: Json = {}
        if health.identity and not annotation(cluster, words.IDENTITY):
            metadata["annotations"] = {words.IDENTITY: health.identity}
        if HELD_ELSEWHERE not in held:
            metadata["finalizers"] = [*held, HELD_ELSEWHERE]
        if not metadata:
            return cluster
        stored = await self._writer.patch(kinds.MULTIKUEUE_CLUSTER, cluster, {"metadata": metadata})
        self._clusters.note_write(stored)
        return stored

    async def _show(self, cluster: Json, health: Health) -> None:
        name, draft = cluster["metadata"]["name"], Draft(cluster, self._clock.now())
        problem = self._problem(name, health) if health.connected else ""
        if problem:
            draft.put("Active", False, "AnotherCluster", problem)
        elif _says_more(draft, health):
            draft.put("Active", health.connected, health.reason, health.message)
        member = self.usable(name)
        unknown = [*member.unknown(), *self._places.unknown(name)] if member is not None else []
        if unknown:
            more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
            text = ", ".join(unknown[:SHOWN])
            said = f"it holds what this hub does not remember making: {text}{more}; delete what is not wanted"
            draft.put("UnknownCopies", True, "NotRemembered", said)
        elif member is not None:
            draft.drop("UnknownCopies")
        if draft.change:
            try:
                stored = await self._writer.patch(
                    kinds.MULTIKUEUE_CLUSTER, cluster, {"status": draft.change}, subresource="status"
                )
            except NotFound:
                return
            self._clusters.note_write(stored)
            log.info("cluster %s: %s", name, draft.message("Active"))

    async def _clear_removals(self, name: str) -> None:
        """Forget what is gone: looked up only after everything that was there has arrived here."""
        cluster, member = self._clusters.get(Key("", name)), self.usable(name)
        if cluster is None or member is None or not removals_of(cluster):
            return
        for key in member.known():
            member.queue.enqueue(key)
        try:
            async with asyncio.timeout(self._settings.request_seconds):
                await member.caught_up()
        except (TimeoutError, KubeError):
            self._changed(name)
            return
        left = tuple(one for one in removals_of(cluster) if member.holds(one.workload, one.epoch))
        if left != removals_of(cluster):
            await self._annotate(cluster, words.REMOVALS, stored_removals(left))

    async def _annotate(self, cluster: Json, name: str, value: str | None) -> Json:
        stored = await self._writer.patch(
            kinds.MULTIKUEUE_CLUSTER, cluster, {"metadata": {"annotations": {name: value}}}
        )
        self._clusters.note_write(stored)
        return stored

    def tell(self, name: str) -> None:
        """Every workload that this cluster may concern is looked at again."""
        member = self.get(name)
        keys = {key_of(one) for one in self._hub.workloads.by_index("on", name)}
        if member is not None:
            keys |= member.known()
            for key in keys:
                member.queue.enqueue(key)
        for check in self._hub.checks.list():
            if name in (self._hub.clusters_of(check["metadata"]["name"]) or ()):
                keys |= {key_of(one) for one in self._hub.workloads.by_index("check", check["metadata"]["name"])}
        for key in keys:
            self._concerned(key)
        self._placing.member_changed(name)
        self._places.member_changed(name)


def _says_more(draft: Draft, health: Health) -> bool:
    """The end of a message tells how the last request failed: that alone is no news."""
    before = (draft.is_true("Active"), draft.reason("Active"), draft.message("Active").partition(":")[0])
    return before != (health.connected, health.reason, health.message.partition(":")[0])
