"""Jobs and RayJobs through one ClusterQueue, until all their pods are bound: Shoal alone beside Kueue with KubeRay.

    python bench/jobs.py                              Shoal, then Kueue with KubeRay: 1,000 Jobs and 200 RayJobs
    python bench/jobs.py --size turns                 the same with quota for a tenth of the Jobs at a time
    python bench/jobs.py --size both --subject all    both sizes, and Kueue with KubeRay without their rate limits, too
    python bench/jobs.py --jobs 50 --rayjobs 10       small, to look at
    python bench/jobs.py --pack FOLDER                programs and files for a machine without Go; on that machine:
                                                      XDG_CACHE_HOME=FOLDER python bench/jobs.py

Every subject gets a fresh control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, KWOK nodes.
Shoal is `shoal controller` as it is; `kueue` is Kueue's manager with the configuration it ships (300 requests a second)
and KubeRay's operator with its defaults (100 requests a second, one reconcile at a time); `kueue-fast` gives both 1,000
requests a second and KubeRay ten reconciles at a time. No subject has webhooks, so everything is created suspended.

Every job has three pods: a Job by its parallelism, a RayJob by a head and two workers. KWOK's pods run no Ray, so
RayJobs are in InteractiveMode: the operators create the whole cluster and do not ask a dashboard that cannot answer.
`burst`: the quota is what all of them ask for, to the last millicore, and nothing ends. `turns`: quota for all RayJobs
and a tenth of the Jobs; pods of Jobs complete as soon as they run, so that most Jobs wait for others to end.

Prints seconds from the first submission until the last pod is bound, and per job; what the subject's own users asked of
the API server by verb and resource, from the server's audit log, until they were at rest (apiserver_request_total knows
no users: beside it stands the sum over all clients); cpu and memory of the subject's processes; and the most quota that
was in use at any instant, by pods and by Workloads, from the history of both. Exits with 1 when a pod was not bound
within --limit seconds, a pod was made twice, or the quota was exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import datetime
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `tests` imports when run as a script

import jobs_objects as objects
import jobs_record as history
from jobs_subjects import SUBJECTS, Subject
from ray_operator import ended, reached
from tests.controlplane import build, packing, peers
from tests.controlplane.plane import ControlPlane, await_kinds, cpu_seconds

from shoal.api import kinds
from shoal.kube.client import Client

AT_ONCE = 32
NODES = 10
QUIET = 5.0
"""Seconds without a request after which a subject is at rest."""


@dataclasses.dataclass
class Outcome:
    """What one run showed. Times are seconds, quota is millicores."""

    subject: str
    size: str
    jobs: int
    ray_jobs: int
    wall: float
    submitted: float
    """After so many seconds the last job was created."""
    waits: dict[str, float]
    unbound: int
    strangers: int
    writes: int
    writes_until_bound: int
    requests: dict[str, dict[str, int]]
    writes_of_all: int
    """Of all clients, the control plane's own included."""
    cpu: dict[str, float]
    cpu_of_plane: dict[str, float]
    memory: dict[str, float]
    """MiB at the most, by process."""
    quota: int
    most_used: dict[str, int]

    @property
    def good(self) -> bool:
        return not self.unbound and not self.strangers and all(used <= self.quota for used in self.most_used.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", choices=[*SUBJECTS, "both", "all"], default="both", help="both: shoal and kueue")
    parser.add_argument("--size", choices=["burst", "turns", "both"], default="burst")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rayjobs", type=int, default=200)
    parser.add_argument("--limit", type=float, default=900, help="seconds after which a run is stopped")
    parser.add_argument("--option", action="append", default=[], help="one more option of `shoal controller`")
    parser.add_argument("--folder", type=Path, help="keep what the subjects said, and the audit log, here")
    parser.add_argument("--json", action="store_true", help="one line for each run")
    parser.add_argument("--pack", type=Path, help="fill this folder for another machine, and run nothing")
    asked = parser.parse_args()
    try:
        if asked.pack:
            pack(asked.pack)
            return 0
        return run_all(asked)
    except (build.CannotBuild, RuntimeError) as error:
        sys.exit(f"error: {error}")


def run_all(asked: argparse.Namespace) -> int:
    subjects = {"both": ["shoal", "kueue"], "all": [*SUBJECTS]}.get(asked.subject, [asked.subject])
    sizes = ["burst", "turns"] if asked.size == "both" else [asked.size]
    good = True
    for size in sizes:
        outcomes = []
        for name in subjects:
            with tempfile.TemporaryDirectory(prefix="jobs-bench-") as scratch:
                outcome = one_run(SUBJECTS[name], size, asked, Path(scratch))
            print(json.dumps(dataclasses.asdict(outcome)) if asked.json else shown(outcome), flush=True)
            outcomes.append(outcome)
            good = good and outcome.good
        for other in outcomes[1:]:
            if not asked.json and subjects[0] == "shoal":
                print(compared(outcomes[0], other), flush=True)
    return 0 if good else 1


# --- one run


def one_run(subject: Subject, size: str, asked: argparse.Namespace, scratch: Path) -> Outcome:
    plane = ControlPlane(
        scratch / "plane",
        controllers=True,
        scheduler=True,
        kwok=True,
        jobs_go_on=size == "burst",
        users=subject.users,
        audit_rules=audit_rules(subject.users),
    )
    try:
        plane.start()
        subject.install(plane)
        await_kinds(plane.kubectl)
        plane.restart_controllers()  # as on a cluster whose kinds were there before: they look for new ones seldom
        with subject.started(plane, asked.option) as processes:
            try:
                return asyncio.run(measure(subject, size, asked, plane, processes))
            finally:
                keep(plane, asked.folder and asked.folder / f"{subject.name}-{size}")
    finally:
        plane.stop()


async def measure(
    subject: Subject, size: str, asked: argparse.Namespace, plane: ControlPlane, processes: dict[str, int]
) -> Outcome:
    at_once = asked.rayjobs + (asked.jobs if size == "burst" else max(1, asked.jobs // 10))
    everything = objects.mixed(asked.jobs, asked.rayjobs)
    async with reached(plane.kubeconfig) as client:
        await prepare(client, at_once)
        await at_rest(plane)
        record = history.Record(client, [one["metadata"]["name"] for one in everything])
        opened = {kind: asyncio.Event() for kind in history.WATCHED}
        watching = [asyncio.create_task(record.run(kind, event)) for kind, event in opened.items()]
        await asyncio.gather(*(event.wait() for event in opened.values()))
        counted, used = writes_of_all(plane), used_by(plane, processes)
        began, moment = time.monotonic(), now()
        created = await submit(client, everything)
        submitted = time.monotonic() - began
        finished = asyncio.create_task(record.done.wait())
        await asyncio.wait([finished, *watching], timeout=asked.limit, return_when=asyncio.FIRST_COMPLETED)
        bound_at = now()
        spent = used_by(plane, processes)
        memory = {name: most_memory(pid) for name, pid in processes.items()}
        await quiet(plane)
        counted = writes_of_all(plane) - counted
        failed = [task.exception() for task in watching if task.done()]
        await ended(finished, *watching)
    if failed:
        raise RuntimeError(f"the history has a gap: a watch ended with {failed[0]!r}")
    waits = sorted(at - created[name] for name, at in record.bound_at.items())
    before_all = history.requests(plane.audit_log, subject.users, since=moment, until=bound_at)
    after = history.requests(plane.audit_log, subject.users, since=moment)
    cpu = {name: round(spent[name] - used[name], 2) for name in spent}
    return Outcome(
        subject=subject.name,
        size=size,
        jobs=asked.jobs,
        ray_jobs=asked.rayjobs,
        wall=round(max(record.bound_at.values(), default=began) - began, 2),
        submitted=round(submitted, 2),
        waits={f"p{part}": round(waits[(len(waits) - 1) * part // 100], 2) for part in (50, 99) if waits},
        unbound=len(record.unbound),
        strangers=len(record.strangers),
        writes=sum(sum(history.writes(one).values()) for one in after.values()),
        writes_until_bound=sum(sum(history.writes(one).values()) for one in before_all.values()),
        requests={user: dict(one.most_common()) for user, one in after.items()},
        writes_of_all=counted,
        cpu={name: cpu[name] for name in processes},
        cpu_of_plane={name: value for name, value in cpu.items() if name not in processes},
        memory=memory,
        quota=history.nominal(at_once),
        most_used=history.highest(record.entries),
    )


async def prepare(client: Client, at_once: int) -> None:
    """Nodes, and queues that the subject has found and opened."""
    for number in range(NODES):
        await client.create(kinds.NODE, node(f"node-{number}"))
    for one in objects.queues(at_once):
        kind = {"ClusterQueue": kinds.CLUSTER_QUEUE, "LocalQueue": kinds.LOCAL_QUEUE}.get(
            one["kind"], kinds.RESOURCE_FLAVOR
        )
        await client.create(kind, one, one["metadata"].get("namespace"))
    deadline = time.monotonic() + 120
    while True:
        queue = await client.get(kinds.LOCAL_QUEUE, objects.QUEUE, objects.NAMESPACE)
        conditions = (queue.get("status") or {}).get("conditions") or ()
        if any(one["type"] == "Active" and one["status"] == "True" for one in conditions):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the queue did not become active: {conditions}")
        await asyncio.sleep(0.2)


def node(name: str) -> dict[str, Any]:
    sizes = {"cpu": "256", "memory": "1Ti", "pods": "500"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": sizes, "allocatable": sizes},
    }


async def submit(client: Client, everything: list[dict[str, Any]]) -> dict[str, float]:
    """When each was sent, by its name."""
    slots, sent = asyncio.Semaphore(AT_ONCE), {}

    async def create(one: dict[str, Any]) -> None:
        async with slots:
            sent[one["metadata"]["name"]] = time.monotonic()
            kind = kinds.JOB if one["kind"] == "Job" else kinds.RAY_JOB
            await client.create(kind, one, objects.NAMESPACE)

    await asyncio.gather(*map(create, everything))
    return sent


async def at_rest(plane: ControlPlane) -> None:
    """Until the plane is at rest: what its own start costs is not asked."""
    used = sum(plane.cpu_seconds().values())
    for _ in range(60):
        await asyncio.sleep(1)
        before, used = used, sum(plane.cpu_seconds().values())
        if used - before < 0.15:
            return


async def quiet(plane: ControlPlane) -> None:
    """Until the subject asks for nothing more: its audit log does not grow."""
    size, since = -1, time.monotonic()
    for _ in range(120):
        found = plane.audit_log.stat().st_size if plane.audit_log.exists() else 0
        if found != size:
            size, since = found, time.monotonic()
        if time.monotonic() - since > QUIET:
            return
        await asyncio.sleep(0.5)


# --- what is counted


def audit_rules(users: tuple[str, ...]) -> str:
    """Only what the subject asks, once each, without bodies; renewed leases and watches are no work."""
    return (
        "- {level: None, resources: [{group: coordination.k8s.io, resources: [leases]}]}\n"
        "- {level: None, verbs: [watch]}\n"
        f"- {{level: Metadata, users: [{', '.join(users)}], omitStages: [RequestReceived]}}\n"
        "- {level: None}\n"
    )


def writes_of_all(plane: ControlPlane) -> int:
    """From apiserver_request_total: writes of all clients but those of leases."""
    total = 0.0
    for line in plane.kubectl("get", "--raw", "/metrics").splitlines():
        if line.startswith("apiserver_request_total{") and 'resource="leases"' not in line:
            verb = line.partition('verb="')[2].partition('"')[0]
            if verb in ("POST", "PUT", "PATCH", "DELETE", "APPLY"):
                total += float(line.rpartition(" ")[2])
    return int(total)


def used_by(plane: ControlPlane, processes: dict[str, int]) -> dict[str, float]:
    return {**plane.cpu_seconds(), **{name: cpu_seconds(pid) for name, pid in processes.items()}}


def most_memory(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return round(int(found) / 1024, 1)


def now() -> str:
    """As the audit log writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# --- what is printed and kept


def shown(one: Outcome) -> str:
    count = one.jobs + one.ray_jobs
    lines = [
        f"{one.subject}, {one.size}: {one.jobs} Jobs and {one.ray_jobs} RayJobs of {objects.PODS} pods",
        f"  all pods bound after {one.wall:.1f} s ({one.unbound} jobs unbound, {one.strangers} pods over); submitted"
        f" in {one.submitted:.1f} s; per job p50 {one.waits.get('p50', 0):.1f} s, p99 {one.waits.get('p99', 0):.1f} s",
        f"  {one.writes} writes ({one.writes / count:.2f} a job), {one.writes_until_bound} until all were bound;"
        f" of all clients together {one.writes_of_all}",
    ]
    for user, asked in one.requests.items():
        listed = ", ".join(f"{number} {what}" for what, number in asked.items())
        lines.append(f"    {user}: {listed}")
    spent = ", ".join(f"{name} {value:.1f} s and {one.memory[name]:.0f} MiB" for name, value in one.cpu.items())
    plane = ", ".join(f"{name} {value:.1f} s" for name, value in one.cpu_of_plane.items())
    lines.append(f"  cpu and memory: {spent}; beside it {plane}")
    most = ", ".join(f"{what} {used / 1000:g}" for what, used in sorted(one.most_used.items()))
    verdict = "never exceeded" if all(used <= one.quota for used in one.most_used.values()) else "EXCEEDED"
    lines.append(f"  quota of {one.quota / 1000:g} cpu {verdict}; the most in use at any instant: {most}")
    return "\n".join(lines)


def compared(ours: Outcome, other: Outcome) -> str:
    time_part, write_part = ours.wall / max(other.wall, 0.01), ours.writes / max(other.writes, 1)
    cpu_part = sum(ours.cpu.values()) / max(sum(other.cpu.values()), 0.01)
    return (
        f"{ours.subject} beside {other.subject}, {ours.size}: {time_part:.2f} of the time (goal 0.67), {write_part:.2f}"
        f" of the writes (goal 0.50), {cpu_part:.2f} of the cpu"
    )


def keep(plane: ControlPlane, folder: Path | None) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for path in [*plane.folder.glob("*.log"), *plane.folder.glob("*.json")]:
        shutil.copy(path, folder / path.name)


def pack(folder: Path) -> None:
    """Programs, CRDs, stages and configuration below `folder`/shoal, as the user's cache has them."""
    modules = {
        ("kwok", "sigs.k8s.io/kwok"): build.kwok_stages(),
        ("kuberay", peers.KUBERAY): peers.kuberay_definitions(),
        ("kueue", build.KUEUE): [*peers.kueue_definitions(), build.kueue_folder() / peers.KUEUE_SHIPPED],
    }
    packing.pack(folder, build.binaries().values(), (peers.kuberay_program(), peers.kueue_program()), modules)
    print(f"packed: XDG_CACHE_HOME={folder} python bench/jobs.py")


if __name__ == "__main__":
    sys.exit(main())
