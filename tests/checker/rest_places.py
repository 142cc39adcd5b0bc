"""I52: the position that a gang is told is its place in a plain order of those who wait.

A stored text must be true now. An answer to a Question speaks of the moment when it was given: it is judged where the
line is as long as was said and has not changed since.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.checker.gang_world import Seen
from tests.checker.rest_found import Found
from tests.checker.rest_objects import SECOND, Json, Rules, Stored, condition, is_leaving, moment, uid_of
from tests.checker.rest_quota import describe, holds_quota
from tests.checker.rest_waiting import Waiting
from tests.checker.rest_wrappers import Wrappers

POSITION = re.compile(r"\bposition (\d+)(?: of (\d+))?")
PLAIN = ("priority", "strict-priority", "backfill", "fifo")
"""Policies whose order is that of priority and age, whatever the moment."""
Line = list[tuple[str, int]]
"""UIDs of those who wait, the first first, each with the moment of the last change of it."""


class Places:
    def __init__(self, stored: Stored, rules: Rules, waiting: Waiting, wrappers: Wrappers, found: Found) -> None:
        self.stored = stored
        self.rules = rules
        self.waiting = waiting
        self.wrappers = wrappers
        self.found = found

    def judge(self) -> Iterator[str]:
        if self.rules.wrappers:
            for gang in self.wrappers.gangs:
                if gang.is_waiting:
                    name, said = f"AppWrapper {gang.name}", str(gang.status.get("message") or "")
                    yield from self._text(name, gang.uid, said, self._wrappers_line())
        if self.rules.queues:
            for one in self.waiting.gangs.all:
                said = str(condition(one, "QuotaReserved").get("message") or "")
                if not holds_quota(one):
                    yield from self._text(describe(one), uid_of(one), said, self._queue_line(one))
        for question in self.stored.all("questions"):
            yield from self._answer(question)

    def _text(self, name: str, uid: str, said: str, line: Line | None) -> Iterator[str]:
        for position, length in POSITION.findall(said):
            if line is None or uid not in [one for one, _ in line]:
                self.found.doubt(name, "whether its position is the one that it is told")
                return
            place = 1 + [one for one, _ in line].index(uid)
            if int(position) != place or (length and int(length) != len(line)):
                yield f"I52: {name} is told {said!r}, and it is at position {place} of {len(line)}"

    def _answer(self, question: Json) -> Iterator[str]:
        status, target = question.get("status") or {}, (question.get("spec") or {}).get("target") or {}
        position, length = int(status.get("position") or 0), int(status.get("queueLength") or 0)
        if not position:
            return
        name = f"{target.get('kind')} {target.get('name')}"
        line = self._line_of(str(status.get("uid") or ""), target, question["metadata"].get("namespace", ""))
        if line is None:
            return  # it waits no more
        uids = [one for one, _ in line[0]]
        place = 1 + uids.index(line[1])
        if (position, length) == (place, len(uids)):
            return
        answered = moment((status.get("madeFrom") or {}).get("at") or status.get("answeredAt"))
        newest = max(changed for _, changed in line[0])
        if length != len(uids) or newest + SECOND > answered:
            return  # the line has changed since, and what it was is not stored
        yield f"I52: {name} was told position {position} of {length}, and it is at position {place} of {len(uids)}"

    def _line_of(self, uid: str, target: Json, namespace: str) -> tuple[Line, str] | None:
        """Who waits where the gang does, and its UID there; None where it does not wait, or the order is not plain."""
        gang = next((one for one in self.wrappers.gangs if one.uid == uid and one.is_waiting), None)
        if gang is not None:
            line = self._wrappers_line()
            return (line, uid) if line is not None and uid in [one for one, _ in line] else None
        workload = self.waiting.gangs.of_job.get(uid)
        if workload is None or holds_quota(workload) or is_leaving(workload):
            return None
        line = self._queue_line(workload)
        own = uid_of(workload)
        return (line, own) if line is not None and own in [one for one, _ in line] else None

    def _queue_line(self, workload: Json) -> Line | None:
        gangs = self.waiting.gangs
        queue = gangs.cluster_queue(workload)
        if queue is None:
            return None
        name = queue["metadata"]["name"]
        line = [
            one
            for one in gangs.all
            if not holds_quota(one)
            and (gangs.cluster_queue(one) or {"metadata": {"name": ""}})["metadata"]["name"] == name
            and gangs.why_not_considered(one) not in ("inactive", "gated", "no queue", "held")
        ]
        return [(uid_of(one), _changed(one)) for one in sorted(line, key=gangs.order)]

    def _wrappers_line(self) -> Line | None:
        if self.rules.policy not in PLAIN or self._waits_for_room():
            return None
        line = sorted((one for one in self.wrappers.gangs if one.is_waiting), key=self.wrappers.order)
        return [(one.uid, _seen(one)) for one in line]

    def _waits_for_room(self) -> bool:
        """Queued gangs that have quota stand in the same line for room."""
        return any(holds_quota(one) and not is_admitted(one) for one in self.waiting.gangs.all)


def is_admitted(workload: Json) -> bool:
    return bool(condition(workload, "Admitted").get("status") == "True")


def _changed(obj: Json) -> int:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    moments = [moment(one.get("lastTransitionTime")) for one in conditions]
    return max([moment(obj["metadata"].get("creationTimestamp")), *moments])


def _seen(gang: Seen) -> int:
    return max(moment(gang.first), _changed(gang.obj))
