"""AppWrappers of v1beta1 in other clusters, as in MCAD's dispatcher mode: what the AppWrapper controller asks for.

It decides which gang is next and stores what it was given; here a member is chosen by its room, the copy is made,
looked at and removed. Nothing of this is remembered beyond what is stored with the AppWrapper and in the members.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from shoal.api.appwrapper import AppWrapper, ClusterScheduling
from shoal.api.codec import plain
from shoal.api.kind import Kind
from shoal.api.meta import Json, LabelSelector
from shoal.api.objects import key_of
from shoal.controllers.multicluster.hub import Hub
from shoal.controllers.multicluster.member import Member, RefusedByMember
from shoal.controllers.multicluster.placing import HOME, ClusterPlacing, wishes_of
from shoal.controllers.multicluster.wrapper_copies import KINDS, WrapperCopies, round_of
from shoal.controllers.planning.other_clusters import MemberChoice, Sent, SentCopy
from shoal.engine.model import Gang
from shoal.engine.nodes import parse_selector
from shoal.errors import BadInput
from shoal.kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid, KubeError, NotFound

if TYPE_CHECKING:
    from shoal.controllers.multicluster.members import Members

log = logging.getLogger(__name__)


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
        self._changed: Callable[[str], None] = lambda uid: None

    @property
    def admit_seconds(self) -> float:
        return self._settings.admit_seconds

    @property
    def _hub(self) -> Hub | None:
        return self.placing.hub

    @property
    def _members(self) -> Members | None:
        return self.placing.members

    def subscribe(self, room: Callable[[], None], changed: Callable[[str], None]) -> None:
        self.placing.subscribe(room)
        self._changed = changed

    # --- choosing

    def choose(
        self, gang: Gang, wanted: ClusterScheduling | None, annotations: Mapping[str, str] | None = None
    ) -> MemberChoice:
        names = self._hub.clusters_in(self._settings.app_wrappers) if self._hub is not None else None
        if names is None:
            return MemberChoice(reasons={"": f"there is no MultiKueueConfig {self._settings.app_wrappers}"})
        try:
            wishes = wishes_of(annotations, self._settings.policy)
        except BadInput as error:
            return MemberChoice(reasons={"": str(error)})
        found = self.placing.choose(gang, names, wishes, lambda name, cluster: self._excluded(name, cluster, wanted))
        name = found.clusters[0] if found.clusters else ""
        at_home = HOME in names and not name and not self.placing.is_unsure(names)
        return MemberChoice(cluster=name, at_home=at_home, reasons=found.reasons)

    def _excluded(self, name: str, cluster: Json, wanted: ClusterScheduling | None) -> str:
        if why := _excluded(cluster, wanted):
            return why
        copies = self._copies(name)
        served = copies is None or any(copies.takes(kind) for kind in KINDS)
        return "" if served else "it serves no AppWrappers: install Shoal there"

    def keep(self, gang: Gang, cluster: str, epoch: int) -> None:
        self._places[gang.uid] = StoredPlace(cluster, epoch)
        self.placing.keep(gang, (cluster,))

    def forget(self, uid: str) -> None:
        self._places.pop(uid, None)
        self.placing.forget(uid)

    def refuse(self, uid: str, cluster: str, why: str) -> None:
        self.placing.refuse(uid, cluster, why)

    # --- members that change

    def member_changed(self, name: str) -> None:
        """It is there, or not any more: its gangs are looked at."""
        for uid, place in [*self._places.items()]:
            if place.cluster == name:
                self._changed(uid)

    def heard(self, name: str, copy: AppWrapper) -> None:
        """Something of an AppWrapper changed in this member."""
        if self._members is not None and self._is_stale(name, copy):
            self._members.look_again(name)
        self._changed(round_of(copy)[0])

    async def sweep(self, name: str) -> None:
        """Remove copies of rounds that are over, and those whose removal is owed."""
        members, copies = self._members, self._copies(name)
        if members is None or copies is None or members.usable(name) is None:
            return
        for kind, found in copies.every():
            if not found.metadata.deletion_timestamp and self._is_stale(name, found):
                await copies.delete(kind, found)

    def _is_stale(self, name: str, found: AppWrapper) -> bool:
        uid, epoch = round_of(found)
        owed = self._members.removed_up_to(name, uid) if self._members is not None else None
        place = self._places.get(uid)
        if owed is not None and epoch <= owed:
            return True
        return place is not None and place.epoch > 0 and (epoch < place.epoch or place.cluster != name)

    # --- copies

    async def send(self, kind: Kind, wrapper: AppWrapper, cluster: str, epoch: int) -> Sent:
        member, copies = self._usable(cluster)
        if member is None or copies is None or self._hub is None:
            return Sent("later")
        try:
            if why := await self._hub.rights.refusal(kind, plain(wrapper)):
                return Sent("refused", why)
            await member.check_way(wrapper.metadata.namespace, self._settings.app_wrapper_namespaces)
            if not copies.takes(kind):
                return Sent("refused", f"it serves no {kind.kind} in {kind.api_version}")
            return await self._create(copies, kind, wrapper, epoch)
        except (RefusedByMember, Invalid, Forbidden, BadRequest, NotFound) as error:
            return Sent("refused", str(error))
        except KubeError as error:
            log.info("cluster %s: AppWrapper %s: %s", cluster, key_of(wrapper), error)
            return Sent("later", str(error))

    async def _create(self, copies: WrapperCopies, kind: Kind, wrapper: AppWrapper, epoch: int) -> Sent:
        try:
            await copies.create(kind, wrapper, epoch)
            log.info("AppWrapper %s is sent, round %d", key_of(wrapper), epoch)
        except AlreadyExists:
            found = await copies.look_up(kind, key_of(wrapper))
            if found is None:
                return Sent("later")
            if not copies.is_ours(found) or round_of(found)[0] != wrapper.metadata.uid:
                said = f"AppWrapper {key_of(wrapper)} exists there and is not this hub's; it is left alone"
                return Sent("refused", said)
            if round_of(found)[1] != epoch:
                await copies.delete(kind, found)
                return Sent("later")
        return Sent("done")

    async def look(self, kind: Kind, wrapper: AppWrapper, cluster: str, epoch: int) -> SentCopy:
        member, copies = self._usable(cluster)
        if member is None or copies is None:
            why = self._members.trouble(cluster) if self._members is not None else "other clusters are not read yet"
            return SentCopy("unknown", why=why)
        found = copies.find(kind, key_of(wrapper))
        if found is None or not self._is_round(copies, found, wrapper, epoch):
            try:
                found = await copies.look_up(kind, key_of(wrapper))
            except KubeError as error:
                return SentCopy("unknown", why=str(error))
        if found is None or not self._is_round(copies, found, wrapper, epoch):
            return SentCopy("gone")
        return SentCopy("there", found)

    def is_leaving(self, cluster: str) -> bool:
        return self._members is not None and self._members.is_leaving(cluster)

    def holds(self, cluster: str) -> bool:
        """Is an AppWrapper there, or on its way?"""
        return any(one.cluster == cluster for one in self._places.values())

    async def remove(self, kind: Kind, wrapper: AppWrapper, cluster: str, epoch: int) -> bool:
        member, copies = self._usable(cluster)
        if self._members is None:
            return False
        if member is None or copies is None:
            if not wrapper.metadata.deletion_timestamp and self._members.exists(cluster):
                return False  # it may run there: nothing starts a second time
            return await self._members.remember_removal(cluster, wrapper.metadata.uid, epoch)
        found = await copies.look_up(kind, key_of(wrapper))
        if found is None or not copies.is_ours(found) or round_of(found)[0] != wrapper.metadata.uid:
            return True
        if not found.metadata.deletion_timestamp:
            await copies.delete(kind, found)
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
