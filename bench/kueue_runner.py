"""Kueue's own performance runner, with Shoal or Kueue as its subject, on a kube-apiserver and etcd of its own.

    python bench/kueue_runner.py                    Shoal, Kueue's baseline: 30 queues in 5 cohorts, 15,000 Workloads
    python bench/kueue_runner.py --small            2 queues, 70 Workloads, under a minute
    python bench/kueue_runner.py --large            Kueue's large scale: 1,000 queues, 50,000 Workloads
    python bench/kueue_runner.py --qps 50           Shoal with as many requests a second as Kueue as shipped
    python bench/kueue_runner.py --subject kueue [--qps 1000]
    python bench/kueue_runner.py --subject greedy   the floor: a bare loop, one write a Workload (bench/greedy.py)
    python bench/kueue_runner.py --subject all      all: the floor, Shoal, Shoal and Kueue at 50, Kueue at 1,000
    python bench/kueue_runner.py --subject all --times 3    in turns, and the means: machines are faster by the hour
    python bench/kueue_runner.py --watched          with a watch beside it that adds up quota
    python bench/kueue_runner.py --generator FILE   any other file of the runner's
    python bench/kueue_runner.py --pack FOLDER      programs and files for a machine without Go; on that machine:
                                                    XDG_CACHE_HOME=FOLDER python bench/kueue_runner.py

The runner creates and ends the Workloads; the subject only decides. Prints the wall time, per class the mean and the
longest wait until admission, evictions and what stayed unfinished, the subject's cpu time and memory, and what it asked
of the API server by verb and resource; with --json one line for each subject. Exits with 1 when anything stayed
unfinished after --limit seconds; the records and logs of such a run stay. They stay in --folder, if given, of any run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `tests` imports when run as a script

from tests.controlplane import build, kueue_runner, quota_watch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", choices=["shoal", "kueue", "greedy", "all"], default="shoal")
    parser.add_argument(
        "--qps", type=int, default=0, help="requests a second (Kueue: 50, its default; Shoal: no limit)"
    )
    parser.add_argument("--option", action="append", default=[], help="one more option of `shoal controller`")
    parser.add_argument("--small", action="store_true", help="2 queues and 70 Workloads")
    parser.add_argument("--large", action="store_true", help="1,000 queues and 50,000 Workloads")
    parser.add_argument("--generator", type=Path, help="a file for the runner's generator; default: Kueue's baseline")
    parser.add_argument("--limit", type=float, default=900, help="seconds after which it is stopped")
    parser.add_argument("--times", type=int, default=1, help="all of it so often, and the means of each row at the end")
    parser.add_argument("--folder", type=Path, help="keep the records and what everybody said here")
    parser.add_argument(
        "--watched", action="store_true", help="add up beside it what Workloads hold, at every revision"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pack", type=Path, help="fill this folder for another machine, and run nothing")
    asked = parser.parse_args()
    if asked.pack:
        kueue_runner.pack(asked.pack)
        print(f"packed: XDG_CACHE_HOME={asked.pack} python bench/kueue_runner.py")
        return 0
    good = True
    rows = ALL if asked.subject == "all" else (Row(asked.subject, asked.qps),)
    outcomes: dict[Row, list[kueue_runner.Outcome]] = {row: [] for row in rows}
    for turn in range(asked.times):
        for row in rows:
            records = asked.folder or Path(tempfile.mkdtemp(prefix="kueue-runner-"))
            folder = records / (str(row).replace(" ", "-") + (f"-{turn + 1}" if asked.times > 1 else ""))
            outcome = one_run(row, asked, folder)
            outcomes[row].append(outcome)
            is_whole = outcome.ended and not outcome.unfinished
            if asked.watched:
                record = quota_watch.read(folder / kueue_runner.QUOTA)
                counted = f"{record.started} started, {record.finished} finished"
                excess = "".join(f"; {one}" for one in record.excess[:3])
                print(f"{row}, by a watch: {counted}, the quota exceeded {len(record.excess)} times{excess}")
                is_whole = is_whole and not record.excess
            if asked.json:
                told = {"subject": str(row), **dataclasses.asdict(outcome), "unfinished": outcome.unfinished}
                print(json.dumps(told), flush=True)
            else:
                show(str(row), outcome)
            if not is_whole:
                print(f"  not whole: the records and what each program said stay in {folder}", file=sys.stderr)
            elif not asked.folder:
                shutil.rmtree(records)
            good = good and is_whole
    if asked.times > 1 and not asked.json:
        show_means(outcomes)
    return 0 if good else 1


@dataclasses.dataclass(frozen=True)
class Row:
    """The subject, with how many requests a second; 0 is the subject's own default."""

    subject: str
    qps: int = 0

    def __str__(self) -> str:
        return f"{self.subject} at {self.qps} requests a second" if self.qps else self.subject


ALL = (Row("greedy"), Row("shoal"), Row("shoal", 50), Row("kueue", 50), Row("kueue", 1000))


def one_run(row: Row, asked: argparse.Namespace, folder: Path) -> kueue_runner.Outcome:
    folder.mkdir(parents=True, exist_ok=True)
    rate = ("--kube-api-qps", str(row.qps)) if row.qps else ()
    subjects = {
        "shoal": lambda: kueue_runner.shoal(folder, *rate, *asked.option),
        "greedy": lambda: kueue_runner.greedy(folder),
        "kueue": lambda: kueue_runner.kueue(row.qps or 50),
    }
    try:
        subject = subjects[row.subject]()
        if asked.watched:
            subject = kueue_runner.watched(folder, subject)
        return kueue_runner.run(folder, subject, generator_of(asked, folder), asked.limit)
    except (build.CannotBuild, RuntimeError) as error:
        sys.exit(f"error: {error}")


def generator_of(asked: argparse.Namespace, folder: Path) -> Path:
    if asked.generator:
        return Path(asked.generator)
    if asked.large:
        return kueue_runner.large()
    return kueue_runner.small(folder) if asked.small else kueue_runner.baseline()


def show(subject: str, outcome: kueue_runner.Outcome) -> None:
    end = "ended" if outcome.ended else "was stopped"
    print(f"{subject}: {outcome.expected} Workloads; {end} after {outcome.wall:.0f} s, {outcome.unfinished} unfinished")
    for name, one in outcome.classes.items():
        waits = f"mean wait {one.mean:.2f} s, longest {one.worst:.2f} s"
        print(f"  {name}: {one.count}, {waits}, {one.evictions} evictions, {one.unfinished} unfinished")
    used = ", ".join(f"{name} {part:.0%}" for name, part in outcome.usage.items())
    print(f"  subject: {outcome.cpu:.1f} s cpu, {outcome.memory / 2**20:.0f} MiB; quota in use on average: {used}")
    if outcome.requests:
        asked = ", ".join(f"{count} {what}" for what, count in Counter(outcome.requests).most_common() if count > 9)
        print(f"  asked of the API server: {asked}")
    if outcome.missed:
        print(f"  the runner dropped {outcome.missed} of its own events: its counts may be too high or too low")


def show_means(outcomes: dict[Row, list[kueue_runner.Outcome]]) -> None:
    floor = [one.wall for one in outcomes.get(Row("greedy"), ())]
    for row, runs in outcomes.items():
        walls = [one.wall for one in runs]
        beside = f", {mean(walls) / mean(floor):.2f} of the floor" if floor else ""
        waits = "/".join(f"{mean(one.classes[name].mean for one in runs):.1f}" for name in runs[0].classes)
        print(
            f"{row}, mean of {len(runs)}: {mean(walls):.0f} s ({min(walls):.0f} to {max(walls):.0f}){beside}; "
            f"waits {waits} s ({'/'.join(runs[0].classes)}), {mean(one.evictions for one in runs):.0f} evictions, "
            f"{mean(one.cpu for one in runs):.1f} s cpu, {max(one.memory for one in runs) / 2**20:.0f} MiB at most"
        )


if __name__ == "__main__":
    sys.exit(main())
