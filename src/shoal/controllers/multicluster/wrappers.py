"""AppWrappers of v1beta1 in other clusters, as in MCAD's dispatcher mode: what the AppWrapper controller asks for.

It decides which gang is next and stores what it was given; here a member is chosen by its room, the copy is made,
looked at and removed. Nothing of this is remembered beyond what is stored with the AppWrapper and in the members.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import msgspec

from shoal.api.appwrapper import AppWrapper, ClusterScheduling
from shoal.api.codec import plain
from shoal.api.kind import Kind
from shoal.api.labels import CLUSTER_LOSS, GATED
from shoal.api.meta import Json, LabelSelector
from shoal.api.objects import annotation, key_of
from shoal.controllers.multicluster.bare_copies import BareGang, NotTaken
from shoal.controllers.multicluster.copies import altered, marks
from shoal.controllers.multicluster.hub import Hub
from shoal.controllers.multicluster.lease import fence_seconds
from shoal.controllers.multicluster.loss import Loss, loss_policy
from shoal.controllers.multicluster.member import Member, RefusedByMember
from shoal.controllers.multicluster.placing import HOME, ClusterPlacing, wishes_of
from shoal.controllers.multicluster.wrapper_copies import (
    ENDED,
    WrapperCopies,
    has_never_run,
    is_gated,
    is_stopped,
    round_of,
)
from shoal.controllers.planning.other_clusters import MemberChoice, ObjectName, Sent, SentCopy, StoredRound
from shoal.engine.model import Amounts, Gang
from shoal.engine.nodes import parse_selector
from shoal.errors import BadInput
from shoal.kube.errors import AlreadyExists, BadRequest, Conflict, Forbidden, Invalid, KubeError, NotFound

if TYPE_CHECKING:
    from shoal.controllers.multicluster.members import Members

log = logging.getLogger(__name__)
NOT_REMEMBERED = "it holds a copy that this hub does not remember making; delete it there"


class StoredPlace(msgspec.Struct, frozen=True):
    cluster: str
    epoch: int
    """0: not stored yet."""


class AppWrapperPlaces:
    """An `OtherClusters`; `placing` is the ledger that it shares with queued jobs."""

    def __init__(self, placing: ClusterPlacing) -> None:
        self.placing = placing
        self._settings, self._clock = placing.settings, placing.clock
        self._places: dict[str, StoredPlace] = {}
        self._moving: dict[str, str] = {}
        """UID of the gang that leaves each cluster now, for another."""
        self._seen_in: dict[str, set[str]] = {}
        """Clusters in which something of a gang was ever seen, by UID."""
        self._changed: Callable[[str], None] = lambda uid: None
        self._stored: Callable[[str], StoredRound | None] = lambda uid: StoredRound("unsure")

    @property
    def admit_seconds(self) -> float:
        return self._settings.admit_seconds

    @property
    def _hub(self) -> Hub | None:
        return self.placing.hub

    @property
    def _members(self) -> Members | None:
        return self.placing.members

    def subscribe(
        self,
        room: Callable[[str], None],
        changed: Callable[[str], None],
        stored: Callable[[str], StoredRound | None],
    ) -> None:
        self.placing.subscribe(room)
        self._changed, self._stored = changed, stored

    def everything_is_read(self) -> None:
        if self._members is not None:
            self._members.look_at_all()

    # --- choosing

    def choose(
        self,
        gang: Gang,
        wanted: ClusterScheduling | None,
        annotations: Mapping[str, str] | None = None,
        unstoppable: str = "",
        among: frozenset[str] | None = None,
    ) -> MemberChoice:
        names, missing = self._names()
        if missing:
            return MemberChoice(reasons={"": self._no_config(missing)})
        try:
            wishes = wishes_of(annotations, self._settings.policy, self._settings.app_wrapper_loss)
        except BadInput as error:
            return MemberChoice(reasons={"": str(error)})
        for name in self._seen_in.get(gang.uid, ()):
            if name in names and self._holds_unknown(name, gang.uid):
                return MemberChoice(reasons={name: NOT_REMEMBERED})

        def excluded(name: str, cluster: Json) -> str:
            return _excluded(cluster, wanted) or (unstoppable if unstoppable and self.is_bare(name) else "")

        asked = names if among is None else tuple(name for name in names if name in among)
        found = self.placing.choose(gang, asked, wishes, excluded)
        name = found.clusters[0] if found.clusters else ""
        at_home = HOME in names and not name and not self.placing.is_unsure(names)
        return MemberChoice(cluster=name, at_home=at_home, reasons=found.reasons)

    def is_special(self, uid: str) -> bool:
        return uid in self._seen_in or self.placing.is_special(uid)

    def room(self, cluster: str) -> Amounts | None:
        return self.placing.room(cluster, queued=False)

    def _names(self) -> tuple[tuple[str, ...], str]:
        """The clusters of every MultiKueueConfig that is named, in order, each once; and the first that is missing."""
        found: dict[str, None] = {}
        for config in filter(None, (one.strip() for one in self._settings.app_wrappers.split(","))):
            names = self._hub.clusters_in(config) if self._hub is not None else None
            if names is None:
                return (), config
            found |= dict.fromkeys(names)
        return tuple(found), ""

    def _no_config(self, name: str) -> str:
        if self._members is not None and self._members.are_none:
            return f"there is no MultiKueueCluster yet: shoal cluster add NAME --check {name} makes one"
        is_read = self._hub is not None and self._hub.configs.synced.is_set()
        return f"there is no MultiKueueConfig {name}" if is_read else f"MultiKueueConfig {name} is not read yet"

    def is_bare(self, cluster: str) -> bool:
        copies = self._copies(cluster)
        return copies is not None and copies.are_not_served

    def keep(self, gang: Gang, cluster: str, epoch: int, moving_to: str = "") -> None:
        self._places[gang.uid] = StoredPlace(cluster, epoch)
        if moving_to:
            self._moving[cluster] = gang.uid
        elif self._moving.get(cluster) == gang.uid:
            del self._moving[cluster]
        self.placing.keep(gang, (cluster, moving_to) if moving_to else (cluster,))

    def forget(self, uid: str) -> None:
        self._places.pop(uid, None)
        if uid in self._moving.values():
            self._moving = {name: one for name, one in self._moving.items() if one != uid}
        self.placing.forget(uid)

    def refuse(self, uid: str, cluster: str, why: str) -> None:
        self.placing.refuse(uid, cluster, why)

    # --- lost and drained

    def fence(self, wrapper: AppWrapper) -> int:
        if self._loss(wrapper) != "move":
            return 0
        return fence_seconds(self._settings, plain(wrapper.spec))

    def until_lost(self, wrapper: AppWrapper, cluster: str, fence: int) -> float | None:
        members = self._members
        if members is None or members.usable(cluster) is not None:
            return None
        if fence:
            return members.until_stopped(cluster, fence, plain(wrapper.spec))
        left = members.until_lost(cluster)
        if members.is_forgotten(cluster) or self._loss(wrapper) == "move-anyway":
            return left
        return None

    def _loss(self, wrapper: AppWrapper) -> Loss:
        return loss_policy((annotation(wrapper, CLUSTER_LOSS),), self._settings.app_wrapper_loss)

    def silent_since(self, cluster: str) -> str:
        return self._members.silent_since(cluster) if self._members is not None else ""

    def moves_away(self, cluster: str) -> bool:
        return self._members is not None and self._members.moves_away(cluster)

    def may_move(self, uid: str, cluster: str) -> bool:
        return self._moving.get(cluster, uid) == uid

    # --- members that change

    def member_changed(self, name: str) -> None:
        """It is there, or not any more: its gangs are looked at."""
        for uid, place in [*self._places.items()]:
            if place.cluster == name:
                self._changed(uid)

    def heard(self, name: str, copy: AppWrapper) -> None:
        """Something of an AppWrapper changed in this member."""
        self._note_seen(name, round_of(copy)[0])
        if self._members is not None and self._is_stale(name, *round_of(copy), has_never_run(copy)):
            self._members.look_again(name)
        self._changed(round_of(copy)[0])

    def bare_heard(self, name: str, uid: str) -> None:
        """Something that an AppWrapper wraps changed in this member."""
        self._note_seen(name, uid)
        if self._members is not None and any(self._is_stale(name, *one) for one in self._bare_rounds(name, uid)):
            self._members.look_again(name)
        self._changed(uid)

    def _note_seen(self, name: str, uid: str) -> None:
        member = self._members.get(name) if self._members is not None else None
        wrapped = member is not None and member.wrappers is not None and bool(member.wrappers.of_gang(uid))
        if wrapped or (member is not None and member.bare is not None and member.bare.holds(uid)):
            self._seen_in.setdefault(uid, set()).add(name)
        elif uid in self._seen_in:
            self._seen_in[uid].discard(name)
            if not self._seen_in[uid]:
                del self._seen_in[uid]

    def _bare_rounds(self, name: str, uid: str) -> list[tuple[str, int, bool]]:
        member = self._members.get(name) if self._members is not None else None
        found = member.bare.of_gang(uid) if member is not None and member.bare is not None else ()
        return [(*marks(one), bool(annotation(one, GATED))) for one in found]

    async def sweep(self, name: str) -> None:
        """Remove copies of rounds that are over, and those whose removal is owed."""
        members, copies = self._members, self._copies(name)
        if members is None or copies is None or members.usable(name) is None:
            return
        for kind, found in copies.every():
            if not found.metadata.deletion_timestamp and self._is_stale(name, *round_of(found), has_never_run(found)):
                await copies.delete(kind, found)
        member = members.usable(name)
        bare = member.bare if member is not None else None
        for kind, obj in bare.every() if bare is not None else ():
            stale = self._is_stale(name, *marks(obj), bool(annotation(obj, GATED)))
            if bare is not None and stale and not obj["metadata"].get("deletionTimestamp"):
                await bare.delete(kind, obj)

    def _is_stale(self, name: str, uid: str, epoch: int, gated: bool) -> bool:
        """Is this round over? A copy that was never released has not run: it goes unless it is being sent now."""
        owed = self._members.removed_up_to(name, uid) if self._members is not None else None
        if owed is not None and epoch <= owed:
            return True
        stored = self._stored(uid)
        if stored is None or stored.state == "unsure":
            return stored is None and gated
        if gated:
            return (stored.state, stored.cluster, stored.epoch) != ("given", name, epoch)
        if stored.state == "waits":
            return epoch <= stored.epoch
        return epoch < stored.epoch or (epoch == stored.epoch and stored.cluster != name)

    def unknown(self, name: str) -> list[str]:
        """Copies that run in this member and that the hub does not remember making: it, or the member, was restored
        from a backup. They are shown, and never removed unasked."""
        copies, member = self._copies(name), self._members.get(name) if self._members is not None else None
        found = [
            f"{kind.kind} {key_of(one)}"
            for kind, one in (copies.every() if copies is not None else ())
            if self._is_unknown(name, *round_of(one), has_never_run(one))
        ]
        for kind, obj in member.bare.every() if member is not None and member.bare is not None else ():
            if self._is_unknown(name, *marks(obj), bool(annotation(obj, GATED))):
                found.append(f"{kind.kind} {key_of(obj)}")
        return sorted(found)

    def _holds_unknown(self, name: str, uid: str) -> bool:
        copies = self._copies(name)
        rounds = [(*round_of(one), has_never_run(one)) for one in (copies.of_gang(uid) if copies is not None else ())]
        return any(self._is_unknown(name, *one) for one in (*rounds, *self._bare_rounds(name, uid)))

    def _is_unknown(self, name: str, uid: str, epoch: int, gated: bool) -> bool:
        stored = self._stored(uid)
        if gated or self._is_stale(name, uid, epoch, gated):
            return False
        return stored is None or (stored.state != "unsure" and epoch > stored.epoch)

    # --- copies

    async def send(
        self,
        kind: Kind,
        wrapper: AppWrapper,
        cluster: str,
        epoch: int,
        objects: Sequence[Json] = (),
        fence: int = 0,
    ) -> Sent:
        member, copies = self._usable(cluster)
        if member is None or copies is None or self._hub is None:
            return Sent("later")
        try:
            if why := await self._hub.rights.refusal(kind, plain(wrapper)):
                return Sent("refused", why)
            async with member.turns.turn():
                await member.check_way(wrapper.metadata.namespace, self._settings.app_wrapper_namespaces)
                if objects and member.bare is not None:
                    made = await member.bare.create(bare_gang(wrapper, epoch), objects)
                    return Sent("done" if made else "later")
                if not copies.takes(kind):
                    return Sent("refused", f"it serves no {kind.kind} in {kind.api_version}")
                return await self._create(copies, kind, wrapper, epoch, fenced=fence > 0)
        except (RefusedByMember, NotTaken, Invalid, Forbidden, BadRequest, NotFound) as error:
            return Sent("refused", str(error))
        except KubeError as error:
            log.info("cluster %s: AppWrapper %s: %s", cluster, key_of(wrapper), error)
            return Sent("later", str(error))

    async def _create(
        self, copies: WrapperCopies, kind: Kind, wrapper: AppWrapper, epoch: int, *, fenced: bool
    ) -> Sent:
        try:
            found = await copies.create(kind, wrapper, epoch, fenced=fenced)
            log.info("AppWrapper %s is sent, round %d", key_of(wrapper), epoch)
        except AlreadyExists:
            there = await copies.look_up(kind, key_of(wrapper))
            if there is None or there.metadata.deletion_timestamp:
                return Sent("later")
            if not copies.is_ours(there) or round_of(there)[0] != wrapper.metadata.uid:
                said = f"AppWrapper {key_of(wrapper)} exists there and is not this hub's; it is left alone"
                return Sent("refused", said)
            if round_of(there)[1] > epoch and not is_gated(there):
                return Sent("refused", NOT_REMEMBERED)
            if round_of(there)[1] != epoch:
                await copies.delete(kind, there, whole=True)
                return Sent("later")
            found = there
        if is_gated(found) and (problem := altered(plain(wrapper.spec), plain(found.spec))):
            await copies.delete(kind, found)
            return Sent("refused", f"it would store AppWrapper {problem} differently; is its CRD older?")
        return Sent("done")

    async def release(
        self, kind: Kind, wrapper: AppWrapper, cluster: str, epoch: int, names: Sequence[ObjectName] = ()
    ) -> bool:
        member, copies = self._usable(cluster)
        if member is None or copies is None:
            return False
        if names and member.bare is not None:
            try:
                async with member.turns.turn():
                    return await member.bare.release(bare_gang(wrapper, epoch), names)
            except KubeError as error:
                log.info("cluster %s: %s is not released yet: %s", cluster, key_of(wrapper), error)
                return False
        found = copies.find(kind, key_of(wrapper))
        if found is None or not self._is_round(copies, found, wrapper, epoch):
            return False
        if is_gated(found):
            try:
                async with member.turns.turn():
                    await copies.release(kind, found)
            except Conflict:
                await self._look_again(copies, kind, wrapper)
                return False
            except KubeError as error:
                log.info("cluster %s: AppWrapper %s is not released yet: %s", cluster, key_of(wrapper), error)
                return False
            log.info("AppWrapper %s is released in cluster %s", key_of(wrapper), cluster)
        return True

    @staticmethod
    async def _look_again(copies: WrapperCopies, kind: Kind, wrapper: AppWrapper) -> None:
        """The member changed the copy, and the watch has not told yet: a broken one may not for long."""
        with suppress(KubeError):
            await copies.look_up(kind, key_of(wrapper))

    async def look(
        self, kind: Kind, wrapper: AppWrapper, cluster: str, epoch: int, names: Sequence[ObjectName] = ()
    ) -> SentCopy:
        member, copies = self._usable(cluster)
        if member is None or copies is None:
            why = self._members.trouble(cluster) if self._members is not None else "other clusters are not read yet"
            return SentCopy("unknown", why=why)
        if names:
            return await self._look_bare(member, bare_gang(wrapper, epoch), names)
        found = copies.find(kind, key_of(wrapper))
        if found is None or not self._is_round(copies, found, wrapper, epoch):
            try:
                async with member.turns.turn():
                    found = await copies.look_up(kind, key_of(wrapper))
            except KubeError as error:
                return SentCopy("unknown", why=str(error))
        if found is None or not self._is_round(copies, found, wrapper, epoch):
            return SentCopy("gone")
        if is_stopped(found) and found.status.state not in ENDED:
            return SentCopy("stopped", found)
        return SentCopy("gated" if is_gated(found) else "there", found)

    async def _look_bare(self, member: Member, gang: BareGang, names: Sequence[ObjectName]) -> SentCopy:
        if member.bare is None:
            return SentCopy("unknown", why="AppWrappers are not sent any more")
        try:
            async with member.turns.turn():
                found = await member.bare.find(gang, names)
        except KubeError as error:
            return SentCopy("unknown", why=str(error))
        pods = member.supply.pods.of_gang(gang.uid, self._clock.now()) if member.supply is not None else ()
        if all(one is None for one in found):
            return SentCopy("gone")
        where: Literal["gated", "there"] = "there"
        if any(annotation(one, GATED) for one in found if one is not None):
            where = "gated"
        return SentCopy(where, objects=tuple(found), pods=pods)

    def is_leaving(self, cluster: str) -> bool:
        return self._members is not None and self._members.is_leaving(cluster)

    def holds(self, cluster: str) -> bool:
        """Is an AppWrapper there, or on its way?"""
        return any(one.cluster == cluster for one in self._places.values())

    async def remove(
        self,
        kind: Kind,
        wrapper: AppWrapper,
        cluster: str,
        epoch: int,
        names: Sequence[ObjectName] = (),
        lost: bool = False,
        fence: int = 0,
    ) -> bool:
        member, copies = self._usable(cluster)
        if self._members is None:
            return False
        if member is None or copies is None:
            left = self.until_lost(wrapper, cluster, fence) if lost else None
            given_up = left is not None and left <= 0
            if not wrapper.metadata.deletion_timestamp and self._members.exists(cluster) and not given_up:
                return False  # it may run there: nothing starts a second time
            return await self._members.remember_removal(cluster, wrapper.metadata.uid, epoch)
        if names and member.bare is not None:
            whole = not wrapper.metadata.deletion_timestamp
            async with member.turns.turn():
                return await member.bare.remove(bare_gang(wrapper, epoch), names, whole=whole)
        async with member.turns.turn():
            found = await copies.look_up(kind, key_of(wrapper))
        if found is None or not copies.is_ours(found) or round_of(found)[0] != wrapper.metadata.uid:
            return True
        if found.status.state in ENDED and member.logs is not None:
            await member.logs.taken()
        if not found.metadata.deletion_timestamp:  # before it may start elsewhere, all that it wraps is gone, too
            async with member.turns.turn():
                await copies.delete(kind, found, whole=not wrapper.metadata.deletion_timestamp and not is_gated(found))
        return False

    @staticmethod
    def _is_round(copies: WrapperCopies, found: AppWrapper, wrapper: AppWrapper, epoch: int) -> bool:
        return copies.is_ours(found) and round_of(found) == (wrapper.metadata.uid, epoch)

    def _usable(self, name: str) -> tuple[Member | None, WrapperCopies | None]:
        member = self._members.usable(name) if self._members is not None else None
        return member, member.wrappers if member is not None else None

    def _copies(self, name: str) -> WrapperCopies | None:
        member = self._members.get(name) if self._members is not None else None
        return member.wrappers if member is not None and member.synced else None


def bare_gang(wrapper: AppWrapper, epoch: int) -> BareGang:
    return BareGang(wrapper.metadata.uid, epoch, wrapper.metadata.namespace)


def _excluded(cluster: Json, wanted: ClusterScheduling | None) -> str:
    """As the AppWrapper's `clusterScheduling` restricts it."""
    if wanted is None:
        return ""
    names = [one.name for one in wanted.clusters or ()]
    if names and cluster["metadata"]["name"] not in names:
        return "clusterScheduling.clusters does not name it"
    labels = cluster["metadata"].get("labels") or {}
    try:
        selected = wanted.cluster_selector is None or _selects(wanted.cluster_selector, labels)
    except BadInput as error:
        return str(error)
    return "" if selected else "clusterScheduling.clusterSelector does not match its labels"


def _selects(selector: LabelSelector, labels: dict[str, str]) -> bool:
    return parse_selector(plain(selector), "clusterScheduling.clusterSelector").matches(labels)
