"""From what is known of a gang to the answer that is stored, in words and names that the asker may read.

Pure. `names` says which gangs may be named; all others are counted. Bounded, whatever the size of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from shoal.api.quantity import show
from shoal.api.questions import AnswerShortfall, LeastIncrease, MadeFrom, NewNodes, QuestionStatus, Together
from shoal.controllers.planning.naming import KnownAs, in_plain_words, keys_in, plain_key, without_names
from shoal.controllers.planning.questions.subject import QuestionSubject
from shoal.controllers.planning.shortfalls import fields_of
from shoal.engine import model
from shoal.engine.kueue import Places
from shoal.engine.model import Amounts, Explanation, QuotaIncrease, Shortfall

MOST_NAMED = 20
MOST_LOOKED_AT = 100
"""Gangs of one list for which it is asked whether they may be named."""
MOST_SHORTFALLS = 8
LONGEST = 2000
_REASONS: dict[str, str] = {
    "quota": "Quota",
    "resources": "Room",
    "order": "Order",
    "preempting": "Preempting",
    "obtaining": "NodesToCome",
    "bad-fact": "Misconfigured",
    "held": "Held",
    "backing-off": "Backoff",
    "starting": "Starting",
}

Printable = Callable[[str, int], str]


class Naming(msgspec.Struct, frozen=True, kw_only=True):
    """How gangs are called, and which of them the asker may know by name."""

    known_as: KnownAs
    names: Callable[[str], bool]
    """Asked with the key that people know."""
    by: str
    printable: Printable
    called: Callable[[str], str] = plain_key
    """What stands in a list for a gang that may be named."""

    def words(self, text: str, longest: int = LONGEST) -> str:
        return self.printable(without_names(in_plain_words(text, self.known_as), self.names), longest)

    def named(self, keys: Iterable[str]) -> tuple[tuple[str, ...], int, int]:
        """Those that may be named, how many may not, and how many more there are."""
        known = list(dict.fromkeys(self.known_as(key) for key in keys))
        first = known[:MOST_LOOKED_AT]
        chosen = [key for key in first if self.names(plain_key(key))]
        shown = [self.called(key) for key in chosen[:MOST_NAMED]]
        return tuple(shown), len(first) - len(chosen), len(known) - len(first) + len(chosen) - len(shown)


def keys_of(subject: QuestionSubject, explanation: Explanation | None, others: Iterable[str]) -> list[str]:
    """Every gang that the answer could name, as the engine knows it."""
    said = subject.hold.explanation.message if subject.hold is not None else ""
    found = [*keys_in(subject.message), *keys_in(said)]
    if explanation is not None:
        found += [*explanation.holders[:MOST_LOOKED_AT], *others, *explanation.release[:MOST_LOOKED_AT]]
        found += keys_in(explanation.message)
        found += [key for one in explanation.shortfalls for key in keys_in(one.message)]
    return list(dict.fromkeys(found))


def answer(
    subject: QuestionSubject,
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
    status = msgspec.structs.replace(
        status,
        shortfalls=tuple(_short(one, naming) for one in explanation.shortfalls[:MOST_SHORTFALLS]) or None,
        holders=holders or None,
        holders_hidden=hidden,
        more_holders=more,
        release=release or None,
        release_hidden=release_hidden,
        more_release=more_release,
        release_measure=explanation.release_measure if explanation.release else "",
        least_increase=_increase(explanation.least_increase) if explanation.least_increase else None,
        new_nodes=_nodes(explanation.new_nodes) if explanation.new_nodes else None,
        together=_together(explanation.together) if explanation.together else None,
        starts_by_itself=explanation.starts_by_itself,
        not_explored=not explanation.explored,
        cluster_too_small=explanation.too_large,
    )
    if subject.settled:
        return status
    if places is None:
        length = max(explanation.position, explanation.queue_length)
        status = msgspec.structs.replace(
            status,
            position=explanation.position,
            queue_length=length,
            local_position=explanation.own_position,
            local_queue_length=explanation.own_queue_length,
        )
    said = subject.hold.explanation.message if is_preempting(subject) and subject.hold is not None else ""
    return msgspec.structs.replace(
        status,
        reason=reason_of(subject, explanation),
        message=naming.words(said or explanation.message or subject.message),
    )


def is_preempting(subject: QuestionSubject) -> bool:
    return subject.hold is not None and subject.hold.reason == "preempting"


def reason_of(subject: QuestionSubject, explanation: Explanation) -> str:
    """One stable word for what keeps it."""
    return "Preempting" if is_preempting(subject) else _REASONS.get(explanation.reason, subject.reason)


def _amounts(amounts: Amounts) -> dict[str, str]:
    return {name: show(name, value) for name, value in amounts.items()}


def _increase(found: QuotaIncrease) -> LeastIncrease:
    return LeastIncrease(place=found.place, amounts=_amounts(found.amounts), measure=found.measure)


def _nodes(found: model.NewNodes) -> NewNodes:
    amounts = _amounts(found.amounts)
    return NewNodes(count=found.count, amounts=amounts, labels=dict(found.labels) or None, measure=found.measure)


def _together(found: model.Together) -> Together:
    quotas = tuple(_increase(one) for one in found.quotas)
    nodes = _nodes(found.nodes) if found.nodes is not None else None
    return Together(quotas=quotas or None, nodes=nodes, measure=found.measure)


def _short(shortfall: Shortfall, naming: Naming) -> AnswerShortfall:
    return AnswerShortfall(**fields_of(shortfall), message=naming.words(shortfall.message, 300))
