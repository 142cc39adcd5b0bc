"""A member that sends more than it may counts as not connected, and says why."""

from __future__ import annotations

import msgspec

from shoal.api import kinds
from shoal.kube.bounded import AnswerLimits
from tests.unit.clusters.build import QUICK, condition, is_true, sent_job, town
from tests.unit.queues.build import make


async def test_a_member_with_more_copies_than_are_kept_gets_no_more_gangs() -> None:
    async with town("a") as t:
        t.start_hub(msgspec.structs.replace(QUICK, answers=AnswerLimits(held=1000)))
        await t.connected()
        await make(t.hub, sent_job("train", 1, cpu="1"))
        shown = await t.hub.until(
            kinds.MULTIKUEUE_CLUSTER, "a", lambda one: condition(one, "Active").get("reason") == "TooMuch"
        )
        assert not is_true("Active")(shown)
        assert "no more are kept" in condition(shown, "Active")["message"]
