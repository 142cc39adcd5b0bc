"""`make demo`: two stories on this machine with real Ray, and the page to watch them in a browser.

The first: a Ray cluster is admitted and runs; a second one waits with nothing created, and says why; deleting the first
starts the second at once. The second: a Ray job in a queue stays suspended until a GPU node has been provisioned for
it, then runs to its end. Leaves nothing running. Exits 0 only if every step held. kubectl is used where it is on PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from without_kubectl import StandIn

from shoal.errors import ShoalError

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
        self.began = time.monotonic()
        self.kubectl_path = shutil.which("kubectl")
        self.environment = dict(os.environ)
        self.step = 0
        if self.kubectl_path is None:
            print("kubectl is not on PATH: the demo makes its few requests itself, as kubectl would")

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
        if self.kubectl_path is not None:
            return self.run(self.kubectl_path, *arguments, quiet=quiet)
        if not quiet:
            print(f"{DIM}$ kubectl {' '.join(arguments)}{PLAIN}", flush=True)
        try:
            said = StandIn(self.environment["KUBECONFIG"])(*arguments)
        except ShoalError as error:
            raise SystemExit(f"the demo stopped: kubectl {' '.join(arguments)} said: {error}") from None
        if not quiet:
            print(said.rstrip(), flush=True)
        return said

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
        address = self.run(SHOAL, "open", "--name", NAME, quiet=True).strip()
        print(
            f"{BOLD}Watch it in a browser: {address}{PLAIN}\n(the address logs in once, within two minutes)", flush=True
        )

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

        self.say("Queue a Ray job that needs a GPU: it stays suspended, nothing runs, until a GPU node is there for it")
        self.kubectl("apply", "-f", "samples/kueue/provisioned-queue.yaml")
        self.kubectl("apply", "-f", "demo/rayjob-queued.yaml")
        self.wait("provisioningrequest", "condition=Accepted", "--all")
        self.run(SHOAL, "get", "--name", NAME)
        self.expect(not [pod for pod in self._pods() if pod.startswith("tune-")], "no pod of the queued job")
        self.wait("rayjob/tune", "jsonpath={.status.jobStatus}=SUCCEEDED")
        self.kubectl("get", "nodes,provisioningrequests,workloads")
        self.run(SHOAL, "history", "--name", NAME, "--runs")

    def _pods(self) -> list[str]:
        return [line.split("/")[1] for line in self.kubectl("get", "pods", "-o", "name", quiet=True).split()]

    def clean(self) -> None:
        print(f"\n{DIM}stopping the cluster{PLAIN}", flush=True)
        subprocess.run([SHOAL, "down", "--name", NAME, "--purge"], env=self.environment, capture_output=True)


if __name__ == "__main__":
    os.chdir(ROOT)
    demo = Demo()
    try:
        demo.walk()
    finally:
        demo.clean()
    took = time.monotonic() - demo.began
    print(f"\n{BOLD}All of it held{PLAIN}, in {took:.0f} s. Next: shoal up --detach, then kubectl apply -f samples/…")
