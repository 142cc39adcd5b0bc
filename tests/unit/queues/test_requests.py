"""What hundreds of Workloads cost the API server: Kueue's runner replayed in virtual time, its requests counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from shoal.api.meta import Json
from shoal.controllers.queues import QueueSettings, pacing, telling
from shoal.engine.kueue.cycle.state import QueueState
from shoal.kube import events
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.local.apiserver import Server
from tests import replay
from tests.faults import proven
from tests.planning import planned
from tests.resting import looked_at, rules_of

QUEUES = QueueSettings(supply="off")
REST = 40.0


def shoal(settings: QueueSettings) -> Callable[[Client, Clock], Awaitable[None]]:
    return lambda client, clock: planned(client, clock=clock, queues=settings, wrappers=False).run()


def config(queues: int, *sets: tuple[str, int, int, int, int, int], preempting: bool = False) -> Json:
    """Queues of 10 CPUs in one cohort, and classes: name, count, milliseconds between two, run time, priority, CPUs."""
    made = [
        {
            "count": count,
            "creationIntervalMs": every,
            "workloads": [{"className": name, "runtimeMs": runs, "priority": priority, "request": cpu}],
        }
        for name, count, every, runs, priority, cpu in sets
    ]
    queue = {
        "className": "cq",
        "count": queues,
        "nominalQuota": 10,
        "borrowingLimit": 100,
        "reclaimWithinCohort": "Any" if preempting else "Never",
        "withinClusterQueue": "LowerPriority" if preempting else "Never",
        "workloadsSets": made,
    }
    return {"cohorts": [{"className": "cohort", "count": 1, "queuesSets": [queue]}]}


def lived(of: Json, settings: QueueSettings = QUEUES) -> replay.Figures:
    """To the end, and to rest: then what is stored is judged."""

    async def judged(server: Server, clock: replay.LoopClock) -> None:
        await clock.sleep(REST)
        assert looked_at(server, rules_of(None, QUEUES), clock.now()) == []

    found: replay.Figures = replay.skipping(replay.replay(of, shoal(settings), service=0.01, afterwards=judged))
    assert (found.unfinished, found.excess) == (0, [])
    return found


def asked(found: replay.Figures) -> Counter[str]:
    return found.writes["subject"]


def tells_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling.Telling, "is_due", lambda self, gang, now: True)


@proven(without=tells_at_once)
def test_f217_gangs_that_soon_get_quota_are_not_told_that_they_wait() -> None:
    """F217: hundreds of Workloads wait in a cohort in which others start and end all the time. Holds: of those that get
    quota in their turn the status is written once, with reservation and admission together; nothing is read for it."""
    count = 400
    found = lived(config(2, ("small", count // 2, 20, 300, 0, 2)))
    statuses = asked(found)["PATCH workloads/status"]
    assert count <= statuses <= 1.3 * count  # a few are told all the same
    assert asked(found)["PATCH workloads"] == 0


def publishes_every_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing.StatusPace, "pause", lambda self, address, empty: pacing.STATUS_PAUSE)


@proven(without=publishes_every_change)
def test_f218_queues_publish_their_numbers_in_turns_where_all_change_all_the_time() -> None:
    """F218: the numbers of a dozen queues change many times a second for a minute. Holds: their statuses are written a
    few times a second in all, the last one in time; at rest every number is true."""
    found = lived(config(12, ("small", 50, 300, 1000, 0, 2)))
    statuses = asked(found)["PATCH clusterqueues/status"] + asked(found)["PATCH localqueues/status"]
    assert statuses <= 24 * 3 + 1.5 * pacing.TOGETHER * found.wall


def test_events_of_hundreds_that_start_are_thinned() -> None:
    found = lived(config(2, ("small", 200, 20, 300, 0, 2)))
    assert 100 <= asked(found)["POST events"] <= events.RUSH + 2.0 * (found.wall + REST)


def evicts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueState, "is_patient", lambda self, entry: False)


@proven(without=evicts_at_once)
def test_f219_what_ends_in_time_is_not_evicted() -> None:
    """F219: gangs of high priority come again and again where others that they may evict run for half a second. Holds:
    with `preemption_pause_seconds` above that none is evicted; their quota is kept for the gang that waits, which
    starts when they have ended."""
    of = config(2, ("low", 30, 100, 500, 0, 5), ("high", 5, 1500, 500, 100, 10), preempting=True)
    found = lived(of, msgspec.structs.replace(QUEUES, preemption_pause_seconds=5.0))
    assert found.evictions == 0
    assert found.waits("high") < 1.5
    assert found.waits("high") < found.waits("low")


def test_what_does_not_end_in_time_is_evicted() -> None:
    of = config(1, ("low", 2, 100, 20_000, 0, 5), ("high", 1, 1500, 500, 100, 10), preempting=True)
    found = lived(of, msgspec.structs.replace(QUEUES, preemption_pause_seconds=5.0))
    assert found.evictions == 2
    assert 5.0 <= found.waits("high") < 6.0
