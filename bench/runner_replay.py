"""Kueue's runner replayed in one process, in virtual time: evictions, waits, and requests by verb and kind.

    python bench/runner_replay.py                     one of the five cohorts of Kueue's baseline: 3,000 Workloads
    python bench/runner_replay.py --cohorts 5         all of it
    python bench/runner_replay.py --large             one of the ten cohorts of its large scale: 5,000 Workloads
    python bench/runner_replay.py --subject greedy    the bare greedy loop of bench/greedy.py instead of Shoal

Every write takes --service milliseconds of one server, so that the wall time follows from the number of writes; what is
computed takes no time. Real walls are bench/kueue_runner.py's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `tests` imports when run as a script

from tests import replay
from tests.planning import planned

from shoal.api.meta import Json
from shoal.controllers.queues import QueueSettings
from shoal.kube.client import Client
from shoal.kube.clock import Clock


def cohort(queues: int, classes: tuple[tuple[str, int, int, int, int, int], ...]) -> Json:
    """Of so many queues, as the runner's generator has them; of each class its name, how many a queue gets, every
    how many milliseconds, for how long they run, their priority, and their cpu."""
    return {
        "className": "cohort",
        "queuesSets": [
            {
                "className": "cq",
                "count": queues,
                "nominalQuota": 20,
                "borrowingLimit": 100,
                "reclaimWithinCohort": "Any",
                "withinClusterQueue": "LowerPriority",
                "workloadsSets": [
                    {
                        "count": count,
                        "creationIntervalMs": every,
                        "workloads": [{"className": name, "runtimeMs": runs, "priority": priority, "request": cpu}],
                    }
                    for name, count, every, runs, priority, cpu in classes
                ],
            }
        ],
    }


BASELINE = cohort(
    6,
    (
        ("small", 350, 100, 200, 50, 1),
        ("medium", 100, 500, 500, 100, 5),
        ("large", 50, 1200, 1000, 200, 20),
    ),
)
LARGE = cohort(
    100,
    (
        ("small", 35, 60, 150, 50, 1),
        ("medium", 11, 300, 350, 100, 5),
        ("large", 4, 700, 700, 200, 20),
    ),
)


def shoal(pause: float | None) -> Callable[[Client, Clock], Awaitable[None]]:
    settings = QueueSettings(supply="off", preemption_pause_seconds=pause)
    return lambda client, clock: planned(client, clock=clock, queues=settings, wrappers=False).run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohorts", type=int, default=1)
    parser.add_argument("--large", action="store_true", help="cohorts of a hundred queues")
    parser.add_argument("--part", type=float, default=1.0, help="this part of the Workloads of each class")
    parser.add_argument("--subject", choices=["shoal", "greedy"], default="shoal")
    parser.add_argument("--service", type=float, help="milliseconds of the server for one write; default: 20 / cohorts")
    parser.add_argument("--pause", type=float, help="preemption_pause_seconds of Shoal; default: not set")
    asked = parser.parse_args()
    config = {"cohorts": [{**(LARGE if asked.large else BASELINE), "count": asked.cohorts}]}
    for each in config["cohorts"][0]["queuesSets"][0]["workloadsSets"]:
        each["count"] = max(1, int(each["count"] * asked.part))
    service = asked.service or 20 / asked.cohorts
    if asked.subject == "greedy":
        from bench.greedy import follow as subject
    else:
        subject = shoal(asked.pause)
    figures = replay.skipping(replay.replay(config, subject, service=service / 1000))
    show(figures)
    return 1 if figures.unfinished or figures.excess else 0


def show(figures: replay.Figures) -> None:
    count = len(figures.kept)
    print(f"{count} Workloads: {figures.wall:.1f} s in virtual time, {figures.unfinished} unfinished; "
          f"{figures.evictions} evictions {dict(figures.why)}, quota exceeded {len(figures.excess)} times")  # fmt: skip
    waits = ", ".join(f"{name} {figures.waits(name):.1f} s" for name in ("large", "medium", "small"))
    print(f"  mean waits: {waits}; {figures.cpu:.1f} s cpu in all, server and runner included")
    for name, writes in figures.writes.items():
        print(f"  {name}: {sum(writes.values())} writes, {sum(writes.values()) / count:.2f} for each Workload")
        for what, times in writes.most_common():
            print(f"    {times:7} {what}")


if __name__ == "__main__":
    sys.exit(main())
