"""What a user does all day, each by the command that the documentation names; pods are plain processes, no Ray.

From a script to its exit code, rerun, the dashboard and `ray://` need Ray: tests/e2e/test_submit.py. The page is in
tests/browser, a notebook in tests/unit/sdk.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue

import pytest

from tests.e2e.machine import SHOAL, Machine
from tests.patience import PATIENCE

KEY = "a key that signs the notices"
QUEUE = """
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: here}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: shared}
spec:
  namespaceSelector: {}
  resourceGroups:
    - coveredResources: [cpu, memory, nvidia.com/gpu]
      flavors:
        - name: here
          resources:
            - {name: cpu, nominalQuota: 8}
            - {name: memory, nominalQuota: 16Gi}
            - {name: nvidia.com/gpu, nominalQuota: 2}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: jobs}
spec: {clusterQueue: shared}
"""


def job(name: str, code: str, cpu: str = "1", limit: int = 0) -> str:
    container = {
        "name": "c", "image": "python", "command": ["python", "-u", "-c", code],
        "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}},
    }  # fmt: skip
    spec = {"backoffLimit": 0, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    spec |= {"activeDeadlineSeconds": limit} if limit else {}
    labels = {"kueue.x-k8s.io/queue-name": "jobs"}
    return json.dumps(
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels}, "spec": spec}
    )


class Receiver:
    """Somebody's web hook: every notice whose signature is right."""

    def __init__(self) -> None:
        self.notices: Queue[dict[str, str]] = Queue()
        notices = self.notices

        class Hook(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                signed = self.headers["x-shoal-timestamp"].encode() + b"." + body
                expected = "sha256=" + hmac.new(KEY.encode(), signed, hashlib.sha256).hexdigest()
                if hmac.compare_digest(expected, self.headers["x-shoal-signature"]):
                    notices.put(json.loads(body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *given: object) -> None:
                """Quiet."""

        self.server = HTTPServer(("127.0.0.1", 0), Hook)
        self.address = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    started = Receiver()
    yield started
    started.server.shutdown()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Machine]:
    home = tmp_path_factory.mktemp("tasks")
    cluster = Machine("tasks", home)
    cluster.environment |= {"SHOAL_NOTIFY_ALLOW": receiver.address, "SHOAL_NOTIFY_KEY": KEY}
    cluster.up("--node", "cpu=8,memory=16Gi,nvidia.com/gpu=2", "--sandbox", "loopback")
    cluster.kubectl("apply", "-f", "-", stdin=QUEUE)
    yield cluster
    cluster.down("--purge")


def shoal(machine: Machine, *words: str) -> subprocess.CompletedProcess[str]:
    """The command as it is typed; `shoal up` made its cluster the current context."""
    return subprocess.run(
        [SHOAL, *words], env=machine.environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_wait_ends_on_either_outcome_with_a_code_for_each(machine: Machine) -> None:
    machine.kubectl("apply", "-f", "-", stdin=job("broken", "print('it broke'); raise SystemExit(7)"))
    machine.kubectl("apply", "-f", "-", stdin=job("fine", "print('it went well')"))
    for name, code, words in (("broken", 3, "failed"), ("fine", 0, "succeeded")):
        done = shoal(machine, "wait", name, "--timeout", "5m")
        assert (done.returncode, words in done.stdout) == (code, True), done
    assert shoal(machine, "logs", "fine").stdout == "it went well\n"
    told = shoal(machine, "why", "broken").stdout
    assert "Job default/broken failed at 20" in told and "it broke" in told
    late = shoal(machine, "wait", "nothing")
    assert late.returncode == 1 and "there is no gang nothing in namespace default" in late.stderr


def test_free_gpus_and_the_largest_gang_are_one_command_away(machine: Machine) -> None:
    said = shoal(machine, "free", "--queue", "jobs", "--worker-gpu", "1").stdout
    assert "nvidia.com/gpu" in said
    assert "a Ray job in queue jobs would start now with up to 2 workers of 1 cpu, 2Gi memory, 1 nvidia.com/gpu" in said


def test_an_estimate_a_plan_and_what_is_stopped_makes_room(machine: Machine) -> None:
    machine.kubectl("apply", "-f", "-", stdin=job("long", "import time; print('begun'); time.sleep(600)", "8", 600))
    assert shoal(machine, "wait", "long", "--for", "running", "--timeout", "3m").returncode == 0
    machine.kubectl("apply", "-f", "-", stdin=job("next", "print('my turn')", "8", 60))
    told = shoal(machine, "why", "next", "--fresh").stdout
    assert "position 1 of 1 in ClusterQueue shared" in told
    assert "starts from about 20" in told and "by the time limits that the gangs before it declare" in told
    plan = shoal(machine, "submit", "--check", "--queue", "jobs", "--", "true")
    assert plan.returncode == 5 and "waits behind 1" in plan.stdout and "from about" in plan.stdout, plan
    never = shoal(machine, "submit", "--check", "--queue", "jobs", "--workers", "9", "--", "true")
    assert never.returncode == 6 and "can never run" in never.stdout, never
    assert shoal(machine, "stop", "long").returncode == 0
    assert shoal(machine, "wait", "next", "--timeout", "3m").returncode == 0
    # what is gone has left its log and its history
    assert shoal(machine, "logs", "long").stdout == "begun\n"
    kept = shoal(machine, "history", "long").stdout
    assert "Deleted" in kept and "jobs" in kept


def test_ctrl_c_detaches_and_says_how_to_come_back(machine: Machine, tmp_path: Path) -> None:
    manifest = tmp_path / "slow.yaml"
    manifest.write_text(job("slow", "import time; print('begun'); time.sleep(600)"))
    following = subprocess.Popen(
        [SHOAL, "submit", str(manifest)],
        env=machine.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    while "begun" not in following.stdout.readline():
        assert following.poll() is None
    following.send_signal(signal.SIGINT)
    _, said = following.communicate(timeout=PATIENCE)
    assert following.returncode == 130 and "attach again with: shoal logs -f job/slow" in said, said
    assert shoal(machine, "wait", "slow", "--timeout", "1s").returncode == 124  # it goes on
    assert shoal(machine, "stop", "slow").returncode == 0


def test_a_notice_comes_when_a_job_starts_and_ends(machine: Machine, receiver: Receiver, tmp_path: Path) -> None:
    manifest = tmp_path / "told.yaml"
    manifest.write_text(job("told", "print('done')"))
    done = shoal(machine, "submit", str(manifest), "--notify", receiver.address)
    assert done.returncode == 0 and "done" in done.stdout, done
    events = [receiver.notices.get(timeout=PATIENCE) for _ in range(2)]
    assert [(one["event"], one["name"]) for one in events] == [("Started", "told"), ("Ended", "told")]
    assert events[1]["outcome"] == "Succeeded"
