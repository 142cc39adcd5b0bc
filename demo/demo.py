"""`make demo`: the main job on this machine, step by step, with kubectl and real Ray.

A cluster starts; the first Ray cluster is admitted and runs; the second waits with nothing created, and says why;
deleting the first starts the second at once; a Ray job runs to its end; another one, in a queue, stays suspended until
a GPU node has been provisioned for it. Leaves nothing running. Exits 0 only if every step held.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHOAL = str(Path(sys.executable).with_name("shoal"))
NAME = "demo"
NODE = ["--node", "name=this-machine,cpu=8,memory=8118372Ki", "--base-load", "cpu=3050m,memory=2918400Ki"]
POOL = [
    "--pool",
    "name=gpu,cpu=4,memory=16Gi,nvidia.com/gpu=1,min=0,max=2,delay=3s,taints=nvidia.com/gpu=present:NoSchedule",
]
BOLD, DIM, PLAIN = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "", "")


class Demo:
    def __init__(self) -> None:
        self.kubectl_path = find_kubectl()
        self.environment = dict(os.environ)
        self.step = 0

    def say(self, text: str) -> None:
        self.step += 1
        print(f"\n{BOLD}{self.step}. {text}{PLAIN}", flush=True)

    def run(self, *command: str, quiet: bool = False) -> str:
        shown = " ".join([Path(command[0]).name, *command[1:]]).replace(str(ROOT) + os.sep, "")
        if not quiet:
            print(f"{DIM}$ {shown}{PLAIN}", flush=True)
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, cwd=ROOT)
        if not quiet and done.stdout.strip():
            print(done.stdout.rstrip(), flush=True)
        if done.returncode:
            raise SystemExit(f"the demo stopped: {shown} said: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def kubectl(self, *arguments: str, quiet: bool = False) -> str:
        return self.run(self.kubectl_path, *arguments, quiet=quiet)

    def wait(self, what: str, condition: str, *more: str) -> float:
        began = time.monotonic()
        while "--all" in more and not self.kubectl("get", what, "-o", "name", quiet=True):
            self.expect(time.monotonic() - began < 180, f"{what} to appear")  # kubectl waits for none that is not there
            time.sleep(0.1)
        self.kubectl("wait", what, f"--for={condition}", "--timeout=180s", *more, quiet=True)
        return time.monotonic() - began

    def status(self, name: str) -> dict[str, object]:
        return dict(json.loads(self.kubectl("get", "appwrapper", name, "-o", "json", quiet=True))["status"])

    def expect(self, true: bool, what: str) -> None:
        if not true:
            raise SystemExit(f"the demo stopped: expected {what}")

    def walk(self) -> None:
        self.say(
            "A cluster on this machine: 8 cpu and 8 GB declared, 3 cpu of them taken by the system; "
            "GPU nodes can be added, none is there"
        )
        self.run(SHOAL, "up", "--name", NAME, "--detach", "--no-kubeconfig", *NODE, *POOL)
        self.environment["KUBECONFIG"] = self.run(SHOAL, "kubeconfig", "--name", NAME, quiet=True).strip()
        self.kubectl("get", "nodes")

        self.say(
            "Submit a Ray cluster (1 head, 1 worker; 3 cpu in all): there is room, so all of it is created at once"
        )
        self.kubectl("apply", "-f", "samples/appwrapper/raycluster.yaml")
        self.wait("appwrapper/first", "jsonpath={.status.queuejobstate}=Dispatched")
        took = self.wait("pods", "condition=Ready", "--all")
        self.kubectl("get", "pods")
        print(f"real Ray, ready after {took:.0f} s")

        self.say("Submit a second one: no room, so nothing of it is created; it waits and says why")
        self.kubectl("apply", "-f", "samples/appwrapper/raycluster-second.yaml")
        self.wait("appwrapper/second", "jsonpath={.status.queuejobstate}=Backoff")
        self.kubectl("get", "appwrappers")
        print(f"second waits: {self.status('second').get('message')}")
        self.expect(not [pod for pod in self._pods() if pod.startswith("second-")], "no pod of the second one")

        self.say("Delete the first: the second starts at once")
        self.kubectl("delete", "appwrapper", "first", "--wait=false")
        took = self.wait("appwrapper/second", "jsonpath={.status.queuejobstate}=Dispatched")
        print(f"handed over {took:.1f} s after the delete, Ray's own shutdown included")
        self.kubectl("delete", "appwrapper", "second")

        self.say("Run a Ray job that brings its own cluster, and takes it away again")
        self.kubectl("apply", "-f", "demo/rayjob.yaml")
        self.wait("rayjob/count", "jsonpath={.status.jobStatus}=SUCCEEDED")
        self.kubectl("get", "rayjob", "count")

        self.say("Queue a Ray job that needs a GPU: it stays suspended, nothing runs, until a GPU node is there for it")
        self.kubectl("apply", "-f", "samples/kueue/provisioned-queue.yaml")
        self.kubectl("apply", "-f", "demo/rayjob-queued.yaml")
        self.wait("provisioningrequest", "condition=Accepted", "--all")
        self.run(SHOAL, "get", "--name", NAME)
        self.expect(not [pod for pod in self._pods() if pod.startswith("tune-")], "no pod of the queued job")
        self.wait("rayjob/tune", "jsonpath={.status.jobStatus}=SUCCEEDED")
        self.kubectl("get", "nodes,provisioningrequests,workloads")

    def _pods(self) -> list[str]:
        return [line.split("/")[1] for line in self.kubectl("get", "pods", "-o", "name", quiet=True).split()]

    def clean(self) -> None:
        print(f"\n{DIM}stopping the cluster{PLAIN}", flush=True)
        subprocess.run([SHOAL, "down", "--name", NAME, "--purge"], env=self.environment, capture_output=True)


def find_kubectl() -> str:
    """From PATH, or from the cache, or built alone; says which."""
    found = shutil.which("kubectl")
    if found:
        print(f"kubectl: {found}")
        return found
    print("kubectl is not on PATH: taking it from the cache, or building it once (1 to 2 minutes)", flush=True)
    sys.path.insert(0, str(ROOT))
    from tests.controlplane.build import CannotBuild, binaries

    try:
        path = str(binaries("kubectl")["kubectl"])
    except CannotBuild as error:
        raise SystemExit(f"error: {error}") from None
    print(f"kubectl: {path}")
    return path


if __name__ == "__main__":
    demo = Demo()
    try:
        demo.walk()
    finally:
        demo.clean()
    print(f"\n{BOLD}All of it held.{PLAIN} Next: shoal up --detach, then kubectl apply -f samples/…")
