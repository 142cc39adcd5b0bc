"""From what is known of a gang to the answer that is stored, in words and names that the asker may read.

Pure. `names` says which gangs may be named; all others are counted. Bounded, whatever the size of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from shoal.api.quantity import show
from shoal.api.questions import AnswerShortfall, LeastIncrease, MadeFrom, QuestionStatus
from shoal.controllers.naming import KnownAs, in_plain_words, keys_in, plain_key, without_names
from shoal.controllers.questions.subject import Subject
from shoal.engine.kueue import Places
from shoal.engine.model import Explanation, Shortfall

MOST_NAMED = 20
MOST_LOOKED_AT = 100
"""Gangs of one list for which it is asked whether they may be named."""
MOST_SHORTFALLS = 8
LONGEST = 2000
NODE_SHORTFALLS = frozenset({"aggregate", "fragmentation", "selector", "taint", "affinity", "ports"})
_REASONS = {
    "quota": "Quota",
    "order": "Order",
    "stopping": "Preempting",
    "obtaining": "NodesToCome",
    "bad-fact": "Misconfigured",
}

Printable = Callable[[str, int], str]


class Naming(msgspec.Struct, frozen=True, kw_only=True):
    """How gangs are called, and which of them the asker may know by name."""

    known_as: KnownAs
    names: Callable[[str], bool]
    """Asked with the key that people know."""
    by: str
    printable: Printable

    def words(self, text: str, longest: int = LONGEST) -> str:
        return self.printable(without_names(in_plain_words(text, self.known_as), self.names), longest)

    def named(self, keys: Iterable[str]) -> tuple[tuple[str, ...], int, int]:
        """Those that may be named, how many may not, and how many more there are."""
        known = self.known(keys)
        first = known[:MOST_LOOKED_AT]
        chosen = [key for key in first if self.names(key)]
        shown = chosen[:MOST_NAMED]
        return tuple(shown), len(first) - len(chosen), len(known) - len(first) + len(chosen) - len(shown)

    def known(self, keys: Iterable[str]) -> list[str]:
        """As people know them, each once."""
        return list(dict.fromkeys(plain_key(self.known_as(key)) for key in keys))


def keys_of(subject: Subject, explanation: Explanation | None, others: Iterable[str]) -> list[str]:
    """Every gang that the answer could name, as the engine knows it."""
    said = subject.hold.explanation.message if subject.hold is not None else ""
    found = [*keys_in(subject.message), *keys_in(said)]
    if explanation is not None:
        found += [*explanation.holders[:MOST_LOOKED_AT], *others, *explanation.release[:MOST_LOOKED_AT]]
        found += keys_in(explanation.message)
        found += [key for one in explanation.shortfalls for key in keys_in(one.message)]
    return list(dict.fromkeys(found))


def answer(
    subject: Subject,
    explanation: Explanation | None,
    places: Places | None,
    others: Iterable[str],
    naming: Naming,
    made_from: MadeFrom,
) -> QuestionStatus:
    """`others`: pods of no gang that hold what is short."""
    status = QuestionStatus(
        made_from=made_from,
        state=subject.state,
        reason=subject.reason,
        message=naming.words(subject.message),
        uid=subject.uid,
        local_queue=subject.local_queue,
        cluster_queue=subject.cluster_queue,
        pending_pods=subject.pending_pods or None,
        named_by=naming.by,
    )
    if places is not None:
        status = msgspec.structs.replace(
            status,
            cluster_queue=places.cluster_queue,
            position=places.position,
            queue_length=places.length,
            local_position=places.local_position,
            local_queue_length=places.local_length,
        )
    if explanation is None:
        return status
    holders, hidden, more = naming.named([*explanation.holders, *others])
    release, release_hidden, more_release = naming.named(explanation.release)
    increase = explanation.least_increase
    status = msgspec.structs.replace(
        status,
        shortfalls=tuple(_short(one, naming) for one in explanation.shortfalls[:MOST_SHORTFALLS]) or None,
        holders=holders or None,
        holders_hidden=hidden,
        more_holders=more,
        release=release or None,
        release_hidden=release_hidden,
        more_release=more_release,
        least_increase=None
        if increase is None
        else LeastIncrease(
            place=increase.place, amounts={name: show(name, value) for name, value in increase.amounts.items()}
        ),
        cluster_too_small=_is_hopeless(explanation),
    )
    if subject.settled:
        return status
    if places is None:
        length = max(explanation.position, explanation.queue_length)
        status = msgspec.structs.replace(status, position=explanation.position, queue_length=length)
    said = subject.hold.explanation.message if is_preempting(subject) and subject.hold is not None else ""
    return msgspec.structs.replace(
        status,
        reason=reason_of(subject, explanation),
        message=naming.words(said or explanation.message or subject.message),
    )


def is_preempting(subject: Subject) -> bool:
    return subject.hold is not None and subject.hold.reason == "preempting"


def reason_of(subject: Subject, explanation: Explanation) -> str:
    """One stable word for what keeps it."""
    if is_preempting(subject):
        return "Preempting"
    if not explanation.shortfalls:
        return "Preempting" if explanation.holders else "Order"
    return _REASONS.get(explanation.shortfalls[0].kind, "Room")


def _is_hopeless(explanation: Explanation) -> bool:
    """The end of no gang would make room, and no quota is in the way: the nodes themselves do not suffice."""
    kinds = {one.kind for one in explanation.shortfalls}
    return bool(kinds) and not explanation.release and kinds <= NODE_SHORTFALLS


def _short(shortfall: Shortfall, naming: Naming) -> AnswerShortfall:
    name = "pods" if shortfall.kind == "fragmentation" else shortfall.resource  # how many of them find no node
    amounts = (shortfall.needed, shortfall.available, shortfall.missing)
    needed, available, missing = (show(name, value) for value in amounts) if name else ("", "", "")
    return AnswerShortfall(
        kind=shortfall.kind,
        resource=name,
        needed=needed,
        available=available,
        missing=missing,
        place=shortfall.place,
        message=naming.words(shortfall.message, 300),
    )
