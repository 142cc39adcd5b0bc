"""Kueue's own performance runner, with Shoal or Kueue as its subject, on a kube-apiserver and etcd of its own.

    python bench/kueue_runner.py                    Shoal, Kueue's baseline: 30 queues in 5 cohorts, 15,000 Workloads
    python bench/kueue_runner.py --small            2 queues, 70 Workloads, under a minute
    python bench/kueue_runner.py --subject kueue [--qps 500]
    python bench/kueue_runner.py --generator FILE   any other file of the runner's

The runner creates and ends the Workloads; the subject only decides. Prints the wall time, per class the mean and the
longest wait until admission, evictions and what stayed unfinished, and the subject's cpu time and memory; with --json
one line. Exits with 1 when anything stayed unfinished after --limit seconds. Records stay in --folder, if given.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `tests` imports when run as a script

from tests.controlplane import build, kueue_runner


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", choices=["shoal", "kueue"], default="shoal")
    parser.add_argument("--qps", type=int, default=50, help="requests a second that Kueue may send (50, its default)")
    parser.add_argument("--option", action="append", default=[], help="one more option of `shoal controller`")
    parser.add_argument("--small", action="store_true", help="2 queues and 70 Workloads")
    parser.add_argument("--generator", type=Path, help="a file for the runner's generator; default: Kueue's baseline")
    parser.add_argument("--limit", type=float, default=900, help="seconds after which it is stopped")
    parser.add_argument("--folder", type=Path, help="keep the records and what everybody said here")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kueue-runner-") as scratch:
        folder = asked.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            small = kueue_runner.small(folder) if asked.small else None
            generator = asked.generator or small or kueue_runner.baseline()
            shoal = asked.subject == "shoal"
            subject = kueue_runner.shoal(folder, *asked.option) if shoal else kueue_runner.kueue(asked.qps)
            outcome = kueue_runner.run(folder, subject, generator, asked.limit)
        except (build.CannotBuild, RuntimeError) as error:
            sys.exit(f"error: {error}")
    if asked.json:
        print(json.dumps({"subject": asked.subject, **dataclasses.asdict(outcome), "unfinished": outcome.unfinished}))
    else:
        show(asked.subject if shoal else f"kueue at {asked.qps} requests a second", outcome)
    return 0 if outcome.ended and not outcome.unfinished else 1


def show(subject: str, outcome: kueue_runner.Outcome) -> None:
    end = "ended" if outcome.ended else "was stopped"
    print(f"{subject}: {outcome.expected} Workloads; {end} after {outcome.wall:.0f} s, {outcome.unfinished} unfinished")
    for name, one in outcome.classes.items():
        waits = f"mean wait {one.mean:.2f} s, longest {one.worst:.2f} s"
        print(f"  {name}: {one.count}, {waits}, {one.evictions} evictions, {one.unfinished} unfinished")
    used = ", ".join(f"{name} {part:.0%}" for name, part in outcome.usage.items())
    print(f"  subject: {outcome.cpu:.1f} s cpu, {outcome.memory / 2**20:.0f} MiB; quota in use on average: {used}")
    if outcome.missed:
        print(f"  the runner dropped {outcome.missed} of its own events: its counts may be too high or too low")


if __name__ == "__main__":
    sys.exit(main())
