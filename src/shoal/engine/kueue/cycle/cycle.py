"""One scheduling cycle: judge the heads, order them, serve them one by one on one ledger, send back the rest.

Called by `Kueue`. Reads as Kueue's own cycle, without its snapshot: the live quota tree is used, and what is only set
aside for this cycle (room for preemptors, for those without candidates) is taken off again at the end. Never raises
for bad facts.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shoal.engine.kueue.cycle import entry as back
from shoal.engine.kueue.cycle.entry import Entry
from shoal.engine.kueue.cycle.order import classical_order, fair_order
from shoal.engine.kueue.cycle.placing import PlacingStep, place_need, placing_step
from shoal.engine.kueue.cycle.record import QueueRecord
from shoal.engine.kueue.cycle.second_pass import SecondPass
from shoal.engine.kueue.cycle.set_aside import SetAside
from shoal.engine.kueue.cycle.state import FreedQuota, QueueState
from shoal.engine.kueue.decisions import (
    WAITING_FOR_CLUSTERS,
    WAITING_FOR_PREEMPTED,
    Evict,
    QueueDecisions,
    Reserve,
    Shed,
    Wait,
    bounded,
    eviction_message,
)
from shoal.engine.kueue.demand import QueueMember, charge_of
from shoal.engine.kueue.facts import Usage
from shoal.engine.kueue.flavors.assign import Search
from shoal.engine.kueue.flavors.assignment import WAITING_FOR_QUOTA, Assignment, Outcome, shortfalls_of
from shoal.engine.kueue.flavors.shrink import least_reduction
from shoal.engine.kueue.index.reach import Reach
from shoal.engine.kueue.index.waits_for import WaitsFor
from shoal.engine.kueue.preemption.candidates import Victim
from shoal.engine.kueue.preemption.preempt import Preemptor
from shoal.engine.kueue.preemption.taken import TakenVictims
from shoal.engine.kueue.rules import Rules
from shoal.engine.model import PodSetAssignment

STAY_FIRST = (back.AFTER_NOMINATION, back.NO_CANDIDATES)


class QueueCycle:
    def __init__(self, state: QueueState, now: int, number: int, since: int) -> None:
        self.state = state
        self.settings = state.settings
        self.rules = state.rules
        self.now = now
        self.number = number
        self.since = since
        """The first cycle of this plan."""
        self.taken = TakenVictims()
        """Victims chosen so far in this cycle."""
        self.preemptor = Preemptor(state.records, state.settings, self.taken, state.spared_by, state.claimed)
        self.aside = SetAside(state)
        self.reach = Reach(state.records, state.settings)
        """What gangs could get before any is served, beside what is kept for others."""
        self.reserved: list[Reserve] = []
        self.evicted: list[Evict] = []
        self.shed: list[Shed] = []
        self.skipped: dict[str, int] = {}
        self._placed: dict[tuple[str, Assignment], Assignment] = {}
        """By shape and quota: places that were found, as of when heads were nominated, or why there are none."""
        self.puts_off = False
        """Places are sought when a gang's turn comes, not before all others have theirs."""

    def run(self, heads: list[QueueMember]) -> tuple[QueueDecisions, list[Entry]]:
        again = SecondPass(self.state)
        again.run()
        self.aside.keep(heads)
        self.puts_off = self.rules.hides_overtaken
        entries = [self._nominate(member) for member in heads]
        self.state.topologies.mark()
        judged: list[Entry] = [entry for entry in entries if entry.assignment is None]
        for entry in self._ordered([entry for entry in entries if entry.assignment is not None]):
            self.aside.let_go(entry.member.uid)
            self._serve(entry)
            judged.append(entry)
        self.aside.end()
        self.state.topologies.unmark()
        again.end()
        hidden = self.rules.hides_overtaken
        waits = [self._wait(entry) for entry in judged if not entry.admitted and not (hidden and entry.overtaken)]
        decisions = QueueDecisions(
            reserved=tuple(self.reserved),
            evicted=tuple(self.evicted),
            waiting=(*again.waiting, *waits),
            placed=tuple(again.placed),
            displaced=tuple(again.displaced),
            shed=tuple(self.shed),
            skipped_preemptions=self.skipped,
        )
        return decisions, judged

    def trial(self, member: QueueMember) -> Entry:
        """What would be found for this gang alone; the trees are as before afterwards."""
        self.aside.keep([member])
        entry = self._nominate(member)
        self.aside.end()
        return entry

    # Judging.

    def _nominate(self, member: QueueMember) -> Entry:
        """Find an assignment, and victims if it needs them; or say why the gang cannot even be considered."""
        record = self.state.records[member.queue]
        entry = Entry(member, record)
        if member.terms.checks_failed:
            entry.hold("The workload has failed admission checks", "PendingEvaluation", back.GENERIC)
        elif not self.state.namespace_matches(record, member):
            message = "workload namespace doesn't match ClusterQueue selector"
            entry.hold(message, "Misconfigured", back.NAMESPACE_MISMATCH)
        elif member.problem:
            entry.hold(member.problem, "Misconfigured", back.GENERIC)
        elif member.gang.nowhere:
            entry.hold(member.gang.nowhere, WAITING_FOR_CLUSTERS, back.GENERIC)
        elif (room := self.state.rooms.get(member.uid)) is None:
            self._assign(entry)
        else:
            with self.aside.without(member.uid):
                if not self._move_in(entry, room):
                    self._assign(entry)
        return entry

    def _move_in(self, entry: Entry, room: FreedQuota) -> bool:
        """A preemptor whose victims are leaving takes what it evicted them for, as soon as all of it is there.

        A new search for flavors could lead it elsewhere, and the room it freed back to its victims, without end. While
        it only waits for them to end by themselves and there is no other flavor, a search would find no better: that is
        made when it evicts. False when that room is not enough any more.
        """
        if room.node.fits(room.usage) and self.state.topologies.fits(room.uses):
            entry.assignment = room.assignment.fitting()
            return True
        patient = entry.record.has_one_flavor and self.state.is_still_patient(entry.member.uid)
        leaving = self.state.still_leaving(room, patient=patient)
        if patient and not room.uses:
            enough = entry.waits_on = self.aside.has_enough_to_come(entry.member.uid, room.node.root())
        else:
            for victim in leaving:
                victim.leave()
            enough = room.node.fits(room.usage) and self.state.topologies.fits(room.uses)
            for victim in leaving:
                victim.come_back()
        if enough:
            entry.assignment, entry.victims = room.assignment, leaving
            entry.hold(room.assignment.message, WAITING_FOR_QUOTA, back.NO_FIT)
        return enough

    def _assign(self, entry: Entry, nominated: list[dict[str, str]] | None = None) -> None:
        member, record = entry.member, entry.record
        if member.memory is not None and self._is_outdated(member, record):
            member.forget()
        placing = placing_step(member, record, self.settings)
        as_begun = nominated is None and member.uid not in self.state.rooms
        if as_begun and not member.flavors_remain and self._fits_at_once(entry, placing):
            return
        reach = self.reach if as_begun else Reach(self.state.records, self.settings)
        oracle = self.preemptor.oracle(member, self.now, reach)
        search = Search(member, record.fact, record.groups, record.node, self.state.flavors, self.settings, oracle)
        search.nominated = nominated
        search.placing = placing
        whole = search.run()
        victims = self._victims(member, whole, reach)
        stuck = not victims and whole.outcome is not Outcome.FIT
        if stuck and member.flavors_remain and not whole.flavors_remain and self.rules.looks_at_all_flavors:
            smaller = self._shrink(member, search, reach)  # on the flavors behind, before all are looked at again
            whole, victims = smaller or self._from_the_start(member, search, whole, reach)
        if whole.outcome is not Outcome.FIT and not victims:
            whole, victims = self._shrink(member, search, reach) or (whole, victims)
        self._note(entry, whole, victims)

    def _fits_at_once(self, entry: Entry, placing: PlacingStep | None) -> bool:
        """Does it fit, as gangs of its shape are known to? Where it does and needs places in a topology, these are
        sought when its turn comes: of the heads of a cohort most often one only has it."""
        member, record = entry.member, entry.record
        waits_for = record.waits_for(member, self.state.flavors, self.settings)
        if placing is not None and not waits_for.is_open_to(placing):
            return False
        fits = self.reach.fit(record, waits_for, member.priority)
        if fits is None:
            return False
        if placing is not None and self.puts_off and self._may_put_off(entry):
            entry.unplaced = fits
        elif placing is not None:
            fits = placing.judged(fits)
            if fits.outcome is not Outcome.FIT:
                return False
        self._note(entry, fits, [])
        return True

    def _may_put_off(self, entry: Entry) -> bool:
        """Is nothing else to be tried where it finds no places, and nothing kept from others by it?"""
        shrinks = self.settings.partial_admission and entry.member.may_shrink
        return not (entry.record.fact.preemption.may_evict or entry.record.waiting.strict or shrinks)

    def _find_places(self, entry: Entry) -> bool:
        """The places it would have been given when it was nominated. False: others took its quota; none are sought."""
        assert entry.unplaced is not None
        if not self._has_quota(entry):
            self._skip(entry, "Workload no longer fits after processing another workload")
            return False
        if not self.state.topologies.is_as_marked and self._lost_hope(entry):
            entry.overtaken = True
            message = "Workload no longer has places after processing another workload"
            entry.hold(message, WAITING_FOR_QUOTA, back.NO_CANDIDATES)
            return False
        key = (entry.member.shape, entry.unplaced)
        found = self._placed.get(key)
        if found is None:
            with self.state.topologies.as_marked():
                found = PlacingStep(entry.member, entry.record, self.settings).judged(entry.unplaced)
            self._placed[key] = found
        self._take_note(entry, found, [])
        entry.unplaced = None
        return True

    def _lost_hope(self, entry: Entry) -> bool:
        """Has a pod set of it no places any more, whatever it would have found before others were served?"""
        member, record = entry.member, entry.record
        waits_for = record.waits_for(member, self.state.flavors, self.settings)
        need = place_need(member, record, waits_for, self.settings)
        return need is not None and not need.may_be_met(self.state.topologies)

    def _has_quota(self, entry: Entry) -> bool:
        """Is its quota free yet, once all victims have left?"""
        if not self.taken:
            return entry.record.node.fits(entry.usage)
        with self.taken.gone(entry.record.node):
            return entry.record.node.fits(entry.usage)

    def _is_outdated(self, member: QueueMember, record: QueueRecord) -> bool:
        """Is it too long ago that flavors were looked through? As Kueue: when quota came back since, and not just now.
        Otherwise the memory is of this plan only, so that what was decided before makes no difference."""
        if self.rules.looks_at_all_flavors:
            return member.memory_cycle < self.since
        return record.freed > member.memory_generation and self.number > member.memory_cycle + 1

    def _note(self, entry: Entry, assignment: Assignment, victims: list[Victim]) -> None:
        if assignment.outcome is Outcome.PREEMPT:
            placing = placing_step(entry.member, entry.record, self.settings)
            assignment = assignment if placing is None else placing.with_victims(assignment, victims)
        self._take_note(entry, assignment, victims)

    def _take_note(self, entry: Entry, assignment: Assignment, victims: list[Victim]) -> None:
        entry.assignment, entry.victims, entry.waits_on = assignment, victims, False
        entry.hold(assignment.message, assignment.reason or WAITING_FOR_QUOTA, back.NO_FIT)
        member = entry.member
        member.memory = assignment.memory
        member.memory_generation, member.memory_cycle = entry.record.freed, self.number

    def _from_the_start(
        self, member: QueueMember, search: Search, resumed: Assignment, reach: Reach
    ) -> tuple[Assignment, list[Victim]]:
        """Scans that went on from where the last one stopped came to the end and found nothing. As Kueue that is it;
        but what was passed over then may do now, so look at all flavors once before giving up."""
        member.forget()
        whole = search.run()
        victims = self._victims(member, whole, reach)
        better = victims or whole.flavors_remain or whole.outcome is Outcome.FIT
        return (whole, victims) if better else (resumed, [])

    def _shrink(self, member: QueueMember, search: Search, reach: Reach) -> tuple[Assignment, list[Victim]] | None:
        if not self.settings.partial_admission or not member.may_shrink:
            return None

        def attempt(counts: list[int]) -> tuple[Assignment, list[Victim]] | None:
            assignment = search.run(counts)
            victims = self._victims(member, assignment, reach)
            return (assignment, victims) if victims or assignment.outcome is Outcome.FIT else None

        counts = [demand.count for demand in member.demands]
        return least_reduction(counts, [demand.least for demand in member.demands], attempt)

    def _victims(self, member: QueueMember, assignment: Assignment, reach: Reach) -> list[Victim]:
        if assignment.outcome is not Outcome.PREEMPT:
            return []
        placing = placing_step(member, self.state.records[member.queue], self.settings)
        placeable = placing.placeable(assignment) if placing is not None else None
        return self.preemptor.find_victims(
            member, assignment.usage, assignment.needing_room, self.now, reach, placeable
        )

    def _ordered(self, entries: list[Entry]) -> Iterator[Entry]:
        rooms, awaited, leads = self.state.rooms, self.state.awaited, self.rules.leads_awaited

        def first(entry: Entry) -> bool:
            return entry.member.uid in rooms or (leads and entry.member.uid in awaited)

        if self.settings.fair_sharing:
            return fair_order(entries, first, self.settings.gates.share_prefers_lenders)
        return classical_order(entries, first)

    # Serving.

    def _serve(self, entry: Entry) -> None:
        """Serve one entry against everything earlier entries of this cycle took."""
        if entry.unplaced is not None:
            if not self._find_places(entry):
                return
            if entry.outcome is Outcome.FIT and self.state.topologies.is_as_marked and not self.taken:
                self._admit_unless_unready(entry)  # what was found a moment ago is there
                return
        overlaps = any(victim.member.uid in self.taken for victim in entry.victims)
        recomputes = self.settings.gates.recompute_on_overlap
        if overlaps and recomputes:
            if self._fits_after_others(entry):
                return
        elif self.settings.gates.recompute_topology and self._lost_places(entry):
            self._assign(entry, self._nominated(entry))
        if entry.outcome is Outcome.NO_FIT:
            return
        if entry.outcome is Outcome.PREEMPT and not entry.victims:
            entry.back = back.NO_CANDIDATES
            if entry.record.fact.preemption.reclaim_within_cohort != "Any" and self._stays_first(entry):
                self.aside.until_end(entry.record.node, self._waited_for(entry), entry.uses)
            return
        if entry.outcome is Outcome.PREEMPT and entry.member.terms.gated:
            entry.member.forget()
            entry.hold("Workload requires preemption, but it's gated", "AdmissionGated", back.GATED)
            return
        if overlaps and not recomputes:
            self._skip(entry, "Workload has overlapping preemption targets with another workload")
            return
        if not entry.waits_on and not (self._still_fits(entry) and self._may_start_now(entry)):
            self._skip(entry, "Workload no longer fits after processing another workload")
            return
        if entry.outcome is Outcome.PREEMPT:
            self._preempt(entry)
        else:
            self._admit_unless_unready(entry)

    def _admit_unless_unready(self, entry: Entry) -> None:
        if self.settings.wait_for_pods_ready and self.state.unready:
            message = "waiting for all admitted workloads to be in PodsReady condition"
            entry.hold(message, "WaitingForPodsReady", back.AFTER_NOMINATION)
        else:
            self._admit(entry)

    def _stays_first(self, entry: Entry) -> bool:
        """Will it be the head of its queue again? As Kueue, others are kept from what it waits for even if not; that
        holds for one cycle only and makes decisions depend on which gang was looked at when."""
        return entry.record.waiting.strict or not self.rules.only_strict_heads_keep

    def _fits_after_others(self, entry: Entry) -> bool:
        """Its victims were just taken by another. Judge again as if those had left, on the flavors chosen before; if it
        fits then it only has to wait."""
        nominated = self._nominated(entry)
        with self.taken.gone(entry.record.node):
            self._assign(entry, nominated)
        if entry.outcome is not Outcome.FIT:
            return False
        message = (
            "Workload has overlapping preemption targets with another workload,"
            " but will fit after these preemptions complete"
        )
        entry.hold(message, WAITING_FOR_PREEMPTED, back.PENDING_PREEMPTION)
        self.aside.until_end(entry.record.node, entry.usage, entry.uses)
        return True

    def _nominated(self, entry: Entry) -> list[dict[str, str]]:
        """Per pod set, the flavors that were chosen for it."""
        assert entry.assignment is not None
        nominated: list[dict[str, str]] = [{} for _ in entry.member.demands]
        for index, part in enumerate(entry.assignment.pod_sets):
            nominated[index] = {name: choice.flavor for name, choice in part.choices.items()}
        return nominated

    def _still_fits(self, entry: Entry) -> bool:
        if not self.taken and not entry.victims and not (self.state.topologies.flavors and entry.uses):
            return entry.record.node.fits(entry.usage)
        return all(self._fits_now(entry))

    def _lost_places(self, entry: Entry) -> bool:
        """Is its quota free yet, and its places in the topology are taken by an earlier entry?"""
        return bool(self.state.topologies.flavors and entry.uses) and self._fits_now(entry) == (True, False)

    def _fits_now(self, entry: Entry) -> tuple[bool, bool]:
        """Are its quota and its places free, once all victims have left?"""
        with self.taken.gone(entry.record.node, entry.victims):
            return entry.record.node.fits(entry.usage), self.state.topologies.fits(entry.uses)

    def _may_start_now(self, entry: Entry) -> bool:
        """Does it fit beside the victims of others, who hold their quota yet? What their preemptors will have is no
        matter: those wait."""
        if not self.taken or entry.outcome is not Outcome.FIT or not self.rules.starts_on_free_quota:
            return True
        node = entry.record.node
        with self.aside.without_those_that_wait(node.root()):
            return node.fits(entry.usage) and self.state.topologies.fits(entry.uses)

    def _waited_for(self, entry: Entry) -> Usage:
        """What a gang without candidates may keep others from taking while it waits."""
        node, waited = entry.record.node, {}
        for at, amount in entry.usage.items():
            limits = node.limits.get(at)
            room = node.nominal(at) - node.usage.get(at, 0)
            if entry.height > 0:
                borrowing = limits.borrowing if limits is not None else None
                waited[at] = amount if borrowing is None else min(amount, room + borrowing)
            else:
                waited[at] = max(0, min(amount, room))
        return waited

    def _skip(self, entry: Entry, message: str) -> None:
        """Earlier entries were faster. It is looked at again in the next cycle; before that there is nothing to tell,
        though Kueue does."""
        entry.overtaken = True
        entry.hold(message, WAITING_FOR_QUOTA, back.AFTER_NOMINATION)
        if entry.outcome is Outcome.PREEMPT:
            self.skipped[entry.record.name] = self.skipped.get(entry.record.name, 0) + 1

    def _preempt(self, entry: Entry) -> None:
        member = entry.member
        member.forget()  # once victims leave, every flavor deserves another look
        self.aside.until_end(entry.record.node, entry.usage, entry.uses)
        if self.state.is_patient(entry):
            self.taken.add(entry.victims)
            message = f"{entry.message}. Waiting for workloads that it may preempt to end by themselves"
            entry.hold(message, entry.reason, back.PENDING_PREEMPTION)
            self.state.note_preemption(entry, patient=True)
            return
        path = entry.record.node.path()
        for victim in entry.victims:
            self.taken.add([victim])
            if not victim.member.evicted:
                message = eviction_message(
                    member.uid, member.terms.job_uid, victim.reason, path, victim.record.node.path()
                )
                self.evicted.append(
                    Evict(
                        gang=victim.member.key,
                        uid=victim.member.uid,
                        reason=victim.reason,
                        preemptor=member.key,
                        preemptor_uid=member.uid,
                        message=message,
                    )
                )
        entry.preempting = len(entry.victims)
        message = f"{entry.message}. Pending the preemption of {len(entry.victims)} workload(s)"
        entry.hold(message, WAITING_FOR_PREEMPTED, back.PENDING_PREEMPTION)
        self.state.note_preemption(entry)

    def _waits_for_surplus(self, entry: Entry) -> bool:
        """Before a gang gets its quota, what elastic gangs have of it on top has to be gone: tell it to leave, and keep
        the quota for this gang meanwhile."""
        state = self.state
        if not state.surplus:
            return False
        in_the_way, chosen = state.surplus.in_the_way(entry.record.node, entry.usage, state.records)
        if not in_the_way:
            return False
        for uid in chosen:
            filler = state.surplus.fillers.get(uid)
            if filler is not None:
                self._send_off(filler, entry)
                continue
            state.surplus.leaving.add(uid)
            self.shed.append(Shed(pod=uid, preemptor=entry.member.key, preemptor_uid=entry.member.uid))
        self.aside.until_end(entry.record.node, entry.usage, entry.uses)
        entry.preempting = 1
        message = "Waits for pods that elastic jobs have beyond their admission to leave its quota"
        if state.surplus.fillers:
            message = "Waits for workloads that were started by backfill to leave its quota"
        entry.hold(message, WAITING_FOR_PREEMPTED, back.PENDING_PREEMPTION)
        state.note_preemption(entry)
        return True

    def _send_off(self, filler: QueueMember, entry: Entry) -> None:
        """A gang that backfills leaves for one that can start."""
        member = entry.member
        filler.evicted = True
        reason = "InClusterQueue" if filler.queue == member.queue else "InCohortReclamation"
        message = eviction_message(
            member.uid, member.terms.job_uid, reason, entry.record.node.path(),
            self.state.records[filler.queue].node.path(),
        )  # fmt: skip
        self.evicted.append(
            Evict(
                gang=filler.key,
                uid=filler.uid,
                reason=reason,
                preemptor=member.key,
                preemptor_uid=member.uid,
                message=f"{message}; it was started by backfill",
            )
        )

    def _admit(self, entry: Entry) -> None:
        assert entry.assignment is not None
        if self._waits_for_surplus(entry):
            return
        replaced = entry.member.replaced
        assignment, charge = entry.assignment.given, entry.assignment.charge
        if replaced is not None:
            there = {part.name: part for part in replaced.assignment}
            assignment = tuple([_grown(part, there.get(part.name)) for part in assignment])
            charge = charge_of(assignment)
        entry.admitted = True
        self.state.note_reservation(entry, assignment, charge, self.now)
        self.reserved.append(
            Reserve(
                gang=entry.member.key,
                uid=entry.member.uid,
                cluster_queue=entry.record.name,
                assignment=assignment,
                replaces=replaced.key if replaced is not None else "",
            )
        )

    def _wait(self, entry: Entry) -> Wait:
        return Wait(
            gang=entry.member.key,
            uid=entry.member.uid,
            cluster_queue=entry.record.name,
            reason=entry.reason,
            message=bounded(entry.message),
            shortfalls=shortfalls_of(entry.assignment, entry.record.name) if entry.assignment is not None else (),
            preempting=entry.preempting,
        )


def _grown(part: PodSetAssignment, there: PodSetAssignment | None) -> PodSetAssignment:
    """What a pod set was given, with what the slice it replaces has."""
    if there is None:
        return part
    usage = {name: amount + there.usage.get(name, 0) for name, amount in part.usage.items()}
    return msgspec.structs.replace(part, count=part.count + there.count, usage=usage)


def send_back(entry: Entry, record: QueueRecord, waits_for: WaitsFor | None, rules: Rules) -> None:
    """Return a head that was not admitted to its queue: to the heap, or aside until something changes.

    `waits_for`: what its shape asks for, so that it is tried again only when that may be there; None: always.
    """
    waiting, member = record.waiting, entry.member
    if record.waiting.strict:
        at_once = entry.back != back.NAMESPACE_MISMATCH
    else:
        at_once = entry.back in (back.AFTER_NOMINATION, back.PENDING_PREEMPTION)
        if entry.back == back.PENDING_PREEMPTION:
            waiting.sticky = member.uid
        elif waiting.sticky == member.uid and rules.demotes_preemptors and entry.back not in STAY_FIRST:
            waiting.sticky = ""
    if at_once or member.flavors_remain:
        waiting.push(member)
        if waits_for is not None and not waiting.strict:
            waiting.index(member, waits_for)
    elif entry.back in (back.NO_FIT, back.NO_CANDIDATES):
        waiting.push(member)
        waiting.set_inadmissible(member, waits_for)
    else:
        waiting.push(member, inadmissible=True)
