"""A day of jobs on a small cluster, replayed: at every arrival that waits the start is foretold, and compared later.

Users have habits: their runs are alike, not equal. Half of them declare a limit, well above what they need. What is
foretold goes by limits and by the runs that have ended so far, as the controller knows them."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from statistics import quantiles

from shoal.controllers.planning.history.lengths import RunFacts, lengths
from shoal.engine.explain.rehearsal import come_to_rest, end
from shoal.engine.model import Gang

from .build import SECOND, engine, gang, node, pods

DAY = 86_400


@dataclass
class ReplayedDay:
    seed: int = 0
    jobs: int = 150
    nodes: int = 4
    exact: bool = False
    """Every job declares the very time that it runs, all come within a minute, and starts are foretold after that."""
    errors: list[float] = field(default_factory=list)
    """Seconds between the start that was foretold at arrival and the start that was, by job."""
    waits: list[float] = field(default_factory=list)
    unknown: int = 0

    def run(self) -> ReplayedDay:
        chance = random.Random(self.seed)
        judge = engine(*(node(f"node-{number}", cpu=8) for number in range(self.nodes)))
        habits = {user: chance.uniform(600, 5400) for user in ("ann", "bob", "eve", "joe")}
        facts: dict[str, RunFacts] = {}
        earlier: dict[tuple[str, str, str], list[float]] = {}
        took: dict[str, float] = {}
        foretold: dict[str, int] = {}
        came: dict[str, int] = {}
        ends: list[tuple[int, str]] = []
        running: set[str] = set()
        arrivals = sorted(chance.uniform(0, 60 if self.exact else DAY) for _ in range(self.jobs))

        def settle(now: int) -> None:
            come_to_rest(judge, now)
            for one in judge.running():
                if one.key in running:
                    continue
                running.add(one.key)
                heapq.heappush(ends, (now + round(took[one.key] * SECOND), one.key))
                if one.key in foretold:
                    self.errors.append(abs(now - foretold.pop(one.key)) / SECOND)
                    self.waits.append((now - came[one.key]) / SECOND)

        def pass_to(moment: int) -> None:
            while ends and ends[0][0] <= moment:
                now, key = heapq.heappop(ends)
                gone = judge.gang(key)
                assert gone is not None
                end(judge, key)
                earlier.setdefault(facts[gone.uid].key, []).insert(0, took[key])
                settle(now)

        def foretell(key: str, now: int) -> None:
            if key in running:
                return
            found = judge.forecast(key, now, lengths(facts, {one: runs[:50] for one, runs in earlier.items()}, now))
            if found is not None and found.at:
                foretold[key] = found.at
            else:
                self.unknown += 1

        for number, second in enumerate(arrivals):
            now = round(second) * SECOND
            pass_to(now)
            user = chance.choice(list(habits))
            made: Gang = gang(f"job-{number:03}", pods(chance.choice((1, 2, 4, 8)), cpu=2), at=round(second))
            took[made.key] = max(30.0, chance.gauss(habits[user], habits[user] / 4))
            limit = round(took[made.key]) if self.exact else (round(2 * habits[user]) if user in ("ann", "bob") else 0)
            if self.exact:
                took[made.key] = float(limit)
            facts[made.uid] = RunFacts("default", user if not self.exact else made.name, "", limit)
            came[made.key] = now
            judge.update(made)
            settle(now)
            if not self.exact or number == self.jobs - 1:
                for key in [key for key in came if key not in running] if self.exact else [made.key]:
                    foretell(key, now)
        pass_to(10 * DAY * SECOND)
        return self

    def told(self) -> str:
        """For people: how good it was."""
        tenths = quantiles(self.errors, n=10)
        wait = quantiles(self.waits, n=10)
        return (
            f"{len(self.errors)} starts foretold, {self.unknown} unknown; error: median {tenths[4]:.0f} s, "
            f"90th percentile {tenths[8]:.0f} s; waits: median {wait[4]:.0f} s, 90th percentile {wait[8]:.0f} s"
        )
