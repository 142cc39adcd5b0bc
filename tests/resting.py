"""Wait until nothing changes any more, then judge what is stored (`tests/checker/at_rest.py`).

A violation may be something on its way: it is looked at again for a while, and only what stays is one. That while is
shorter than the rounds in which controllers look at everything again, so that a lost event is not made good by then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from shoal.api.meta import Json
from tests.checker.at_rest import TALLY, Rules, Verdict, judge_rest
from tests.patience import PIECE

STAYS = 12.0
"""Seconds for which a violation must stay: reasons may be five seconds old, and a machine slow."""

Objects = Mapping[str, Iterable[Json]]


def objects_of(server: Any) -> dict[str, list[Json]]:
    """Everything that an embedded server stores, by plural."""
    found: dict[str, list[Json]] = {}
    for collection in server.storage.collections.values():
        plural = collection.name.split(".")[0].rsplit("/", 1)[-1]
        found.setdefault(plural, []).extend(msgspec.json.decode(one.raw) for one in collection.records())
    return found


def look(objects: Objects, rules: Rules) -> Verdict:
    """One look, without counting it."""
    began = time.perf_counter()
    now = rules.now or time.time_ns() // 1000
    verdict = judge_rest(objects, replace(rules, now=now))
    TALLY.seconds += time.perf_counter() - began
    return verdict


def count(verdict: Verdict) -> None:
    TALLY.worlds += 1
    TALLY.judged += verdict.judged
    TALLY.undecided += verdict.undecided


async def hold_at_rest(
    stored: Callable[[], Awaitable[Objects]], settled: Callable[[], Awaitable[None]], rules: Rules
) -> None:
    """Fail with what is not as it must be once nothing changes."""
    await settled()
    verdict = look(await stored(), rules)
    left = STAYS
    while verdict.found and left > 0:
        await asyncio.sleep(PIECE)
        left -= PIECE
        verdict = look(await stored(), rules)
    count(verdict)
    assert not verdict.found, f"{len(verdict.found)} at rest:\n" + "\n".join(verdict.found[:20])
