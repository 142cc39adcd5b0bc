"""How fast the one-machine cluster schedules and runs simulated pods.

    python bench/local.py [--nodes 1000] [--pods 10000] [--gang 1]

Embedded API server in memory, pod scheduler and node agent in one process, simulated runtime. Prints one JSON line:
seconds from the first create until every pod is Running, and the process's largest resident size.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time

from shoal.api import gang as marks
from shoal.api.crds import load_crds
from shoal.api.kinds import CRD, POD
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.local.apiserver import Server
from shoal.local.nodes.agent import Agent, NodeKeeper, NodeShape
from shoal.local.nodes.runtime.simulated import SimulatedRuntime
from shoal.local.scheduler import Scheduler


async def main(nodes: int, pods: int, gang: int) -> None:
    clock = SystemClock()
    server = Server(None)
    await server.start()
    client = Client(server.transport(), timeout=120)
    for definition in load_crds():
        if definition["spec"]["names"]["kind"] in ("ProvisioningRequest", "PodGroup"):
            await client.create(CRD, definition)
    keeper = NodeKeeper(client, "bench", "127.0.0.1", clock)
    began = time.monotonic()
    await keeper.register(
        NodeShape(name=f"node-{i}", capacity={"cpu": "16", "memory": "64Gi"}, runtime="simulated") for i in range(nodes)
    )
    registered = time.monotonic() - began
    agent = Agent(client, "bench", {"simulated": SimulatedRuntime(clock)}, keeper, workers=64)
    scheduler = Scheduler(client)
    tasks = [asyncio.create_task(agent.run()), asyncio.create_task(scheduler.run())]
    await agent.ready.wait()
    await scheduler.ready.wait()
    running: set[str] = set()
    all_running = asyncio.Event()

    def changed(change: object) -> None:
        pod = change.new  # type: ignore[attr-defined]
        if pod is not None and (pod.get("status") or {}).get("phase") == "Running":
            running.add(pod["metadata"]["name"])
            if len(running) == pods:
                all_running.set()

    agent.pods.subscribe(changed)
    limit = asyncio.Semaphore(64)
    began = time.monotonic()

    async def create(index: int) -> None:
        annotations = {marks.GANG_UID: f"gang-{index // gang}", marks.GANG_SIZE: str(gang)} if gang > 1 else {}
        container = {
            "name": "c",
            "image": "busybox",
            "command": ["sleep", "infinity"],
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
        }
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"pod-{index}", "annotations": annotations},
            "spec": {"containers": [container]},
        }
        async with limit:
            await client.create(POD, body, "default")

    await asyncio.gather(*(create(index) for index in range(pods)))
    created = time.monotonic() - began
    await all_running.wait()
    seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    peak = used.ru_maxrss
    print(
        json.dumps(
            {
                "nodes": nodes,
                "pods": pods,
                "gang": gang,
                "nodes_registered_s": round(registered, 1),
                "created_s": round(created, 1),
                "all_running_s": round(seconds, 1),
                "cpu_s": round(used.ru_utime + used.ru_stime, 1),
                "peak_rss_mib": peak // 1024,
            }
        )
    )
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=10000)
    parser.add_argument("--gang", type=int, default=1)
    asyncio.run(main(**vars(parser.parse_args())))
