"""All invariants at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tests.checker import authority, status, store
from tests.checker.record import Record, Violation, normalize

Check = Callable[[list[Record]], Iterator[Violation]]

CHECKS: dict[str, Check] = {
    "I19": status.transition_times,
    "I21": status.vain_writes,
    "I22": status.observed_generation,
    "I23": status.quiet,
    "I24": authority.lease_terms,
    "I25": authority.after_loss,
    "I26": store.watches,
    "I27, I29": store.acknowledged,
    "I28": store.revisions,
    "I30": store.old_revisions,
    "I31": authority.unknown_fates,
}


def check(entries: Iterable[Any]) -> list[Violation]:
    """Everything that a history violates."""
    records = normalize(entries)
    return [violation for judge in CHECKS.values() for violation in judge(records)]


def assert_holds(entries: Iterable[Any]) -> None:
    """Fail with the violations and the requests that show them."""
    found = check(entries)
    assert not found, f"{len(found)} violations:\n" + "\n".join(str(one) for one in found[:20])
