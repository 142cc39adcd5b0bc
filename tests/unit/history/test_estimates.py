"""When it would start, as `shoal why` and `shoal submit --check` tell it: by limits, by history, or why not."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.cli import exits, submit, why
from shoal.controllers.planning import PlanningLoop
from shoal.sdk import asking
from tests.cluster import Cluster
from tests.unit.history.contract import look
from tests.unit.history.test_recorded import remembering
from tests.unit.questions.test_queued import ask, waiting
from tests.unit.queues.build import job, make, name_of, true

__all__ = ["remembering"]
SECOND = 1_000_000


def limited(name: str, seconds: int = 0) -> Json:
    made = job(name, cpu="3")
    return {**made, "spec": {**made["spec"], **({"activeDeadlineSeconds": seconds} if seconds else {})}}


async def running(cluster: Cluster, made: Json) -> None:
    (stored,) = await make(cluster, made)
    await cluster.until(kinds.WORKLOAD, name_of(stored), true("Admitted"))


async def test_a_declared_limit_says_from_when(
    remembering: tuple[Cluster, PlanningLoop], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, loop = remembering
    await running(cluster, limited("first", 600))
    (second,) = await make(cluster, limited("second"))
    await waiting(cluster, second)
    told = await ask(cluster, "second")
    left = (parse_time(told["estimate"]["at"]) - loop.clock.now()) / SECOND
    assert told["estimate"]["basis"] == "DeclaredLimits" and 500 < left <= 601
    why._print(told)
    assert f"starts from about {told['estimate']['at']} (in" in capsys.readouterr().out
    answer = await asking.would_start(cluster.client, limited("third"), "default")
    code, words = submit.verdict(answer)
    assert code == exits.WAITS and words.startswith("waits behind 1")
    assert "when it starts is unknown because" in words  # the second, which goes first, has no limit


async def test_earlier_runs_of_the_user_in_the_queue_say_from_when(remembering: tuple[Cluster, PlanningLoop]) -> None:
    cluster, loop = remembering
    assert loop.history is not None
    await running(cluster, limited("first"))
    (second,) = await make(cluster, limited("second"))
    await waiting(cluster, second)
    unknown = (await ask(cluster, "second"))["estimate"]
    assert "at" not in unknown and "Job/default/first has no time limit" in unknown["message"]
    await loop.history.written()  # and pruned: what comes now is older than what is kept
    for number in range(5):
        at = {"namespace": "default", "queue": "user-queue", "user": ""}
        loop.history._store.write(
            [
                look(f"old-{number}", "waiting", 0, **at),
                look(f"old-{number}", "running", number, **at),
                look(f"old-{number}", "ended", 300 + number, outcome="Succeeded", **at),
            ]
        )
    known = (await ask(cluster, "second"))["estimate"]
    left = (parse_time(known["at"]) - loop.clock.now()) / SECOND
    assert known["basis"] == "History" and 200 < left <= 301


async def test_the_error_of_the_first_estimate_is_served_when_the_gang_starts(
    remembering: tuple[Cluster, PlanningLoop],
) -> None:
    cluster, loop = remembering
    await running(cluster, limited("first", 600))
    (second,) = await make(cluster, limited("second"))
    await waiting(cluster, second)
    error = loop.decision_log.estimate_error
    assert (await ask(cluster, "second"))["estimate"]["at"] and sum(error.counts) == 0
    await cluster.client.delete(kinds.JOB, "first", "default")
    await cluster.until(kinds.WORKLOAD, name_of(second), true("Admitted"))
    assert sum(error.counts) == 1 and 500 < error.sum <= 601  # it ended ten minutes before its limit
    (served,) = (one for one in loop.metrics.collect() if one.name == "shoal_estimate_error_seconds")
    assert [one.value for one in served.samples if one.name.endswith("_count")] == [1]
