"""The gang that a preempted one makes way for, as it is stored: whole within a namespace, as a mark across namespaces.

A restarted controller must know for which gang it was that another left, so that is stored with the one that left, and
read by users of its namespace. They may not be allowed to know the UID of a gang elsewhere: they see a digest, from
which no UID can be found, and which the loop, knowing all gangs, takes back to one. Facts come in any order: a gang
whose preemptor is not told yet is told again with it. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from shoal.controllers.planning.naming import namespace_of
from shoal.engine.model import Gang, Preempt

MARK = "sha256:"
_IDS = re.compile(r"\(UID: [^,()]*, JobUID: [^,()]*\)")
UNKNOWN = "(UID: UNKNOWN, JobUID: UNKNOWN)"
"""Kueue's own words for ids that it does not know."""


def stored_preemptor(preempt: Preempt, namespace: str) -> str:
    """What is stored with a gang of this namespace about the one that it makes way for."""
    uid = preempt.preemptor_uid
    return uid if not uid or namespace_of(preempt.preemptor) == namespace else _mark(uid)


def told_preemptor(preempt: Preempt, namespace: str) -> str:
    """Its message for people of this namespace."""
    return preempt.message if namespace_of(preempt.preemptor) == namespace else _IDS.sub(UNKNOWN, preempt.message)


class Preemptors:
    """From marks back to UIDs, for all gangs that were told."""

    def __init__(self, known: Callable[[], Iterable[str]]) -> None:
        """`known`: UIDs of all gangs that were told. Marks are rare where no gang evicts one of another namespace:
        before the first of them none is worked out."""
        self._known = known
        self._is_asked = False
        self._marks: dict[str, str] = {}
        self._uids: dict[str, str] = {}
        self._open: dict[str, dict[str, Gang]] = {}
        """By mark, gangs that make way for one that was not told yet, by key."""

    def resolved(self, gang: Gang) -> Gang:
        """The gang with the UID that its mark stands for; while that is not known, it leaves for an unknown gang."""
        mark = gang.stopping_for
        if self._open:  # what was told of it before holds no more
            self._close(gang.key)
        if not mark.startswith(MARK):
            return gang
        if not self._is_asked:
            self._is_asked = True
            for known in self._known():
                self._note(known)
        uid = self._uids.get(mark)
        if uid is None:
            self._open.setdefault(mark, {})[gang.key] = gang
            return gang
        return replace(gang, stopping_for=uid)

    def learnt(self, gang: Gang) -> Iterable[Gang]:
        """Gangs that make way for this one and were told before it."""
        if not self._is_asked or gang.uid in self._marks:
            return ()
        return tuple(self._open.pop(self._note(gang.uid), {}).values())

    def _note(self, uid: str) -> str:
        mark = self._marks[uid] = _mark(uid)
        self._uids[mark] = uid
        return mark

    def forget(self, key: str, uid: str) -> None:
        self._uids.pop(self._marks.pop(uid, ""), None)
        self._close(key)

    def _close(self, key: str) -> None:
        for mark in [mark for mark, gangs in self._open.items() if gangs.pop(key, None) and not gangs]:
            del self._open[mark]


def _mark(uid: str) -> str:
    return MARK + hashlib.sha256(uid.encode()).hexdigest()[:32]
