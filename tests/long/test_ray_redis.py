"""Real Ray with its state in a real Redis (Debian's): strategy Rolling replaces workers one by one, then the head,
and what the cluster knew it still knows.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.machine import Machine
from tests.long.test_elastic_ray import container, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1700)]

PASSWORD = "not-a-secret"
MAKE = """
import ray
ray.init(namespace="kept")

@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)
class Kept:
    def __init__(self, word):
        self.word = word
    def tell(self):
        return self.word

kept = Kept.options(name="kept", lifetime="detached").remote("as it was")
print(ray.get(kept.tell.remote()))
"""
ASK = """
import ray
ray.init(namespace="kept")
print(ray.get(ray.get_actor("kept").tell.remote(), timeout=120))
"""
NODES = """
import ray
from ray.util.state import list_nodes
ray.init()
for node in list_nodes(detail=True):
    print(node.node_id, node.is_head_node, node.state, node.state_message)
"""


@pytest.fixture(scope="module")
def redis() -> None:
    """Debian's server from Debian's archive, where it is not there yet."""
    if shutil.which("redis-server"):
        return
    if not shutil.which("apt-get"):
        pytest.skip("there is no redis-server, and no apt-get to install it")
    command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "redis-server"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        pytest.skip(f"redis-server cannot be installed: {done.stderr[-300:]}")


def redis_objects() -> list[dict]:
    box = {
        "name": "redis",
        "image": "redis:7.4",
        "command": ["redis-server", "--requirepass", PASSWORD, "--save", "", "--protected-mode", "no"],
        "ports": [{"containerPort": 6379}],
        "readinessProbe": {"tcpSocket": {"port": 6379}},
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
    }
    labels = {"app": "redis"}
    service = {"selector": labels, "ports": [{"port": 6379}]}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "redis", "labels": labels},
            "spec": {"containers": [box]},
        },
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "redis"}, "spec": service},
    ]


def template(role: str, memory: str, version: str) -> dict:
    made = container(role, "1", memory)
    made["env"] = [
        {"name": "VERSION", "value": version},
        {"name": "RAY_gcs_rpc_server_reconnect_timeout_s", "value": "120"},
    ]
    return {"spec": {"containers": [made]}}


def spec_of(version: str) -> dict:
    group = {
        "groupName": "small",
        "replicas": 2,
        "minReplicas": 2,
        "maxReplicas": 2,
        "rayStartParams": {},
        "template": template("ray-worker", "1Gi", version),
    }
    return {
        "upgradeStrategy": {"type": "Rolling"},
        "gcsFaultToleranceOptions": {"redisAddress": "redis:6379", "redisPassword": {"value": PASSWORD}},
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": template("ray-head", "2G", version)},
        "workerGroupSpecs": [group],
    }


def pods(machine: Machine) -> dict[str, tuple[str, str, bool]]:
    """By UID: kind of node, version, readiness."""
    found = machine.get("pods", "-l", "ray.io/cluster=kept")["items"]
    return {
        one["metadata"]["uid"]: (
            one["metadata"]["labels"]["ray.io/node-type"],
            next(env["value"] for env in one["spec"]["containers"][0]["env"] if env["name"] == "VERSION"),
            any(c["type"] == "Ready" and c["status"] == "True" for c in one["status"].get("conditions") or ()),
        )
        for one in found
    }


def in_head(machine: Machine, program: str) -> str:
    head = machine.names("pods", "ray.io/node-type=head")[0]
    return machine.kubectl("exec", head, "-c", "ray-head", "--", "python", "-c", program)


def test_a_rolling_upgrade_moves_the_head_by_redis(redis: None, tmp_path: Path) -> None:
    machine = Machine("redis", tmp_path)
    gate = "ray.feature_gates=RayClusterRollingUpgrade=true"
    machine.up("--node", "name=node,cpu=8,memory=20Gi", "--image", "redis=debian", "--set", gate)
    try:
        for one in redis_objects():
            machine.kubectl("create", "-f", "-", stdin=json.dumps(one))
        machine.wait("pod/redis", "condition=Ready")
        cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "kept"}}
        machine.kubectl("create", "-f", "-", stdin=json.dumps({**cluster, "spec": spec_of("one")}))
        machine.wait("raycluster/kept", "jsonpath={.status.state}=ready", seconds=280)
        assert "as it was" in in_head(machine, MAKE)
        size = ("exec", "redis", "--", "redis-cli", "--no-auth-warning", "-a", PASSWORD, "DBSIZE")
        assert int(machine.kubectl(*size)) > 0
        first = pods(machine)

        machine.kubectl("patch", "raycluster", "kept", "--type=merge", "-p", json.dumps({"spec": spec_of("two")}))
        fewest = 2

        def workers_are_new() -> bool:
            nonlocal fewest
            found = [one for one in pods(machine).values() if one[0] == "worker"]
            fewest = min(fewest, sum(ready for _, _, ready in found))
            return sorted(found) == [("worker", "two", True)] * 2

        print("workers replaced after", until("both workers are new", workers_are_new))
        assert fewest >= 1, "one after the other"
        workers = {uid for uid, one in pods(machine).items() if one[0] == "worker"}
        new = [("head", "two", True), *[("worker", "two", True)] * 2]
        print("head replaced after", until("the head is new", lambda: sorted(pods(machine).values()) == new))
        assert not first.keys() & pods(machine).keys()
        assert "as it was" in in_head(machine, ASK), "the new head knows the actor"
        assert workers == {uid for uid, one in pods(machine).items() if one[0] == "worker"}, "workers stay"
        nodes = in_head(machine, NODES)
        print(nodes)
        ended = [line for line in nodes.splitlines() if " False DEAD" in line]
        assert len(ended) == 2 and not [line for line in ended if "nexpected" in line], "workers were drained"
        machine.kubectl("delete", "raycluster", "kept")
        machine.kubectl("wait", "raycluster/kept", "--for=delete", "--timeout=240s")
        assert int(machine.kubectl(*size)) == 0, "what it stored is cleaned up"
        machine.kubectl("delete", "pod", "redis")
    finally:
        machine.down()
