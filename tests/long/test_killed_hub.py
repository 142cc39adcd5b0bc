"""The hub dies after every single write while a gang moves from a lost member, in real time: some five minutes."""

from __future__ import annotations

import pytest

from tests.chaos.clusters.test_killed_moving import MortalMover, ends_alike, starts_at_once, stopped
from tests.faults import proven

AT_ONCE = 2


@pytest.mark.timeout(1800)
@pytest.mark.not_at_rest("judged by what is where; other tests judge the members at rest")
@proven(without=starts_at_once)
async def test_f731_a_hub_that_dies_while_a_gang_moves_from_a_lost_member_starts_it_once() -> None:
    """F731: a member is lost with a gang whose loss policy is `move`, and the hub dies after any one of its writes.
    Holds: the gang is never in two members at a time, and ends in the next one as if the hub had not died."""
    assert await ends_alike(stopped, MortalMover, AT_ONCE) == []
