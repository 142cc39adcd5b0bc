"""Where AppWrappers go that may run in other clusters: told to the planning loop as part of their facts.

A gang that a cluster has room for asks for quota alone; one that none has room for holds no quota and is not planned.
When a plan admits several, each gets its cluster in the order of the plan, so that the first in line is the first to
choose; one for which nothing is left waits on. What is not stored yet is remembered here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shoal.api.appwrapper import AppWrapper, dialect
from shoal.api.gang import PREFIX
from shoal.controllers.appwrapper.facts import is_queued_here
from shoal.controllers.appwrapper.status import admission as admissions
from shoal.controllers.appwrapper.v1beta1 import status as statuses
from shoal.controllers.appwrapper.wrapped import templates_of
from shoal.controllers.demand.stopped import why_not_stopped
from shoal.controllers.planning.cluster_line import ClusterLine, LineAnswer
from shoal.controllers.planning.loop import PlanningLoop
from shoal.controllers.planning.observations import NotStored
from shoal.controllers.planning.other_clusters import MemberChoice, OtherClusters, StoredRound
from shoal.engine.model import Gang, Plan

replace = msgspec.structs.replace


class Destinations:
    def __init__(
        self, elsewhere: OtherClusters, planning: PlanningLoop, wrapper_of: Callable[[str], AppWrapper | None]
    ) -> None:
        self._elsewhere, self._planning, self._wrapper_of = elsewhere, planning, wrapper_of
        self.line = ClusterLine(self._ask, elsewhere.room)
        """Gangs that no cluster has room for, those that may run at home included."""
        self._chosen: dict[str, str] = {}
        """Clusters of gangs that are admitted and whose admission is not stored yet, by UID."""
        self.nowhere: set[str] = set()
        """UIDs of those that no cluster has room for."""

    def cluster(self, uid: str) -> str:
        """The cluster that it was given; empty: this one."""
        return self._chosen.get(uid, "")

    def is_away(self, gang: Gang | None) -> bool:
        """Was it told as one that asks for no room here?"""
        return gang is not None and gang.supply == "off"

    def fact(self, wrapper: AppWrapper, gang: Gang) -> Gang:
        """The gang as it is told, its cluster chosen."""
        uid, record = gang.uid, admissions.read(wrapper.status.admission)
        if gang.state in ("admitted", "stopping") and record.cluster:
            self._settle(uid)
            self._elsewhere.keep(gang, record.cluster, record.epoch, record.moving_to)
            return replace(gang, supply="off")
        if uid in self._chosen and self._planning.decisions.admit(gang.key, uid) is not None:
            return replace(gang, supply="off")
        self.forget(uid)
        if gang.state != "waiting" or gang.problem or not is_candidate(wrapper) or not is_queued_here(wrapper):
            return gang
        shape = self._shape(wrapper, gang)
        answer = self.line.answer(shape)
        if answer is None:
            choice = self.choice(wrapper, gang)
            if choice.cluster:
                if record.moving_to:
                    self._elsewhere.keep(gang, choice.cluster, 0)  # its own until it is admitted again
                return replace(gang, supply="off")
            answer = _answer(choice)
        engine = self._planning.engine
        self.line.add(shape, gang, engine.order(gang), answer, lane=None if engine.is_timeless else shape)
        if answer.at_home:
            return gang
        self.nowhere.add(uid)
        return replace(gang, problem=answer.why)

    def _ask(self, gang: Gang, among: frozenset[str] | None) -> LineAnswer | None:
        wrapper = self._wrapper_of(gang.uid)
        return _answer(self.choice(wrapper, gang, among)) if wrapper is not None else None

    def _shape(self, wrapper: AppWrapper, gang: Gang) -> bytes:
        """Equal for gangs of which the same is true, but for their names and age."""
        like = replace(gang, key="", uid="", name="", created_at=0, queued_at=0)
        own = gang.uid if self._elsewhere.is_special(gang.uid) else ""
        said = sorted((wrapper.metadata.annotations or {}).items())
        about = [one for one in said if one[0].startswith(PREFIX)]
        wanted = wrapper.spec.scheduling_spec.cluster_scheduling
        return msgspec.json.encode((like, about, wanted, why_not_stopped(templates_of(wrapper)), own))

    def planned(self, plan: Plan) -> bool:
        """Give each that was admitted its cluster, in the order of the plan. True: look again at those that wait."""
        for admit in plan.admits:
            gang = self._planning.engine.gang(admit.gang)
            wrapper = self._wrapper_of(admit.uid)
            if wrapper is None or gang is None or not self.is_away(gang) or admit.uid in self._chosen:
                continue
            choice = self.choice(wrapper, gang)
            if choice.cluster:
                self._chosen[admit.uid] = choice.cluster
                self._elsewhere.keep(gang, choice.cluster, 0)
            else:
                self._planning.observe([NotStored(gang=admit.gang, uid=admit.uid)])
        return self.line.planned(one.uid for one in plan.admits if one.uid in self._chosen)

    def forget(self, uid: str) -> None:
        self._settle(uid)
        self._elsewhere.forget(uid)

    def _settle(self, uid: str) -> None:
        self._chosen.pop(uid, None)
        self.line.discard(uid)
        self.nowhere.discard(uid)

    def choice(self, wrapper: AppWrapper, gang: Gang, among: frozenset[str] | None = None) -> MemberChoice:
        """Where it would start now. `among`: only these clusters are asked."""
        wanted = wrapper.spec.scheduling_spec.cluster_scheduling
        unstoppable = why_not_stopped(templates_of(wrapper))
        return self._elsewhere.choose(gang, wanted, wrapper.metadata.annotations, unstoppable, among)


def is_candidate(wrapper: AppWrapper) -> bool:
    """Does it go where there is room? Not what another hub sent here."""
    return dialect(wrapper) == "v1beta1" and (wrapper.metadata.labels or {}).get("IsDispatched") != "true"


def stored_round(wrapper: AppWrapper) -> StoredRound:
    """Waiting, or given to a cluster, be it this one: also one that is taken back, or has ended."""
    record = admissions.read(wrapper.status.admission)
    gone = wrapper.metadata.deletion_timestamp or wrapper.status.state in statuses.TERMINAL
    waits = not wrapper.status.can_run and not statuses.is_stopping(wrapper.status) and not gone
    return StoredRound("waits" if waits else "given", record.epoch, record.cluster)


def _answer(choice: MemberChoice) -> LineAnswer:
    starts = bool(choice.cluster)
    return LineAnswer(starts, choice.at_home, "" if starts else said(choice))


def said(choice: MemberChoice) -> str:
    """Every cluster with its reason."""
    parts = [f"{name}: {why}" if name else why for name, why in choice.reasons.items()]
    return f"no cluster takes it now: {'; '.join(parts) or 'the MultiKueueConfig names none'}"
