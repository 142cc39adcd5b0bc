"""`shoal up` by a user without any rights: real Ray in both sandboxes, several clusters, a crash, and no trace left."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.local.nodes.runtime.identity import start_time
from tests.e2e import as_user
from tests.e2e.machine import Machine
from tests.patience import PATIENCE

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

USER = 42017

HEAD = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: %s}
spec:
  rayVersion: "2.60.0"
  headGroupSpec:
    rayStartParams: {dashboard-host: 0.0.0.0}
    template:
      spec:
        containers:
        - name: ray-head
          image: rayproject/ray:2.60.0
          resources: {requests: {cpu: "1", memory: 1Gi}, limits: {cpu: "1", memory: 2Gi}}
          lifecycle: {preStop: {exec: {command: [/bin/sh, -c, ray stop]}}}
"""
WORKERS = """  workerGroupSpecs:
  - groupName: small
    replicas: 2
    minReplicas: 2
    maxReplicas: 2
    rayStartParams: {}
    template:
      spec:
        containers:
        - name: ray-worker
          image: rayproject/ray:2.60.0
          resources: {requests: {cpu: 500m, memory: 1Gi}, limits: {cpu: 500m, memory: 1Gi}}
"""
JOB = "import ray; ray.init(); print('ALIVE', len([node for node in ray.nodes() if node['Alive']]))"


@pytest.fixture
def ordinary(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A machine as a user without rights sees it; afterwards no process of that user may be left."""
    pytest.importorskip("ray", reason="real Ray is not installed")
    if os.geteuid() != 0:
        pytest.skip("only root can become someone else")
    home = Path(tempfile.mkdtemp(prefix="shoal-user-", dir="/tmp"))
    os.chown(home, USER, USER)
    launcher = (sys.executable, "-I", str(Path(as_user.__file__)), str(USER))
    machine = Machine("plain", home, launcher)
    machine.environment["HOME"] = str(home)
    yield machine
    if (home / "shoal" / "plain").exists():
        machine.down("--purge")
    left = processes()
    shutil.rmtree(home, ignore_errors=True)
    shutil.rmtree(f"/tmp/shoal-{USER}", ignore_errors=True)
    assert left == {}, "processes outlived `shoal down`"


def processes() -> dict[int, str]:
    """Everything that this user runs."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == USER and start_time(int(entry.name)) is not None:
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


@pytest.mark.parametrize("sandbox", ["netns", "loopback"])
def test_three_ray_clusters_without_rights(ordinary: Machine, sandbox: str) -> None:
    told = ordinary.shoal("doctor")
    if sandbox == "netns" and "netns" not in told:
        pytest.skip("this machine gives ordinary users no namespaces")
    ordinary.up("--sandbox", sandbox, "--node", "cpu=16,memory=32Gi")
    manifests = "---\n".join([HEAD % "first" + WORKERS, HEAD % "second", HEAD % "third"])
    ordinary.kubectl("apply", "-f", "-", stdin=manifests)
    for name in ("first", "second", "third"):
        ordinary.wait(f"raycluster/{name}", "jsonpath={.status.state}=ready")
    assert len(ordinary.names("pods")) == 5

    head = ordinary.names("pods", "ray.io/cluster=first,ray.io/node-type=head")[0]
    submit = ("ray", "job", "submit", "--address", "http://first-head-svc:8265", "--", "python", "-c", JOB)
    assert "ALIVE 3" in ordinary.kubectl("exec", head, "--", *submit)

    ordinary.kubectl("delete", "raycluster", "second")  # its `ray stop` must not reach the others
    ordinary.wait("pods", "delete", "-l", "ray.io/cluster=second")
    before = {pid: line for pid, line in processes().items() if "gcs_server" in line}
    assert len(before) == 2

    crashed = ordinary.pid()
    os.kill(crashed, signal.SIGKILL)
    until(lambda: start_time(crashed) is None)
    ordinary.up("--sandbox", sandbox)
    ordinary.wait("pods", "condition=Ready", "--all")
    assert {pid: line for pid, line in processes().items() if "gcs_server" in line} == before
    restarts = ordinary.kubectl("get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[0].restartCount}")
    assert restarts.split() == ["0"] * 4
    ordinary.down()
    assert processes() == {}


def until(true: object, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
