"""How good estimates of starts are: days of jobs replayed in the engine, each start foretold at arrival and compared.

python bench/estimates.py [--days 5] [--jobs 150]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.unit.engine.replayed_day import ReplayedDay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=150)
    chosen = parser.parse_args()
    for seed in range(chosen.days):
        print(f"day {seed}: {ReplayedDay(seed=seed, jobs=chosen.jobs).run().told()}")


if __name__ == "__main__":
    main()
