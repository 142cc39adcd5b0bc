"""The hub dies after every single write while a gang moves from a lost member, in real time: some ten minutes."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from shoal.api import kinds
from tests.chaos.clusters.test_killed_choosing import SETTINGS, MortalChooser, after
from tests.chaos.clusters.test_killed_moving import MortalMover, ends_alike, starts_at_once, stopped
from tests.faults import proven
from tests.unit.clusters.build import is_on, is_placed, sent_job, town
from tests.unit.clusters.test_fence import JobWatch
from tests.unit.clusters.wrappers import with_agents
from tests.unit.queues.build import make, name_of, pods_of

AT_ONCE = 2


@pytest.mark.timeout(1800)
@pytest.mark.not_at_rest("judged by what is where; other tests judge the members at rest")
@proven(without=starts_at_once)
async def test_f731_a_hub_that_dies_while_a_gang_moves_from_a_lost_member_starts_it_once() -> None:
    """F731: a member is lost with a gang whose loss policy is `move`, and the hub dies after any one of its writes.
    Holds: the gang is never in two members at a time, and ends in the next one as if the hub had not died."""
    assert await ends_alike(stopped, MortalMover, AT_ONCE) == []


class MortalQueue(MortalChooser):
    """Its queued jobs move from a lost member once they must have stopped there."""

    settings = msgspec.structs.replace(SETTINGS, loss="move", lease_seconds=5.0, fence_seconds=2.0)


async def moves(at: int) -> tuple[list[object], list[str], list[str], int]:
    """The member of a queued job is lost and stops it by itself, and comes back after it started elsewhere. What is
    left, what was in two members, what the hub wrote, and how much of that when the job ran."""
    async with town("a", "b", "c", hub_decides=False) as t:
        with_agents(t)
        mortal, watch = MortalQueue(t, at), JobWatch(t)
        living = asyncio.ensure_future(mortal.lives())
        t.run_hub(asyncio.wait({living}))
        try:
            await t.connected()
            (made,) = await make(t.hub, sent_job("one", 2))
            name = name_of(made)
            home = (await t.hub.until(kinds.WORKLOAD, name, is_placed))["status"]["clusterName"]
            await pods_of(t.members[home], "one", 2)
            began = len(mortal.hub.writes)
            t.wires[home].cut()
            moved = await t.hub.until(kinds.WORKLOAD, name, lambda one: is_placed(one) and not is_on(home)(one))
            other = moved["status"]["clusterName"]
            await pods_of(t.members[other], "one", 2)
            t.wires[home].mend()
            await t.members[home].until_gone(kinds.JOB, "one")
            await t.members[home].until_gone(kinds.WORKLOAD, name)
            left = [await t.where(kind, found) for kind, found in ((kinds.JOB, "one"), (kinds.WORKLOAD, name))]
            stored = (await t.hub.get(kinds.WORKLOAD, name))["status"]["clusterName"]
        finally:
            living.cancel()
            await asyncio.wait({living})
        after(t)
        return [left == [[stored], [stored]], stored != home], watch.broken, [*mortal.hub.writes], began


@pytest.mark.timeout(1800)
@pytest.mark.not_at_rest("judged by what is where; other tests judge the members at rest")
@proven(without=starts_at_once)
async def test_f737_a_hub_that_dies_while_a_queued_job_moves_from_a_lost_member_starts_it_once() -> None:
    """F737: a member is lost with a queued job whose loss policy is `move`, and the hub dies after any one of its
    writes. Holds: pods of the job are never in two members at a time, and it ends in another one as if the hub had not
    died, with nothing left in the first."""
    calm, broken, writes, began = await moves(0)
    assert (calm, broken) == ([True, True], [])
    numbers = range(began + 1, len(writes) + 1)
    assert len(numbers) > 5
    different = []
    for first in range(0, len(numbers), AT_ONCE):
        some = numbers[first : first + AT_ONCE]
        for at, (state, found, *_) in zip(some, await asyncio.gather(*map(moves, some)), strict=True):
            if state != calm or found:
                different.append(f"at {at} ({writes[at - 1]}): {state} {found[:2]}")
    assert different == []
