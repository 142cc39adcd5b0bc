"""KubeRay's own samples on a real control plane, unchanged: every Ray cluster that they ask for gets all its pods.

Runs where KUBERAY_CHECKOUT names a checkout of KubeRay. Up to the creation of pods nothing is special about
clouds, GPUs, TPUs and images; left out are only samples with objects of kinds that are not installed here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from shoal.api.meta import Json
from tests.controlplane.plane import ControlPlane, free_ports
from tests.long.test_move_in import SHOAL, objects, running, shoal, until, until_settled

pytestmark = pytest.mark.timeout(2400)

RAY_KINDS = ("RayCluster", "RayJob", "RayService", "RayCronJob")
FOREIGN = {"Queue": "a batch scheduler's own kind"}
WITHOUT_CLUSTER = {
    "ray-cronjob.sample": "its first run comes by the clock",
    "ray-job.use-existing-raycluster": "it selects a cluster that another sample makes",
}


def samples() -> list[Path]:
    folder = Path(os.environ.get("KUBERAY_CHECKOUT", "")) / "ray-operator" / "config" / "samples"
    return sorted(path for path in folder.glob("ray-*.yaml") if {*kinds_of(path)} & {*RAY_KINDS})


def kinds_of(path: Path) -> list[str]:
    return [one["kind"] for one in yaml.safe_load_all(path.read_text()) if one]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    made = ControlPlane(tmp_path_factory.mktemp("plane") / "state", controllers=True)
    made.start()
    yield made
    made.stop()


def missing(plane: ControlPlane, namespace: str) -> dict[str, str]:
    """Ray clusters that lack pods, and how many; of a sample without any cluster that, too."""
    clusters = objects(plane, "rayclusters", "-n", namespace)
    pods = objects(plane, "pods", "-n", namespace)
    lacking = {} if clusters else {"": "no RayCluster"}
    for cluster in clusters:
        name, wanted = (
            cluster["metadata"]["name"],
            1 + sum(map(replicas, cluster["spec"].get("workerGroupSpecs") or ())),
        )
        found = sum(pod["metadata"].get("labels", {}).get("ray.io/cluster") == name for pod in pods)
        if found != wanted:
            lacking[name] = f"{found} of {wanted} pods: {(cluster.get('status') or {}).get('conditions')}"
    return lacking


def replicas(group: Json) -> int:
    count = max(int(group.get("replicas") or 0), int(group.get("minReplicas") or 0))
    return count * int(group.get("numOfHosts") or 1)


@pytest.mark.skipif(not samples(), reason="KUBERAY_CHECKOUT names no checkout of KubeRay")
def test_every_sample_gets_its_pods(plane: ControlPlane, tmp_path: Path) -> None:
    shoal(plane, "install", "--crds-only")
    (port,) = free_ports(1)
    command = [SHOAL, "controller", "--only=ray", f"--health-port={port}", "--open-metrics"]
    told: dict[str, str] = {}
    with running(command, plane, tmp_path / "shoal.log"):
        for path in samples():
            name = path.name.removesuffix(".yaml")
            if foreign := [FOREIGN[kind] for kind in kinds_of(path) if kind in FOREIGN]:
                told[name] = f"left out: {foreign[0]}"
                continue
            told[name] = try_sample(plane, path, name)
        until_settled(port)
    print(json.dumps(told, indent=1))
    assert [name for name, said in told.items() if said.startswith("lacks")] == []
    assert sum(said == "all pods" for said in told.values()) >= 50


def try_sample(plane: ControlPlane, path: Path, name: str) -> str:
    namespace = "s-" + "".join(letter if letter.isalnum() else "-" for letter in name)[:50]
    plane.kubectl("create", "namespace", namespace)
    text = in_one_namespace(path)
    verb = "create" if "generateName" in text else "apply"  # roles of the cluster are those of two samples
    said = plane.kubectl(verb, "-n", namespace, "-f", "-", stdin=text)
    try:
        if name in WITHOUT_CLUSTER:
            return f"stored: {WITHOUT_CLUSTER[name]}"
        until(lambda: not missing(plane, namespace), lambda: missing(plane, namespace))
        return "all pods"
    except AssertionError as error:
        return f"lacks pods: {error}; {said}"
    finally:
        plane.kubectl("delete", "namespace", namespace, "--wait=false")


def in_one_namespace(path: Path) -> str:
    """As published; objects with a namespace of their own are moved to that of the sample."""
    found = [one for one in yaml.safe_load_all(path.read_text()) if one]
    for one in found:
        one["metadata"].pop("namespace", None)
    return "\n".join(f"---\n{yaml.safe_dump(one)}" for one in found)
