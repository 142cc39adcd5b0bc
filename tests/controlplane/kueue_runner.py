"""Runs Kueue's own performance runner against any program that decides about Workloads, and reads what it recorded.

The runner starts kube-apiserver and etcd, installs Kueue's CRDs, starts the program with `--kubeconfig FILE`, creates
cohorts, queues and Workloads by a file, ends each Workload its time after its admission and each eviction at once, and
stops the program with SIGINT when no queue has anything left. Nothing of it is ours; bench/kueue_runner.py prints the
figures, the integration tests hold that nothing stays unfinished.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane import build, packing

SERVERS = ("etcd", "kube-apiserver", "kubectl")
QUOTA = "quota.json"
"""A file of a run's folder: what a watch beside the subject added up."""
COUNTS = "requests.json"
"""A file of a run's folder: what the bare loop asked for."""
REQUESTS = re.compile(r"requests to the API server: (\d.*)$", re.M)
GENTLE = 60.0
"""Seconds that the runner has to write its records once it was asked to stop."""


@dataclass(frozen=True)
class Wait:
    """What happened to the Workloads of one class; the means are of those that were admitted."""

    count: int
    unfinished: int
    evictions: int
    mean: float
    worst: float


@dataclass(frozen=True)
class Outcome:
    """What one run recorded. `missed`: events that the runner itself dropped, so that its counts may be too low."""

    ended: bool
    wall: float
    cpu: float
    memory: int
    classes: dict[str, Wait] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    expected: int = 0
    missed: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    """What Shoal, or the bare loop, asked of the API server, by verb and resource; of Kueue it is not known."""

    @property
    def unfinished(self) -> int:
        seen = sum(one.count for one in self.classes.values())
        return self.expected - seen + sum(one.unfinished for one in self.classes.values())

    @property
    def evictions(self) -> int:
        return sum(one.evictions for one in self.classes.values())


def baseline() -> Path:
    """Kueue's published load: 5 cohorts of 6 queues, 15,000 Workloads."""
    return build.kueue_folder() / "test/performance/scheduler/configs/baseline/generator.yaml"


def large() -> Path:
    """Kueue's large scale: 1,000 queues, 50,000 Workloads."""
    return build.kueue_folder() / "test/performance/scheduler/configs/large-scale/generator.yaml"


def small(folder: Path) -> Path:
    """Two queues in a cohort that take quota back from each other, 70 Workloads.

    They come for ten seconds: the runner takes queues for done that have nothing pending once the last was created, and
    the subject may take a while to begin.
    """
    sets = [("small", 25, 400, 800, 50, 1), ("medium", 7, 1400, 1500, 100, 5), ("large", 3, 3300, 2000, 200, 8)]
    queue = {
        "className": "cq",
        "count": 2,
        "nominalQuota": "8",
        "borrowingLimit": "8",
        "reclaimWithinCohort": "Any",
        "withinClusterQueue": "LowerPriority",
        "workloadsSets": [
            {
                "count": count,
                "creationIntervalMs": every,
                "workloads": [{"className": name, "runtimeMs": runs, "priority": priority, "request": str(cpu)}],
            }
            for name, count, every, runs, priority, cpu in sets
        ],
    }
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({"cohorts": [{"className": "cohort", "count": 1, "queuesSets": [queue]}]}))
    return path


def shoal(folder: Path, *options: str) -> Path:
    """`shoal controller --only queues` as the runner wants to start it; it says what it does in a file beside."""
    command = [
        *(str(Path(sys.executable).with_name("shoal")), "controller", "--only", "queues"),
        *("--namespace", "default", "--lease-duration", "120"),  # Kueue runs without a lease here
        *("--set", "queues.supply=off", *options),  # the runner has no Node
    ]
    return _script(folder, "shoal", command)


def watched(folder: Path, subject: Path) -> Path:
    """The same subject, with a watch beside it that adds up what Workloads hold: read it with `quota_watch.read`."""
    watch = f"'{sys.executable}' -m tests.controlplane.quota_watch --out '{folder.resolve() / QUOTA}'"
    root = Path(__file__).resolve().parents[2]
    begin, command = subject.read_text().split("\n", 1)
    subject.write_text(
        f"{begin}\n(cd '{root}' && exec {watch} \"$@\") >'{folder.resolve()}/watch.log' 2>&1 &\n{command}"
    )
    return subject


def greedy(folder: Path) -> Path:
    """The bare loop of bench/greedy.py: the floor."""
    script = Path(__file__).resolve().parents[2] / "bench/greedy.py"
    return _script(folder, "greedy", [sys.executable, str(script), "--counts", str(folder.resolve() / COUNTS)])


def kueue(qps: int = 50) -> Path:
    """Kueue's core controllers and scheduler, with as many requests a second as it may send (50 is its default)."""
    if qps == 50:
        return build.program("kueue", build.MINIMAL_KUEUE)
    changed = {
        "kubeConfig.QPS = 50\n": f"kubeConfig.QPS = {qps}\n",
        "kubeConfig.Burst = 100\n": f"kubeConfig.Burst = {2 * qps}\n",
    }
    return build.program("kueue", build.MINIMAL_KUEUE, changed)


def pack(folder: Path) -> None:
    """The runner, the subjects and what they read below `folder`/shoal, as the user's cache has them."""
    definitions = sorted((build.kueue_folder() / "config/components/crd/bases").glob("*.yaml"))
    programs = (build.program("kueue", build.RUNNER), kueue(50), kueue(1000))
    modules = {("kueue", build.KUEUE): [*definitions, baseline(), large()]}
    packing.pack(folder, build.binaries(*SERVERS).values(), programs, modules)


def run(folder: Path, subject: Path, generator: Path, limit: float) -> Outcome:
    """One run that is ended after `limit` seconds, finished or not. What everybody said is in `folder`."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *(str(build.program("kueue", build.RUNNER)), "--o", str(folder)),
        *("--crds", str(build.kueue_folder() / "config/components/crd/bases")),
        *("--generatorConfig", str(generator), "--minimalKueue", str(subject)),
        *("--qps", "1000", "--burst", "2000", "--timeout", f"{limit + 60:.0f}s"),
    ]
    with (folder / "runner.log").open("wb") as said, _ended(command, said, _environment(folder)) as runner:
        started = time.monotonic()
        try:
            ended = runner.wait(limit) == 0
        except subprocess.TimeoutExpired:
            ended = False
            runner.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                runner.wait(GENTLE)
        wall = time.monotonic() - started
    if not (folder / "wlStates.csv").exists():
        raise RuntimeError(f"Kueue's runner ended without a record: {_last_words(folder / 'runner.log')}")
    return _read(folder, subject, generator, ended, wall)


def _counts(folder: Path) -> dict[str, int]:
    """What the subject asked of the API server, as it said itself when it was stopped: a scrape of its metrics would
    count as its work. Empty for Kueue, and for one that was killed."""
    if (folder / COUNTS).exists():
        kept: dict[str, int] = json.loads((folder / COUNTS).read_text())
        return kept
    said = (folder / "shoal.log").read_text(errors="replace") if (folder / "shoal.log").exists() else ""
    found = REQUESTS.findall(said)
    parts = [one.split(" ", 1) for one in found[-1].split(", ")] if found else []
    return {what: int(count) for count, what in parts}


def _script(folder: Path, name: str, command: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    quoted = " ".join(f"'{one}'" for one in command)
    path.write_text(f"#!/bin/sh\nexec {quoted} \"$@\" >'{folder.resolve()}/{name}.log' 2>&1\n")
    path.chmod(0o755)
    return path


@contextlib.contextmanager
def _ended(command: list[str], said: Any, environment: dict[str, str]) -> Any:
    process = subprocess.Popen(command, stdout=said, stderr=said, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for other in _started_from(Path(environment["KUBEBUILDER_ASSETS"])):
            with contextlib.suppress(ProcessLookupError):
                os.kill(other, signal.SIGKILL)


def _started_from(assets: Path) -> list[int]:
    """The runner gives its API server and etcd groups of their own; where it was killed, they stay."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if entry.read_bytes().startswith(f"{assets}/".encode()):
                found.append(int(entry.parent.name))
    return found


def _environment(folder: Path) -> dict[str, str]:
    """Its API server and etcd come from one folder."""
    assets = folder / "assets"
    assets.mkdir(exist_ok=True)
    for name, path in build.binaries(*SERVERS).items():
        link = assets / name
        link.unlink(missing_ok=True)
        link.symlink_to(path)
    return {**os.environ, "KUBEBUILDER_ASSETS": str(assets), "PROJECT_DIR": str(build.kueue_folder())}


def _read(folder: Path, subject: Path, generator: Path, ended: bool, wall: float) -> Outcome:
    summary = yaml.safe_load((folder / "summary.yaml").read_text())
    spent = yaml.safe_load((folder / f"{subject.name}.stats.yaml").read_text())
    with (folder / "wlStates.csv").open() as rows:
        workloads = list(csv.DictReader(rows))
    classes = {}
    for name in sorted({one["class name"] for one in workloads}):
        of_class = [one for one in workloads if one["class name"] == name]
        waits = [int(one["ms to admitted"]) / 1000 for one in of_class if int(one["ms to admitted"])]
        classes[name] = Wait(
            count=len(of_class),
            unfinished=sum(not int(one["ms to finish"]) for one in of_class),
            evictions=sum(int(one["num evictions"]) for one in of_class),
            mean=sum(waits) / len(waits) if waits else math.nan,
            worst=max(waits, default=math.nan),
        )
    return Outcome(
        ended=ended,
        wall=wall,
        cpu=(spent["userMs"] + spent["sysMs"]) / 1000,
        memory=spent["maxrss"] * 1024,
        classes=classes,
        usage={name: _used(one) for name, one in (summary["clusterQueueClasses"] or {}).items()},
        expected=_expected(yaml.safe_load(generator.read_text())),
        missed=summary["droppedWorkloadEvents"],
        requests=_counts(folder),
    )


def _used(group: dict[str, Any]) -> float:
    """The part of the nominal quota that was in use, on average."""
    return float(group["cpuAverageUsage"]) / group["nominalQuota"] if group["nominalQuota"] else 0.0


def _expected(config: dict[str, Any]) -> int:
    return sum(
        cohort["count"] * queues["count"] * each["count"] * len(each["workloads"])
        for cohort in config["cohorts"]
        for queues in cohort["queuesSets"]
        for each in queues["workloadsSets"]
    )


def _last_words(log: Path) -> str:
    return " … ".join(log.read_text(errors="replace").strip().splitlines()[-3:])[-600:]
