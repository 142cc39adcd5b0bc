"""What one member could start now of the hub's gangs: its room and its quota, less what was just sent there.

Asked for every choice, so equal questions are answered once until something changes. Reads only.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import msgspec

from shoal.controllers.multicluster.member_pods import CopyOf, MemberPods
from shoal.controllers.multicluster.member_quota import MemberQuota
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.engine.model import Amounts, Gang
from shoal.engine.nodes import demand_of
from shoal.kube.awaited import Awaited
from shoal.kube.client import Client
from shoal.kube.clock import Clock


class Tier(IntEnum):
    """How well a member does for a gang, best first."""

    FITS = 0
    PREEMPTS = 1
    """It would start it by evicting gangs of lower priority that it has from this hub."""
    UNKNOWN = 2
    """Its nodes may not be read: its own queue judges."""
    SHORT = 3


class Judgement(msgspec.Struct, frozen=True):
    tier: Tier
    why: str = ""
    """Of a member that is short: of what."""


class MemberSupply:
    """`changed()` tells of other room or quota."""

    def __init__(
        self,
        client: Client,
        settings: ClusterSettings,
        clock: Clock,
        awaited: Awaited,
        copy_of: CopyOf,
        changed: Callable[[], None],
    ) -> None:
        self._changed = changed
        self._kept: dict[str, Gang] = {}
        self._judged: dict[tuple[bytes, str, str, int], Judgement] = {}
        self.pods = MemberPods(client, settings, clock, awaited, copy_of, self._forget_judgements)
        self.quota = (
            MemberQuota(client, settings, clock, awaited, self._forget_judgements) if settings.chooses else None
        )
        self.caches = [*self.pods.caches, *(self.quota.caches if self.quota is not None else ())]

    def subscribe(self) -> None:
        self.pods.subscribe()
        if self.quota is not None:
            self.quota.subscribe()

    @property
    def is_known(self) -> bool:
        return self.pods.room.is_known

    @property
    def free(self) -> Amounts:
        return self.pods.room.free if self.is_known else {}

    def most(self, *, queued: bool) -> Amounts | None:
        """Sums that no gang that starts here exceeds; None: they are not known. `queued`: gangs of a queue, for which
        others may be evicted here."""
        if not self.is_known or (queued and self.quota is not None and self.quota.may_evict):
            return None
        return self.free

    def keep(self, gang: Gang) -> None:
        """Its room and quota here are this gang's from now on."""
        self._kept[gang.uid] = gang
        self.pods.room.keep(gang)
        if self.quota is not None and gang.queue:
            self.quota.keep(gang)
        self._judged.clear()

    def release(self, uid: str) -> None:
        if self._kept.pop(uid, None) is None:
            return
        self.pods.room.release(uid)
        if self.quota is not None:
            self.quota.release(uid)
        self._judged.clear()

    def judge(self, gang: Gang, question: bytes) -> Judgement:
        """`question`: what `question_of` says of it."""
        key = (question, gang.namespace, gang.queue, gang.priority)
        if key not in self._judged:
            self._judged[key] = self._judge(gang, question)
        return self._judged[key]

    def _judge(self, gang: Gang, question: bytes) -> Judgement:
        quota = self.quota.answer(gang) if self.quota is not None and gang.queue else None
        room = self.pods.room.shortage(gang, question) if self.is_known else ""
        short = (quota.short if quota is not None else "") or room
        if short:
            evicting = quota is not None and quota.preempts and self._would_by_evicting(gang)
            return Judgement(Tier.PREEMPTS) if evicting else Judgement(Tier.SHORT, short)
        return Judgement(Tier.FITS if self.is_known else Tier.UNKNOWN)

    def _would_by_evicting(self, gang: Gang) -> bool:
        """Would it do, by sums, without the hub's gangs of lower priority here?"""
        lower = {uid: one for uid, one in self._kept.items() if one.priority < gang.priority and one.queue}
        if not lower or self.quota is None or self.quota.answer(gang, lower).short:
            return False
        free = dict(self.free)
        for one in lower.values():
            for resource, many in demand_of(one.pod_sets).items():
                free[resource] = free.get(resource, 0) + many
        return all(many <= free.get(resource, 0) for resource, many in demand_of(gang.pod_sets).items())

    def _forget_judgements(self) -> None:
        self._judged.clear()
        self._changed()
