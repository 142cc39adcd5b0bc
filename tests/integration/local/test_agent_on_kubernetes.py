"""The node agent alone serves a real API server: simulated pods, real processes, and a Ray cluster that runs a job.

And what our scheduler says of pods that wait, beside the real one.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.api.crds import load_crds
from shoal.api.kinds import RAY_JOB
from shoal.controllers import ray
from shoal.kube.client import Client
from shoal.kube.kubeconfig import load
from tests.controlplane.plane import ControlPlane, await_kinds
from tests.integration.conftest import judged
from tests.integration.local.conftest import until
from tests.integration.local.reasons import SITUATIONS, can_take_pods, our_cluster, said
from tests.resting import hold_remote, rules_of

pytestmark = pytest.mark.controlplane

SHOAL = str(Path(sys.executable).with_name("shoal"))
SAMPLES = Path(__file__).parents[1] / "ray" / "samples"
REAL = {"kubernetes.io/hostname": "real"}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("plane") / "state"
    yield from judged(ControlPlane(folder, controllers=True, scheduler=True, audit=True))


async def test_both_schedulers_say_the_same_about_a_pod_that_waits(plane: ControlPlane) -> None:
    """Before the agent brings nodes of its own."""
    transport = load(Path(plane.kubeconfig))
    try:
        theirs = Client(transport)
        await can_take_pods(theirs)
        async with our_cluster() as ours:
            for situation in SITUATIONS:
                expected = await said(ours, situation)
                assert await said(theirs, situation, expected) == expected, situation
    finally:
        await transport.close()


@pytest.fixture(scope="module")
def agent(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """`shoal node --kubeconfig FILE` with one node of each runtime; afterwards nothing of it runs."""
    home = tmp_path_factory.mktemp("home")
    words = ["--node", "name=real,cpu=4,memory=8Gi", "--node", "name=thought,cpu=64,memory=64Gi,runtime=simulated"]
    child = subprocess.Popen(
        [SHOAL, "node", "--kubeconfig", str(plane.kubeconfig), *words],
        env={**os.environ, "SHOAL_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None and "serving real, thought" in child.stdout.readline()
        plane.kubectl("wait", "node", "--all", "--for=condition=Ready", "--timeout=60s")
        yield plane
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(60)
    plane.kubectl("wait", "node", "--all", "--for=condition=Ready=false", "--timeout=60s")
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and str(home).encode() in _command(pid)]
    assert not left, f"processes of pods outlived their agent: {left}"


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def pod(name: str, node: str, *command: str) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox", "command": list(command)}
    spec = {"nodeSelector": {"kubernetes.io/hostname": node}, "restartPolicy": "Never", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def create(plane: ControlPlane, *objects: dict[str, Any]) -> None:
    plane.kubectl("create", "-f", "-", stdin=yaml.safe_dump_all(objects))


def phase(plane: ControlPlane, name: str, wanted: str) -> None:
    plane.kubectl("wait", f"pod/{name}", "-n", "default", f"--for=jsonpath={{.status.phase}}={wanted}", "--timeout=60s")


def test_nodes_that_the_cluster_has_given_up_come_back(agent: ControlPlane) -> None:
    """The machine slept: the controller that judges leases says Unknown, and waits for the agent to say more."""
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "no word of it"}
    body = json.dumps({"status": {"conditions": [unknown]}})
    agent.kubectl("patch", "node", "thought", "--subresource=status", "-p", body)
    said = agent.kubectl("wait", "node", "thought", "--for=condition=Ready", "--timeout=60s")
    assert "node/thought condition met" in said


def test_pods_run_as_processes_and_as_thoughts(agent: ControlPlane) -> None:
    create(
        agent,
        pod("short", "real", "sh", "-c", "test -d /proc"),
        pod("broken", "real", "sh", "-c", "exit 3"),
        pod("dream", "thought", "sleep", "1"),
        pod("idle", "thought", "sleep", "infinity"),
    )
    for name, wanted in (("short", "Succeeded"), ("broken", "Failed"), ("dream", "Succeeded"), ("idle", "Running")):
        phase(agent, name, wanted)
    broken = json.loads(agent.kubectl("get", "pod", "broken", "-n", "default", "-o", "json"))
    assert broken["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    agent.kubectl("delete", "pod", "idle", "short", "broken", "dream", "-n", "default", "--timeout=60s")


def test_logs_exec_copies_and_ports_go_through_the_real_server(agent: ControlPlane, tmp_path: Path) -> None:
    """kubectl asks the API server, which asks the node's port; both are the real ones."""
    serve = "echo first; echo second; exec python3 -m http.server 8123 --bind 0.0.0.0 --directory /tmp"
    used = pod("used", "real", "sh", "-c", serve)
    used["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": 8123}, "periodSeconds": 1}
    create(agent, used, pod("lost", "real", "sh", "-c", "exit 0"))
    agent.kubectl("wait", "pod/used", "-n", "default", "--for=condition=Ready", "--timeout=60s")
    there = ("-n", "default", "used")
    until(lambda: agent.kubectl("logs", *there) == "first\nsecond\n")
    assert agent.kubectl("logs", *there, "--tail=1", "--timestamps").endswith("Z second\n")
    assert agent.kubectl("exec", *there, "--", "sh", "-c", "hostname; echo $((6*7))") == "used\n42\n"
    assert agent.kubectl("exec", "-i", *there, "--", "cat", stdin="through\n") == "through\n"
    with pytest.raises(RuntimeError, match="command terminated with exit code 5"):
        agent.kubectl("exec", *there, "--", "sh", "-c", "exit 5")
    (tmp_path / "given").write_text("x" * 100_000)
    agent.kubectl("cp", "-n", "default", str(tmp_path / "given"), "used:/tmp/given")
    assert agent.kubectl("exec", *there, "--", "wc", "-c", "/tmp/given").split()[0] == "100000"
    forwarding = agent.open_kubectl("port-forward", "-n", "default", "pod/used", ":8123")
    try:
        assert forwarding.stdout is not None
        port = re.search(r"127\.0\.0\.1:(\d+)", forwarding.stdout.readline())
        assert port is not None
        with urllib.request.urlopen(f"http://127.0.0.1:{port.group(1)}/given") as answer:
            assert answer.read() == b"x" * 100_000
    finally:
        forwarding.kill()
        forwarding.wait()
    with pytest.raises(RuntimeError, match='previous terminated container "main" in pod "used" not found'):
        agent.kubectl("logs", *there, "--previous")
    agent.kubectl("delete", "pod", "used", "lost", "-n", "default", "--timeout=60s")


def test_the_nodes_port_answers_only_the_cluster(agent: ControlPlane) -> None:
    node = json.loads(agent.kubectl("get", "node", "real", "-o", "json"))["status"]
    port = node["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    (address,) = [one["address"] for one in node["addresses"]]
    unknown = ssl.create_default_context()
    unknown.check_hostname, unknown.verify_mode = False, ssl.CERT_NONE
    for path in ("containerLogs/default/used/main", "exec/default/used/main?command=id", "pods"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"https://{address}:{port}/{path}", context=unknown)
        assert refused.value.code == 401


@pytest.mark.ray
@pytest.mark.timeout(300)
async def test_a_ray_cluster_with_a_worker_runs_a_job(agent: ControlPlane) -> None:
    """kube-scheduler binds, our agent runs the processes, our operator submits: one RayJob, head and worker."""
    pytest.importorskip("ray", reason="real Ray is not installed")
    for crd in load_crds():
        if crd["spec"]["group"] == "ray.io":
            create(agent, crd)
    await_kinds(agent.kubectl)
    transport = load(agent.kubeconfig)
    client = Client(transport)
    operator = asyncio.create_task(ray.run(client, ray.RaySettings(dashboard_by_pod_address=True)))
    try:
        manifest = yaml.safe_load((SAMPLES / "rayjob-http.yaml").read_text())
        spec = manifest["spec"]["rayClusterSpec"]
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            group["template"]["spec"]["nodeSelector"] = REAL
        await client.create(RAY_JOB, manifest, "default")
        async with asyncio.timeout(180):
            while True:
                status = (await client.get(RAY_JOB, "rayjob-http", "default")).get("status") or {}
                if status.get("jobDeploymentStatus") in ("Complete", "Failed"):
                    break
                await asyncio.sleep(0.5)
        assert status["jobStatus"] == "SUCCEEDED", status
        assert status["rayClusterStatus"]["readyWorkerReplicas"] == 1
        await hold_remote(client, rules_of(ray=True))
        await client.delete(RAY_JOB, "rayjob-http", "default")
        await asyncio.to_thread(
            agent.kubectl, "wait", "pods", "--all", "-n", "default", "--for=delete", "--timeout=60s"
        )
    finally:
        operator.cancel()
        await asyncio.gather(operator, return_exceptions=True)
        await transport.close()
