"""Where gangs of the hub are and could go: one ledger for queued jobs and AppWrappers, which share the members' room.

A gang that was given a member keeps its room and quota there until it is forgotten, whether or not anything of it was
stored or sent yet. Choosing changes nothing. What is needed after a restart is stored with the gangs and told again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from shoal.api.labels import CLUSTER_LOSS
from shoal.api.meta import Json
from shoal.api.objects import annotation
from shoal.controllers.multicluster import words
from shoal.controllers.multicluster.choice import Candidate, ClusterPolicy, chosen, parse_policy
from shoal.controllers.multicluster.loss import Loss, loss_policy
from shoal.controllers.multicluster.member_logs import KeeperFor
from shoal.controllers.multicluster.room import question_of
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.controllers.multicluster.supply import Judgement, MemberSupply, Tier
from shoal.engine.model import Amounts, Gang
from shoal.engine.nodes import demand_of
from shoal.errors import BadInput
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.selectors import label_selector

if TYPE_CHECKING:
    from shoal.controllers.multicluster.hub import Hub
    from shoal.controllers.multicluster.members import Members

HOME = "local"
"""In a MultiKueueConfig: this cluster itself."""
Labels = dict[str, str]


NOT_FENCED = (
    "its loss policy is move, and nothing there stops gangs once this hub is not heard: Shoal must run there, and our "
    "credential must reach Leases in its namespace"
)


class Wishes(msgspec.Struct, frozen=True):
    """What a gang says itself of the clusters that it goes to, by annotations."""

    policy: ClusterPolicy
    required: str = ""
    preferred: str = ""
    loss: Loss = "wait"

    def excludes(self, labels: Labels) -> bool:
        return bool(self.required) and not label_selector(self.required)(labels)

    def prefers(self, labels: Labels) -> bool:
        return bool(self.preferred) and label_selector(self.preferred)(labels)


def wishes_of(annotations: Mapping[str, str] | None, otherwise: str, loss: Loss = "wait") -> Wishes:
    """`otherwise`, `loss`: policies of the settings. Raises BadInput, naming the annotation at fault."""
    found = annotations or {}
    text = found.get(words.POLICY, "")
    try:
        policy = parse_policy(text or otherwise)
    except BadInput as error:
        raise BadInput(f"annotation {words.POLICY}: {error}") from None
    required, preferred = found.get(words.SELECTOR, ""), found.get(words.PREFERRED, "")
    for name, query in ((words.SELECTOR, required), (words.PREFERRED, preferred)):
        try:
            label_selector(query)
        except BadInput as error:
            raise BadInput(f"annotation {name}: {error}") from None
    if preferred and not text and "affinity" not in policy.order:
        policy = msgspec.structs.replace(policy, order=("affinity", *policy.order))
    return Wishes(policy, required, preferred, loss_policy((found.get(CLUSTER_LOSS, ""),), loss))


class Chosen(msgspec.Struct, frozen=True):
    clusters: tuple[str, ...] = ()
    reasons: dict[str, str] = {}
    """Why not, by name of a cluster that was asked."""


class ClusterPlacing:
    """It outlives the hub, which `attach`es itself whenever it starts."""

    def __init__(self, settings: ClusterSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.hub: Hub | None = None
        self.members: Members | None = None
        self._gangs: dict[str, tuple[Gang, tuple[str, ...]]] = {}
        """Gangs that have clusters, by UID."""
        self._counts: dict[str, int] = {}
        self._refused: dict[str, dict[str, tuple[float, str]]] = {}
        """By UID and cluster: until when it is not asked, and why."""
        self._asking: set[asyncio.Task[None]] = set()
        self._listeners: list[Callable[[str], None]] = []
        self._hub_listener: Callable[[str], None] = lambda cluster: None
        self.keeper_for: KeeperFor = lambda client, whose: None
        """Who keeps logs of what runs in a member."""

    def attach(self, hub: Hub, members: Members, room: Callable[[str], None]) -> None:
        """`room` as in `subscribe`, until another hub takes its place."""
        self.hub, self.members, self._hub_listener = hub, members, room

    def subscribe(self, room: Callable[[str], None]) -> None:
        """`room` with the name of a cluster that may have other room than before; an empty one: any."""
        self._listeners.append(room)

    # --- choosing

    def choose(
        self,
        gang: Gang,
        names: tuple[str, ...],
        wishes: Wishes,
        excluded: Callable[[str, Json], str] = lambda name, cluster: "",
    ) -> Chosen:
        """Where it would start now; what it has itself does not stand in its way. `excluded(name, cluster)`: why a
        cluster is none for it, beyond what holds for all."""
        own = self._gangs.get(gang.uid)
        if own is None:
            return self._choose(gang, names, wishes, excluded)
        self.forget(gang.uid)
        try:
            return self._choose(gang, names, wishes, excluded)
        finally:
            self.keep(*own)

    def _choose(
        self, gang: Gang, names: tuple[str, ...], wishes: Wishes, excluded: Callable[[str, Json], str]
    ) -> Chosen:
        reasons: dict[str, str] = {}
        candidates = []
        question = question_of(gang)
        settles = wishes.policy.first_settles
        for at, name in enumerate(names):
            if name == HOME:
                continue
            why = self._unusable(name, gang.uid, wishes, excluded)
            supply = self.supply(name) if not why else None
            judged = supply.judge(gang, question) if supply is not None else Judgement(Tier.SHORT, why)
            if supply is None or judged.tier is Tier.SHORT:
                reasons[name] = judged.why or "it was not reached yet"
                continue
            if settles and judged.tier is Tier.FITS:
                return Chosen((name,), reasons)
            candidates.append(self._candidate(name, at, supply, judged.tier, wishes))
        return Chosen(chosen(candidates, wishes.policy, demand_of(gang.pod_sets)), reasons)

    def is_unsure(self, names: tuple[str, ...]) -> bool:
        """Is there one of which it is not known yet whether it answers?"""
        return self.members is None or any(self.members.is_unsure(name) for name in names)

    def _unusable(self, name: str, uid: str, wishes: Wishes, excluded: Callable[[str, Json], str]) -> str:
        members = self.members
        cluster = members.cluster(name) if members is not None else None
        if members is None or cluster is None:
            return "there is no such MultiKueueCluster"
        if why := excluded(name, cluster):
            return why
        if wishes.excludes(cluster["metadata"].get("labels") or {}):
            return f"its labels do not match {words.SELECTOR}: {wishes.required}"
        if not members.takes_gangs(name, cluster):
            return members.trouble(name)
        if wishes.loss == "move" and not members.fences.holds(name):
            return NOT_FENCED
        refused = self._refused.get(uid)
        until, why = refused.get(name, (0.0, "")) if refused is not None else (0.0, "")
        return why if refused is not None and self.clock.monotonic() < until else ""

    def is_special(self, uid: str) -> bool:
        """Has a cluster refused this very gang?"""
        return uid in self._refused

    def room(self, cluster: str, *, queued: bool) -> Amounts | None:
        """Sums that no gang that starts there exceeds; None: they are not known. `queued`: gangs of a queue, for which
        others may be evicted there."""
        supply = self.supply(cluster)
        return supply.most(queued=queued) if supply is not None else None

    def _candidate(self, name: str, at: int, supply: MemberSupply, tier: Tier, wishes: Wishes) -> Candidate:
        cluster = (self.members.cluster(name) if self.members is not None else None) or {"metadata": {}}
        return Candidate(
            name=name,
            at=at,
            tier=int(tier),
            free=supply.free,
            price=_number(annotation(cluster, words.PRICE), 0.0),
            weight=_number(annotation(cluster, words.WEIGHT), 1.0),
            gangs=self._counts.get(name, 0),
            preferred=wishes.prefers(cluster["metadata"].get("labels") or {}),
        )

    # --- the ledger

    def keep(self, gang: Gang, clusters: tuple[str, ...]) -> None:
        """Room in these clusters is this gang's from now on, and in no others."""
        before = self._gangs.get(gang.uid)
        if before is not None and before[1] == clusters:
            return
        self.forget(gang.uid)
        self._gangs[gang.uid] = (gang, clusters)
        for name in clusters:
            self._counts[name] = self._counts.get(name, 0) + 1
            if (supply := self.supply(name)) is not None:
                supply.keep(gang)

    def forget(self, uid: str) -> None:
        """It holds no room anywhere."""
        known = self._gangs.pop(uid, None)
        for name in known[1] if known is not None else ():
            self._counts[name] -= 1
            if (supply := self.supply(name)) is not None:
                supply.release(uid)

    def gang(self, uid: str) -> Gang | None:
        """As it was kept."""
        known = self._gangs.get(uid)
        return known[0] if known is not None else None

    def refuse(self, uid: str, cluster: str, why: str) -> None:
        """This cluster is not chosen again for this gang for a while."""
        seconds = self.settings.refused_seconds
        self._refused.setdefault(uid, {})[cluster] = (self.clock.monotonic() + seconds, why)
        task = asyncio.get_running_loop().create_task(self._ask_again(uid, cluster, seconds))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask_again(self, uid: str, cluster: str, seconds: float) -> None:
        await self.clock.sleep(seconds)
        refused = self._refused.get(uid, {})
        if refused.get(cluster, (0.0, ""))[0] <= self.clock.monotonic():
            refused.pop(cluster, None)
            if not refused:
                self._refused.pop(uid, None)
        self.room_changed(cluster)

    # --- members that change

    def member_changed(self, name: str) -> None:
        """It is there, or not any more: what is kept there is told to it."""
        supply = self.supply(name)
        for gang, clusters in self._gangs.values() if supply is not None else ():
            if name in clusters and supply is not None:
                supply.keep(gang)
        self.room_changed(name)

    def room_changed(self, cluster: str = "") -> None:
        """This one may have other room than before; an empty name: any."""
        for tell in (*self._listeners, self._hub_listener):
            tell(cluster)

    def supply(self, name: str) -> MemberSupply | None:
        member = self.members.get(name) if self.members is not None else None
        return member.supply if member is not None and member.synced else None


def _number(text: str, otherwise: float) -> float:
    try:
        found = float(text)
    except ValueError:
        return otherwise
    return found if found >= 0 else otherwise
