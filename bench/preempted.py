"""How much work a training program loses when its worker is taken: Ray told first, against SIGTERM alone. Real Ray.

    python bench/preempted.py [--times 10] [--drain 10] [--every 10] [--seed 1] [--ways notice sigterm ray]

One machine, one queue, an elastic RayCluster whose only worker is surplus. A trainer on it works in steps, saves every
`--every` seconds, and saves and ends when Ray says that its node is draining, as Ray Serve looks for it. So many times
a job that needs the quota takes the worker; the trainer comes back from its last checkpoint. Three ways: `notice`, Ray
is told `--drain` seconds before; `sigterm`, pods get SIGTERM and Kubernetes' 30 s; `ray`, the same where Ray drains its
own node on SIGTERM, as Ray 2.60 does and older ones do not. Prints one JSON line per way: seconds of work done and not
saved.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

SHOAL = str(Path(sys.executable).with_name("shoal"))
QUEUE = {"kueue.x-k8s.io/queue-name": "jobs"}
STEP = 0.2
DRIVER = """
import os, sys, time
import ray
from ray._raylet import GcsClient

STEP, EVERY, TIMES = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
ray.init(log_to_driver=False)


@ray.remote(num_cpus=0)
class Storage:
    "What was done and what of it was saved, in steps; on the head."
    def __init__(self):
        self.done = self.saved = 0
        self.lost = []
    def start(self):
        self.lost.append(round((self.done - self.saved) * STEP, 1))
        self.done = self.saved
        return self.saved
    def step(self, number):
        self.done = number
    def save(self, number):
        self.done = self.saved = number
    def look(self):
        return self.lost


@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)
class Trainer:
    def run(self, storage):
        context = ray.get_runtime_context()
        gcs, me = GcsClient(address=context.gcs_address), context.get_node_id()
        number, saved_at = ray.get(storage.start.remote()), time.monotonic()
        while True:
            time.sleep(STEP)
            number += 1
            storage.step.remote(number)
            draining = {one if isinstance(one, str) else one.hex() for one in gcs.get_draining_nodes(timeout=5)}
            if me in draining:
                ray.get(storage.save.remote(number))
                os._exit(0)
            if time.monotonic() - saved_at > EVERY:
                ray.get(storage.save.remote(number))
                saved_at = time.monotonic()


storage = Storage.remote()
trainer = Trainer.remote()
running = trainer.run.remote(storage)
seen = 0
while seen <= TIMES:
    for lost in ray.get(storage.look.remote())[seen:]:
        seen += 1
        print("STARTED", seen, lost, flush=True)
    time.sleep(0.1)
"""


class Cluster:
    """`shoal up` in a folder of its own."""

    def __init__(self, drain: int, own: bool) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="preempted-"))
        self.environment = {**os.environ, "XDG_STATE_HOME": str(self.home), "KUBECONFIG": str(self.home / "kubeconfig")}
        self.kubectl_path = shutil.which("kubectl") or _built_kubectl()
        self._run(SHOAL, "up", "--name", "preempted", "--detach", "--node", "name=node,cpu=6,memory=16Gi")
        for one in (*_queue(drain), _ray_cluster(own)):
            self.create(one)

    def create(self, obj: dict) -> None:
        self.kubectl("create", "-f", "-", stdin=json.dumps(obj))

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self._run(self.kubectl_path, *arguments, stdin=stdin)

    def get(self, *arguments: str) -> dict:
        return dict(json.loads(self.kubectl("get", *arguments, "-o", "json")))

    def driver(self, every: float, times: int) -> subprocess.Popen[str]:
        head = self.get("pods", "-l", "ray.io/node-type=head")["items"][0]["metadata"]["name"]
        inner = ["python", "-u", "-c", DRIVER, str(STEP), str(every), str(times)]
        command = [self.kubectl_path, "exec", head, "-c", "head", "--", *inner]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.environment)

    def down(self) -> None:
        self._run(SHOAL, "down", "--name", "preempted")
        shutil.rmtree(self.home, ignore_errors=True)

    def _run(self, *command: str, stdin: str | None = None) -> str:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=self.environment, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command[:4])}: {done.stdout}{done.stderr}")
        return done.stdout


def _built_kubectl() -> str:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.controlplane import build

    return str(build.binaries("kubectl")["kubectl"])


def _queue(drain: int) -> list[dict]:
    api = "kueue.x-k8s.io/v1beta2"
    resources = [{"name": "cpu", "nominalQuota": "3"}]
    group = {"coveredResources": ["cpu"], "flavors": [{"name": "main", "resources": resources}]}
    metadata = {"name": "all", "annotations": {"shoal.dev/drain-seconds": str(drain)}}
    return [
        {"apiVersion": api, "kind": "ResourceFlavor", "metadata": {"name": "main"}},
        {
            "apiVersion": api,
            "kind": "ClusterQueue",
            "metadata": metadata,
            "spec": {"namespaceSelector": {}, "resourceGroups": [group]},
        },
        {"apiVersion": api, "kind": "LocalQueue", "metadata": {"name": "jobs"}, "spec": {"clusterQueue": "all"}},
    ]


def _ray_cluster(own: bool) -> dict:
    def container(name: str) -> dict:
        size = {"cpu": "1"}
        return {"name": name, "image": "rayproject/ray:2.60.0", "resources": {"limits": size, "requests": size}}

    group = {"groupName": "small", "replicas": 0, "minReplicas": 0, "maxReplicas": 1, "rayStartParams": {}}
    off = [] if own else [{"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": "0"}]
    group["template"] = {"spec": {"containers": [{**container("ray-worker"), "env": off}]}}
    head = {"rayStartParams": {"num-cpus": "0"}, "template": {"spec": {"containers": [container("head")]}}}
    spec = {"enableInTreeAutoscaling": True, "headGroupSpec": head, "workerGroupSpecs": [group]}
    spec["autoscalerOptions"] = {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "500m"}}}
    metadata = {"name": "ray", "labels": QUEUE}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec}


def _taker(number: int) -> dict:
    """Needs more than is left beside the worker."""
    size = {"requests": {"cpu": "1"}}
    box = {"name": "main", "image": "busybox", "command": ["sleep", "1"], "resources": size}
    spec = {"suspend": True, "template": {"spec": {"containers": [box], "restartPolicy": "Never"}}}
    metadata = {"name": f"taker-{number}", "labels": QUEUE}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def until(what: str, holds: Callable[[], bool], seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.3)


def measure(way: str, drain: int, every: float, times: int, seed: int) -> list[float]:
    """Seconds of work that each preemption cost."""
    cluster, chosen = Cluster(drain, own=way == "ray"), random.Random(seed)
    lost: list[float] = []
    try:
        until("the cluster is up", lambda: cluster.get("raycluster", "ray").get("status", {}).get("state") == "ready")
        driver = cluster.driver(every, times)
        said: queue.Queue[str] = queue.Queue()
        threading.Thread(target=lambda: [said.put(line) for line in driver.stdout or ()], daemon=True).start()
        for number in range(times + 1):
            line = ""
            while not line.startswith("STARTED"):
                line = said.get(timeout=300)
            if number:
                lost.append(float(line.split()[2]))
                print(f"# {way}: preemption {number} cost {lost[-1]} s of work", file=sys.stderr)
            if number < times:
                time.sleep(chosen.uniform(0.4, 1.6) * every)
                cluster.create(_taker(number))
                job = f"taker-{number}"
                until("the job ran", lambda job=job: bool(cluster.get("job", job)["status"].get("succeeded")))
                cluster.kubectl("delete", "job", job, "--wait=false")
        driver.kill()
    finally:
        cluster.down()
    return lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--drain", type=int, default=10)
    parser.add_argument("--every", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ways", nargs="+", choices=("notice", "sigterm", "ray"), default=["notice", "sigterm", "ray"])
    chosen = parser.parse_args()
    for way in chosen.ways:
        drain = chosen.drain if way == "notice" else 0
        lost = measure(way, drain, chosen.every, chosen.times, chosen.seed)
        print(json.dumps({"way": way, "lost_s": lost, "mean_s": round(statistics.mean(lost), 2)}), flush=True)


if __name__ == "__main__":
    main()
