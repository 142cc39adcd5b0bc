"""The commands as a user types them: up, node, kubeconfig, down; with pods that are plain processes, no Ray."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from shoal.local.runtime.identity import start_time
from tests.e2e.machine import judge

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

SHOAL = str(Path(sys.executable).with_name("shoal"))


class Shell:
    """Commands in an environment of their own."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.config = directory / "kubeconfig"
        self.audit_log = directory / "audit.log"
        self.environment = {**os.environ, "SHOAL_HOME": str(self.home), "KUBECONFIG": str(self.config)}

    def shoal(self, *words: str, good: bool = True) -> str:
        if words[0] == "up":
            words = (*words, "--audit-log", str(self.audit_log))
        done = subprocess.run(
            [SHOAL, *words], env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode == 0) == good, done.stdout + done.stderr
        return done.stdout + done.stderr

    def kubectl(self, *words: str, text: str = "") -> str:
        done = subprocess.run(
            ["kubectl", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            input=text,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pid(self, name: str = "test") -> int:
        return int(json.loads((self.home / name / "running.json").read_text())["pid"])


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    found = Shell(tmp_path)
    yield found
    if (found.home / "test").exists():
        found.shoal("down", "--name", "test", "--purge")
    judge(found.audit_log)


def running(mark: str) -> list[int]:
    """Processes of this machine whose command line holds the mark, without the dead."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes() and start_time(int(entry.name)) is not None:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def until(look: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


SLEEPER = """
apiVersion: v1
kind: Pod
metadata: {name: sleeper}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: busybox, command: [sh, -c, "echo begun; sleep 86397"]}]
"""


def test_a_cluster_comes_serves_and_goes_without_a_trace(shell: Shell) -> None:
    shell.config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "contexts": [{"name": "work", "context": {}}],
                "clusters": [],
                "users": [],
                "current-context": "work",
            }
        )
    )
    said = shell.shoal("up", "--detach", "--name", "test", "--node", "cpu=1,memory=1Gi", "--base-load", "cpu=100m")
    assert "is ready after" in said
    assert yaml.safe_load(shell.config.read_text())["current-context"] == "shoal-test"
    assert shell.shoal("kubeconfig", "--name", "test").strip() == str(shell.home / "test" / "kubeconfig")
    refused = shell.shoal("up", "--detach", "--name", "test", good=False)
    assert str(shell.pid()) in refused and "already running" in refused
    shell.shoal("node", "add", "cpu=2,memory=4Gi,name=extra", "--name", "test")
    assert shell.kubectl("get", "nodes", "-o", "name").split() == ["node/extra", "node/node-0"]
    shell.kubectl("apply", "-f", "-", text=SLEEPER)
    shell.kubectl("wait", "pod/sleeper", "--for=condition=Ready", "--timeout=30s")
    until(lambda: shell.kubectl("logs", "sleeper") == "begun\n")
    shell.shoal("node", "remove", "extra", "--name", "test")
    shell.shoal("down", "--name", "test")
    assert running("86397") == [] and running(str(shell.home)) == []
    left = yaml.safe_load(shell.config.read_text())
    assert [entry["name"] for entry in left["contexts"]] == ["work"]


def test_what_was_there_is_there_again_and_a_killed_cluster_goes_on(shell: Shell) -> None:
    shell.shoal("up", "--detach", "--name", "test", "--node", "cpu=2,memory=2Gi,count=2")
    shell.kubectl("apply", "-f", "-", text=SLEEPER)
    shell.kubectl("wait", "pod/sleeper", "--for=condition=Ready", "--timeout=30s")
    before = running("86397")
    assert before
    os.kill(shell.pid(), signal.SIGKILL)
    until(lambda: start_time(shell.pid()) is None)
    shell.shoal("up", "--detach", "--name", "test")  # without a word about nodes: as before
    assert len(shell.kubectl("get", "nodes", "-o", "name").split()) == 2
    shell.kubectl("wait", "pod/sleeper", "--for=condition=Ready", "--timeout=30s")
    assert running("86397") == before
    assert shell.kubectl("get", "pod", "sleeper", "-o", "jsonpath={.status.containerStatuses[0].restartCount}") == "0"
    os.kill(shell.pid(), signal.SIGKILL)
    until(lambda: start_time(shell.pid()) is None)
    shell.shoal("down", "--name", "test")  # nobody is there to do it: the command itself does
    assert running("86397") == []


def test_a_restarted_cluster_restarts_the_pods_that_should_run(shell: Shell) -> None:
    shell.shoal("up", "--detach", "--name", "test", "--node", "cpu=2,memory=2Gi")
    shell.kubectl("apply", "-f", "-", text=SLEEPER)
    shell.kubectl("wait", "pod/sleeper", "--for=condition=Ready", "--timeout=30s")
    shell.shoal("down", "--name", "test")
    assert running("86397") == []
    shell.shoal("up", "--detach", "--name", "test")
    count = ("get", "pod", "sleeper", "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
    until(lambda: shell.kubectl(*count) == "1" and running("86397"))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("up", "--name", "Bad_Name"), "cluster name"),
        (("up", "--node", "cpu=1"), "names no memory"),
        (("up", "--pool", "cpu=1,memory=1Gi"), "has no name"),
        (("up", "--image", "x=/no/such/place"), "is not a directory"),
        (("down", "--name", "absent"), "there is no cluster absent"),
        (("kubeconfig", "--name", "absent"), "shoal up --name absent"),
        (("node", "add", "cpu=1,memory=1Gi", "--name", "absent"), "is not running"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(shell: Shell, words: tuple[str, ...], complaint: str) -> None:
    assert complaint in shell.shoal(*words, good=False)


def test_doctor_says_what_the_machine_allows(shell: Shell) -> None:
    said = shell.shoal("doctor")
    for line in ("Python", "sandbox", "memory limits", "GPUs"):
        assert line in said
