"""Which gang that holds quota is waited for by which preemptor, so that no two count on the same one.

Kept by the ledger where preemptors wait for gangs to end by themselves before they evict them. Such a gang is spoken
for: what it gives back goes to that preemptor. Another finds its room elsewhere, unless it comes before that one:
then it takes the victim over, and that one looks for another. Kueue evicts at once and has no need of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from shoal.engine.kueue.demand import QueueMember
from shoal.engine.kueue.facts import Usage
from shoal.engine.kueue.quota.tree import QuotaTreeNode


class Rank(NamedTuple):
    """The smaller comes first, as in a cycle: one that stays within its own quota, then by priority and age."""

    borrows: bool
    order: tuple[int, int, str]


def rank_of(member: QueueMember, node: QuotaTreeNode, wanted: Usage) -> Rank:
    return Rank(any(node.borrows_with(at, amount) for at, amount in wanted.items()), member.order)


class ClaimedVictims:
    """Those that one gang may not count on."""

    __slots__ = ("_claims", "_rank", "_uid")

    def __init__(self, claims: dict[str, tuple[str, Rank]], uid: str, rank: Rank | None) -> None:
        self._claims = claims
        self._uid = uid
        self._rank = rank

    def __contains__(self, victim: object) -> bool:
        claim = self._claims.get(victim)  # type: ignore[call-overload]
        if claim is None or claim[0] == self._uid:
            return False
        return self._rank is None or claim[1] <= self._rank


class VictimClaims:
    def __init__(self) -> None:
        self._claims: dict[str, tuple[str, Rank]] = {}
        """By UID of the victim: that of its preemptor, and where that one stands."""

    def __bool__(self) -> bool:
        return bool(self._claims)

    def against(self, uid: str, rank: Rank | None) -> ClaimedVictims:
        """What the gang with this UID has to leave to others; without a rank, all that others claim."""
        return ClaimedVictims(self._claims, uid, rank)

    def take(self, uid: str, rank: Rank, victims: Iterable[str]) -> dict[str, set[str]]:
        """These are waited for by this preemptor from now on. By UID of others: what they lose by it."""
        lost: dict[str, set[str]] = {}
        for victim in victims:
            claim = self._claims.get(victim)
            if claim is not None and claim[0] != uid:
                lost.setdefault(claim[0], set()).add(victim)
            self._claims[victim] = (uid, rank)
        return lost

    def drop(self, uid: str, victims: Iterable[str]) -> None:
        for victim in victims:
            claim = self._claims.get(victim)
            if claim is not None and claim[0] == uid:
                del self._claims[victim]

    def clear(self) -> None:
        self._claims.clear()


class ComingQuota:
    """A tree as it will be once every victim that is waited for has left and every preemptor of it has what it waits
    for: what one of them frees beyond its own need is part of what the next one gets."""

    def __init__(self) -> None:
        self._leaving: dict[QuotaTreeNode, Usage] = {}
        self._coming: dict[QuotaTreeNode, Usage] = {}

    def leaves(self, node: QuotaTreeNode, usage: Usage) -> None:
        _sum(self._leaving, node, usage)

    def comes(self, node: QuotaTreeNode, usage: Usage) -> None:
        _sum(self._coming, node, usage)

    @contextmanager
    def there(self) -> Iterator[None]:
        """In the tree."""
        for each, usage in self._leaving.items():
            each.remove(usage)
        for each, usage in self._coming.items():
            each.add(usage)
        yield
        for each, usage in self._coming.items():
            each.remove(usage)
        for each, usage in self._leaving.items():
            each.add(usage)


def _sum(sums: dict[QuotaTreeNode, Usage], node: QuotaTreeNode, usage: Usage) -> None:
    known = sums.setdefault(node, {})
    for at, amount in usage.items():
        known[at] = known.get(at, 0) + amount
