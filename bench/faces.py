"""What a person waits for: `shoal --help`, and `shoal get` with thousands of gangs beside the server's own answer.

`python bench/faces.py [--gangs 3000] [--rounds 10]` starts a cluster of one small node, fills its queue, and takes
turns: one plain list of the same AppWrappers over a new connection, `shoal get`, `shoal --help`, and Python with
nothing to do. Prints medians, and what `shoal get` takes above the server's answer.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.kube.kubeconfig import load
from shoal.sdk.connecting import ClusterChoice, connected

SHOAL = str(Path(sys.executable).parent / "shoal")
NAME = "bench-faces"
LIST = kinds.APP_WRAPPER.path("default")


def app_wrapper(number: int) -> Json:
    """A Ray-like gang that the node has no room for: two pod templates, about 2.6 KB with its status."""
    environment = [{"name": f"VARIABLE_{index}", "value": "value-" + "x" * 30} for index in range(6)]
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", "600"],
        "env": environment,
        "resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}},
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"train-{number:05d}"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }
    return {
        "apiVersion": kinds.APP_WRAPPER.api_version,
        "kind": "AppWrapper",
        "metadata": {"name": f"train-{number:05d}", "namespace": "default", "labels": {"team": "research"}},
        "spec": {"resources": {"GenericItems": [{"replicas": 1, "generictemplate": job}]}},
    }


async def fill(kubeconfig: Path, gangs: int) -> None:
    """Every gang stored, and each with the reason why it waits."""
    async with connected(ClusterChoice(kubeconfig=kubeconfig)) as client:
        for first in range(0, gangs, 100):
            await asyncio.gather(
                *(
                    client.create(kinds.APP_WRAPPER, app_wrapper(one), "default")
                    for one in range(first, min(first + 100, gangs))
                )
            )
        while True:
            listed = await client.list(kinds.APP_WRAPPER, "default")
            if all((one.get("status") or {}).get("state") for one in listed):
                return
            await asyncio.sleep(1)


def answer(kubeconfig: Path) -> int:
    """The server's own answer, read whole over a new connection; its size."""
    transport = load(kubeconfig, None)
    address = urlsplit(transport.server)
    connection = http.client.HTTPSConnection(address.hostname or "", address.port, context=transport._tls)
    headers = {"authorization": f"Bearer {token}"} if (token := asyncio.run(transport.bearer())) else {}
    connection.request("GET", LIST, headers=headers)
    size = len(connection.getresponse().read())
    connection.close()
    return size


def run(*command: str, kubeconfig: Path) -> str:
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gangs", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHOAL_HOME"] = folder
        up = [SHOAL, "up", "--detach", "--name", NAME, "--runtime", "simulated", "--node", "cpu=1,memory=1Gi"]
        subprocess.run([*up, "--no-kubeconfig", "--no-page"], check=True, stdout=subprocess.DEVNULL)
        try:
            shown = subprocess.run([SHOAL, "kubeconfig", "--name", NAME], check=True, capture_output=True, text=True)
            measure(Path(shown.stdout.strip()), asked.gangs, asked.rounds)
        finally:
            subprocess.run([SHOAL, "down", "--name", NAME], check=True, stdout=subprocess.DEVNULL)


def measure(kubeconfig: Path, gangs: int, rounds: int) -> None:
    asyncio.run(fill(kubeconfig, gangs))
    lines = run(SHOAL, "get", kubeconfig=kubeconfig).count("\n")
    assert lines == gangs + 1, f"{lines} lines of {gangs} gangs"
    tries: dict[str, Callable[[], object]] = {
        "server": lambda: answer(kubeconfig),
        "shoal get": lambda: run(SHOAL, "get", kubeconfig=kubeconfig),
        "shoal --help": lambda: run(SHOAL, "--help", kubeconfig=kubeconfig),
        "python -c pass": lambda: run(sys.executable, "-c", "pass", kubeconfig=kubeconfig),
    }
    took: dict[str, list[float]] = {name: [] for name in tries}
    for _ in range(rounds):
        for name, work in tries.items():
            took[name].append(timed(work))
    medians = {name: statistics.median(each) for name, each in took.items()}
    print(f"{gangs:,} AppWrappers, {answer(kubeconfig) / 1e6:.1f} MB; medians of {rounds}, in seconds")
    for name, each in took.items():
        print(f"  {name:<16} {medians[name]:.3f}  ({min(each):.3f} to {max(each):.3f})")
    above = medians["shoal get"] - medians["server"]
    print(f"  shoal get above the server's answer: {above:.3f} (goal 0.150)")
    print(f"  shoal --help: {medians['shoal --help']:.3f} (goal 0.150)")


if __name__ == "__main__":
    main()
