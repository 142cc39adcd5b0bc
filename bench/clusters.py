"""What it costs a hub to give gangs to other clusters: the engine's choice against all at once, and many that wait.

    python bench/clusters.py                     everything below, one after the other (some minutes)
    python bench/clusters.py run --members 20 --count 200 --dispatcher engine|all-at-once [--silent] [--rate 10]
    python bench/clusters.py waiting --members 100 --waiting 10000 --kind job|appwrapper [--shapes 10] [--rounds 50]
    python bench/clusters.py whole --members 100 --waiting 10000 --kind job|appwrapper [--shapes 10]
    python bench/clusters.py isolation --members 20 --count 400 --rate 10 --rounds 3

Everything runs in one process, see bench/clusters_world.py. `run`: one-pod Jobs are created as fast as the server takes
them, or `--rate` a second, so that a wait is one gang's own and not that of all before it; a gang is released when its
Job exists in a member. With `--silent` one member swallows all packets from the first submit on; gangs that were sent
there are left out, and the others are to fare as without it. `waiting`: every member is full, so many gangs of so many
shapes wait; one that runs is deleted and one starts, again and again. `whole`: so many gangs, of which every member
holds ten, run to their end, each as long as the hub takes to notice. `isolation`: `run` with and without a member that
swallows packets, in turns, and how much longer the others' gangs take with it.
It needs the packages of requirements.txt, this repository's `bench`, `src` and `tests`, and nothing from outside.
Prints one JSON line per run: gangs a second, submit to released, requests per gang on the hub and on all members
together, CPU seconds per gang or start and resident memory. `…_cpu_ms`: from submit to released by the CPU time of the
process, in which hub and members are, so that other programs of the machine do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `tests` imports when run as a script

from clusters_world import LIMIT, World, world
from tests.unit.appwrapper.build import app_wrapper, pod
from tests.unit.clusters.build import sent_job

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.multicluster import ClusterSettings
from shoal.controllers.multicluster.settings import ALL_AT_ONCE, ENGINE
from shoal.kube.collector import spare_collector

DISPATCHERS = {"engine": ENGINE, "all-at-once": ALL_AT_ONCE}
RUNS = ((3, 300), (20, 300), (100, 300))
SLOWEST = 0.3
"""Seconds a gang may take of one run, beyond that."""


async def measure(count: int, members: int, dispatcher: str, silent: bool, rate: float) -> None:
    settings = ClusterSettings(dispatcher=DISPATCHERS[dispatcher], policy="spread", probe_seconds=30)
    async with world(members, settings) as one:
        one.start(wrappers=False)
        await one.connected()
        await warm_up(one)
        spare_collector()  # as a hub does once it has read everything
        if silent:
            next(iter(one.ways.values())).swallows = True
        finish({**await rush(one, count, rate), "dispatcher": dispatcher, "silent_members": int(silent)})


async def warm_up(one: World) -> None:
    """A gang in every queue, so that members are read before anything is measured."""
    one.expect(len(one.queues))
    for at, queue in enumerate(one.queues):
        await one.hub.create(kinds.JOB, queued_job(99000 + at, [queue]))
    await one.all_released.wait()
    await one.hub.settled(50)


async def rush(one: World, count: int, rate: float) -> dict[str, Any]:
    one.expect(len(one.released) + count)
    one.forget_requests()
    submitted: dict[str, float] = {}
    submitted_cpu: dict[str, float] = {}
    cpu, began = time.process_time(), time.monotonic()
    for at in range(count):
        job = queued_job(at, one.queues)
        if rate:
            await asyncio.sleep(max(0.0, began + at / rate - time.monotonic()))
        submitted[job["metadata"]["name"]] = time.monotonic()
        submitted_cpu[job["metadata"]["name"]] = time.process_time()
        await one.hub.create(kinds.JOB, job)
    async with asyncio.timeout(LIMIT + SLOWEST * count):
        await one.all_released.wait()
    lasted, used = time.monotonic() - began, time.process_time() - cpu
    waits = sorted(one.released[name] - at for name, at in submitted.items() if name not in one.swallowed)
    busy = sorted(one.released_cpu[name] - at for name, at in submitted_cpu.items() if name not in one.swallowed)
    there = one.member_requests()
    return {
        "members": len(one.members),
        "gangs": len(waits),
        "gangs_per_second": round(count / lasted, 1),
        "released_p50_ms": round(waits[len(waits) // 2] * 1000),
        "released_p99_ms": round(waits[int(len(waits) * 0.99)] * 1000),
        "released_p99_cpu_ms": round(busy[int(len(busy) * 0.99)] * 1000),
        "hub_writes_per_gang": round(one.hub_way.requests["writes"] / count, 2),
        "hub_reads_per_gang": round(one.hub_way.requests["reads"] / count, 2),
        "member_writes_per_gang": round(there["writes"] / count, 2),
        "member_reads_per_gang": round(there["reads"] / count, 2),
        "cpu_ms_per_gang": round(used / count * 1000, 1),
    }


def queued_job(at: int, queues: list[str], memory: str = "1Mi") -> Json:
    job = sent_job(f"job-{at:05}", 1, cpu="1", memory=memory)
    job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = queues[at % len(queues)]
    return job


async def wait_and_start(members: int, waiting: int, kind: str, shapes: int, rounds: int) -> None:
    """Members of one core each, gangs of one core each, of different memory where there are more shapes."""
    wrappers = kind == "appwrapper"
    settings = ClusterSettings(policy="first", probe_seconds=30)
    async with world(members, settings, {"cpu": "1", "memory": "64Gi", "pods": "110"}, wrappers=wrappers) as one:
        of = kinds.APP_WRAPPER if wrappers else kinds.JOB
        await one.hub.stock(of, (waiting_gang(at, one.queues, wrappers, shapes) for at in range(members + waiting)))
        one.expect(members)
        cpu, began = time.process_time(), time.monotonic()
        one.start(wrappers=wrappers)
        await one.all_released.wait()
        first = time.monotonic() - began
        await one.hub.settled(100)
        filled = {"to_all_busy_s": round(first, 1), "to_rest_s": round(time.monotonic() - began, 1)}
        filled["to_rest_cpu_s"] = round(time.process_time() - cpu, 1)
        one.forget_requests()
        waits = []
        cpu = time.process_time()
        for _ in range(rounds):
            gone = next(iter(one.where))
            del one.where[gone]
            one.expect(len(one.released) + 1)
            began = time.monotonic()
            await one.delete(of, gone)
            await one.all_released.wait()
            waits.append(time.monotonic() - began)
        await one.hub.settled(100)
        used = time.process_time() - cpu
        waits.sort()
        finish(
            {
                "kind": kind,
                "members": members,
                "waiting": waiting,
                "shapes": shapes,
                "rounds": rounds,
                **filled,
                "cpu_ms_per_start": round(used / rounds * 1000, 1),
                "start_p50_ms": round(waits[len(waits) // 2] * 1000),
                "start_p99_ms": round(waits[int(len(waits) * 0.99)] * 1000),
                "hub_writes_per_start": round(one.hub_way.requests["writes"] / rounds, 2),
            }
        )


async def to_the_end(members: int, count: int, kind: str, shapes: int) -> None:
    wrappers = kind == "appwrapper"
    settings = ClusterSettings(policy="first", probe_seconds=30)
    size = {"cpu": "10", "memory": "64Gi", "pods": "110"}
    async with world(members, settings, size, wrappers=wrappers, ends=True) as one:
        of = kinds.APP_WRAPPER if wrappers else kinds.JOB
        await one.hub.stock(of, (waiting_gang(at, one.queues, wrappers, shapes) for at in range(count)))
        one.expect(count)
        cpu, began = time.process_time(), time.monotonic()
        one.start(wrappers=wrappers)
        await one.all_released.wait()
        await one.hub.settled(200)
        lasted, there = time.monotonic() - began, one.member_requests()
        left = sum([len(await each.names(of)) for each in one.members.values()])
        finish(
            {
                "kind": kind,
                "members": members,
                "gangs": len(one.released),
                "shapes": shapes,
                "seconds": round(lasted, 1),
                "gangs_per_second": round(count / lasted, 1),
                "cpu_ms_per_gang": round((time.process_time() - cpu) / count * 1000, 1),
                "hub_writes_per_gang": round(one.hub_way.requests["writes"] / count, 2),
                "member_writes_per_gang": round(there["writes"] / count, 2),
                "fewest_and_most_in_a_member": [min(one.starts.values()), max(one.starts.values())],
                "copies_left": left,
            }
        )


def isolate(members: int, count: int, rate: float, rounds: int) -> None:
    """In turns, so that what else the machine does falls on both alike."""
    found: dict[bool, list[int]] = {False: [], True: []}
    busy: dict[bool, list[int]] = {False: [], True: []}
    for at in range(rounds):
        for silent in (False, True) if at % 2 == 0 else (True, False):
            words = ["run", "--members", members, "--count", count, "--rate", rate, *(["--silent"] if silent else [])]
            made = json.loads(again(*words))
            found[silent].append(made["released_p99_ms"])
            busy[silent].append(made["released_p99_cpu_ms"])
    ratios = sorted(with_it / without for without, with_it in zip(found[False], found[True], strict=True))
    print(
        json.dumps(
            {
                "members": members,
                "gangs_a_round": count,
                "rate": rate,
                "p99_ms_without": found[False],
                "p99_ms_with_a_silent_member": found[True],
                "median_ratio": round(ratios[len(ratios) // 2], 3),
                "ratio_of_medians": round(median(found[True]) / median(found[False]), 3),
                "p99_cpu_ms_without": busy[False],
                "p99_cpu_ms_with_a_silent_member": busy[True],
                "ratio_of_cpu_medians": round(median(busy[True]) / median(busy[False]), 3),
            }
        )
    )


def waiting_gang(at: int, queues: list[str], wrappers: bool, shapes: int) -> Json:
    memory = f"{1 + at % shapes}Mi"
    name = f"gang-{at:05}"
    if wrappers:
        return app_wrapper(name, pod(name, cpu="1", memory=memory))
    job = queued_job(at, queues, memory)
    job["spec"]["suspend"] = True
    return job


def finish(found: dict[str, Any]) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({**found, "rss_mib": memory}), flush=True)
    os._exit(0)  # servers in memory leave nothing behind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["run", "waiting", "whole", "isolation"])
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--dispatcher", choices=list(DISPATCHERS), default="engine")
    parser.add_argument("--rate", type=float, default=0.0, help="gangs a second; 0: as fast as the server takes them")
    parser.add_argument("--silent", action="store_true", help="one member swallows all packets")
    parser.add_argument("--kind", choices=["job", "appwrapper"], default="appwrapper")
    parser.add_argument("--waiting", type=int, default=500)
    parser.add_argument("--shapes", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    if chosen.what == "run":
        asyncio.run(measure(chosen.count, chosen.members, chosen.dispatcher, chosen.silent, chosen.rate))
    if chosen.what == "waiting":
        asyncio.run(wait_and_start(chosen.members, chosen.waiting, chosen.kind, chosen.shapes, chosen.rounds))
    if chosen.what == "whole":
        asyncio.run(to_the_end(chosen.members, chosen.waiting, chosen.kind, chosen.shapes))
    if chosen.what == "isolation":
        isolate(chosen.members, chosen.count, chosen.rate or 10, chosen.rounds)
        return
    for members, count in RUNS:
        for dispatcher in DISPATCHERS:
            again("run", "--members", members, "--count", count, "--dispatcher", dispatcher)
    for kind in ("job", "appwrapper"):
        again("waiting", "--members", 25, "--waiting", 500, "--kind", kind)
    isolate(20, 400, 10, 3)


def again(*words: object) -> str:
    """In a process of its own; what it printed."""
    command = [sys.executable, __file__, *map(str, words)]
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(made, end="", flush=True)
    return made


if __name__ == "__main__":
    main()
