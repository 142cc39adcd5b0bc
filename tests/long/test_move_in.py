"""Shoal takes running workloads over from the real KubeRay, Kueue and MCAD and gives them back: no pod is restarted.

MCAD is in no Go proxy: its test runs where MCAD_CHECKOUT names a checkout of multi-cluster-app-dispatcher.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.api.meta import Json
from tests.controlplane import peers
from tests.controlplane.plane import ControlPlane, free_ports
from tests.patience import PATIENCE

pytestmark = pytest.mark.timeout(2400)  # where the programs must be built first
SHOAL = str(Path(sys.executable).with_name("shoal"))
PODS = 10
"""Three clusters of three, and the pod that submits the job."""


@pytest.fixture
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("plane") / "state"
    made = ControlPlane(folder, controllers=True, scheduler=True, nodes=3, jobs_go_on=True)
    made.start()
    yield made
    made.stop()


def environment(plane: ControlPlane) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(plane.kubeconfig), peers.CERTIFICATES: str(plane.folder / "certificates")}


def shoal(plane: ControlPlane, *arguments: str) -> str:
    done = subprocess.run([SHOAL, *arguments], capture_output=True, text=True, env=environment(plane), timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(plane: ControlPlane, *what: str) -> list[Json]:
    found: list[Json] = json.loads(plane.kubectl("get", *what, "-o", "json"))["items"]
    return found


def until(holds: Callable[[], bool], about: Callable[[], object]) -> None:
    deadline = time.monotonic() + 2 * PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"it never came to that: {about()}"
        time.sleep(0.5)


@contextmanager
def running(command: list[str], plane: ControlPlane, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as file:
        process = subprocess.Popen(command, env=environment(plane), stdout=file, stderr=file)
    try:
        yield process
        assert process.poll() is None, log.read_text()[-2000:]
    finally:
        process.terminate()
        process.wait(60)


def deployment(command: list[str], name: str, image: str) -> Json:
    """What stands for the process in the cluster, as its own chart would install it."""
    labels = {"app": name}
    container = {"name": "operator", "image": image, "command": ["/manager"], "args": command[1:]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def ray_spec() -> Json:
    def pod(name: str) -> Json:
        amounts = {"cpu": "500m", "memory": "256Mi"}
        resources = {"requests": amounts, "limits": amounts}
        return {"spec": {"containers": [{"name": name, "image": "rayproject/ray:2.60.0", "resources": resources}]}}

    workers = {"groupName": "small", "replicas": 2, "minReplicas": 0, "maxReplicas": 9, "rayStartParams": {}}
    return {
        "rayVersion": "2.60.0",
        "headGroupSpec": {"rayStartParams": {}, "template": pod("ray-head")},
        "workerGroupSpecs": [{**workers, "template": pod("ray-worker")}],
    }


def ray_objects() -> list[Json]:
    return [
        {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}
        for kind, name, spec in (
            ("RayCluster", "alone", ray_spec()),
            ("RayJob", "job", {"entrypoint": "sleep 3600", "rayClusterSpec": ray_spec()}),
            ("RayService", "served", {"serveConfigV2": "applications: []\n", "rayClusterConfig": ray_spec()}),
        )
    ]


def ray_pods(plane: ControlPlane) -> dict[str, tuple[str, int]]:
    """Running pods of Ray and of its jobs: UID, and how often a container was started again."""
    found = {}
    for pod in objects(plane, "pods"):
        if pod["status"]["phase"] == "Running" and pod["metadata"].get("labels", {}).get("app") != "kuberay-operator":
            restarts = sum(one["restartCount"] for one in pod["status"].get("containerStatuses") or ())
            found[pod["metadata"]["name"]] = (pod["metadata"]["uid"], restarts)
    return found


def resize(plane: ControlPlane, workers: int) -> None:
    """The controller in charge follows a change of the spec."""
    place = [{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": workers}]
    plane.kubectl("patch", "raycluster", "alone", "--type=json", "-p", json.dumps(place))

    def followed() -> bool:
        (status,) = (one["status"] for one in objects(plane, "rayclusters") if one["metadata"]["name"] == "alone")
        return status.get("desiredWorkerReplicas") == workers and status.get("availableWorkerReplicas") == workers

    until(followed, lambda: objects(plane, "rayclusters"))


def metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def until_settled(port: int) -> None:
    """Ready, and every object was worked on."""

    def settled() -> bool:
        try:
            told = metrics(port)
        except OSError:
            return False
        waiting = [value for name, value in told.items() if name.startswith("shoal_ray_reconcile_queue_length")]
        passes = [
            value for name, value in told.items() if name.startswith("shoal_ray_reconcile_duration_seconds_count")
        ]
        return told.get("shoal_leading") == 1 and bool(waiting) and not any(waiting) and sum(passes) >= 5

    until(settled, lambda: "the controller never settled")


def test_ray_clusters_jobs_and_services_go_from_kuberay_to_shoal_and_back(plane: ControlPlane, tmp_path: Path) -> None:
    definitions = peers.kuberay_definitions()
    for path in definitions:
        plane.kubectl("apply", "--server-side", "-f", str(path))
    command = peers.kuberay("--reconcile-concurrency=2")
    stands = deployment(command, "kuberay-operator", "quay.io/kuberay/operator:v1.6.0")
    with running(command, plane, tmp_path / "kuberay.log"):
        plane.kubectl("create", "-f", "-", stdin=json.dumps(stands))
        for obj in ray_objects():
            plane.kubectl("create", "-f", "-", stdin=json.dumps(obj))
        until(lambda: len(ray_pods(plane)) == PODS, lambda: ray_pods(plane))
        before = ray_pods(plane)
        told = json.loads(shoal(plane, "import", "-o", "json"))
        rows = {(row["kind"], row["name"]): row for row in told["objects"]}
        assert {row["verdict"] for row in rows.values()} == {"same"}, rows
        assert {("RayCluster", "alone"), ("RayJob", "job"), ("RayService", "served")} <= set(rows)
        (found,) = told["controllers"]
        assert found["source"] == "KubeRay" and found["settings"] == {"ray.workers": "2"}
        assert "stopped (1 replicas before)" in shoal(plane, "import", "--take")
    assert objects(plane, "deployments")[0]["spec"]["replicas"] == 0
    record = json.loads(plane.kubectl("get", "-n", "shoal-system", "configmap", "shoal-import", "-o", "json"))
    assert {row["uid"] for row in rows.values()} < set(record["data"])

    shoal(plane, "install", "--crds-only")
    (port,) = free_ports(1)
    ours = [SHOAL, "controller", "--only=ray", f"--health-port={port}", "--open-metrics"]
    with running(ours, plane, tmp_path / "shoal.log"):
        until_settled(port)
        resize(plane, 3)
        until_settled(port)
    with_shoal = ray_pods(plane)
    assert before.items() <= with_shoal.items()
    assert len(with_shoal) == PODS + 1  # the worker that was asked for, and no other

    assert "kuberay-operator in default: 1 replicas" in shoal(plane, "import", "--give-back")
    assert objects(plane, "deployments")[0]["spec"]["replicas"] == 1
    for path in definitions:
        plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
    with running(command, plane, tmp_path / "kuberay.log"):
        resize(plane, 4)
    after = ray_pods(plane)
    assert with_shoal.items() <= after.items()
    assert len(after) == PODS + 2


# --- Kueue


def job(name: str) -> Json:
    pod = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}
    spec = {"restartPolicy": "Never", "containers": [pod]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "labels": {"kueue.x-k8s.io/queue-name": "team"}},
        "spec": {"parallelism": 2, "completions": 2, "suspend": True, "template": {"spec": spec}},
    }


def queues() -> list[Json]:
    """Quota for one of the jobs at a time."""
    version = "kueue.x-k8s.io/v1beta2"
    flavors = [{"name": "any", "resources": [{"name": "cpu", "nominalQuota": "2"}]}]
    group = {"coveredResources": ["cpu"], "flavors": flavors}
    made: list[Json] = [
        {"kind": "ResourceFlavor", "metadata": {"name": "any"}, "spec": {}},
        {
            "kind": "ClusterQueue",
            "metadata": {"name": "all"},
            "spec": {"namespaceSelector": {}, "resourceGroups": [group]},
        },
        {"kind": "LocalQueue", "metadata": {"name": "team", "namespace": "default"}, "spec": {"clusterQueue": "all"}},
    ]
    return [{"apiVersion": version, **one} for one in made]


def running_pods(plane: ControlPlane, name: str) -> dict[str, str]:
    found = objects(plane, "pods", "-l", f"batch.kubernetes.io/job-name={name}")
    return {one["metadata"]["name"]: one["metadata"]["uid"] for one in found if one["status"]["phase"] == "Running"}


def admitted(plane: ControlPlane) -> set[str]:
    """Jobs whose Workload is admitted."""
    return {
        one["metadata"]["ownerReferences"][0]["name"]
        for one in objects(plane, "workloads.kueue.x-k8s.io")
        if any(c["type"] == "Admitted" and c["status"] == "True" for c in one.get("status", {}).get("conditions") or ())
    }


def next_starts(plane: ControlPlane, before: str, name: str) -> dict[str, str]:
    """The controller in charge gives the quota of one job to the next."""
    plane.kubectl("delete", "job", before, "--wait=false")
    until(lambda: len(running_pods(plane, name)) == 2, lambda: objects(plane, "workloads.kueue.x-k8s.io"))
    return running_pods(plane, name)


def test_admitted_jobs_go_from_kueue_to_shoal_and_back(plane: ControlPlane, tmp_path: Path) -> None:
    definitions = peers.kueue_definitions()
    for path in definitions:
        plane.kubectl("apply", "--server-side", "-f", str(path))
    for obj in queues():
        until_created(plane, obj)
    until(lambda: is_served(plane, "workloads.kueue.x-k8s.io"), lambda: "Workloads are not served")  # it asks once
    command = peers.kueue(plane, ["batch/job"])
    stands = deployment(command, "kueue-controller-manager", "registry.k8s.io/kueue/kueue:v0.19.2")
    with running(command, plane, tmp_path / "kueue.log"):
        plane.kubectl("create", "-f", "-", stdin=json.dumps(stands))
        until_created(plane, job("first"))  # of two jobs of one second Kueue takes either
        until(lambda: len(running_pods(plane, "first")) == 2, lambda: (tmp_path / "kueue.log").read_text()[-3000:])
        until_created(plane, job("second"))
        until(lambda: len(objects(plane, "workloads.kueue.x-k8s.io")) == 2, lambda: "a Workload is missing")
        first = running_pods(plane, "first")
        told = json.loads(shoal(plane, "import", "-o", "json"))
        assert {row["verdict"] for row in told["objects"]} == {"same"}, told
        assert {row["state"] for row in told["objects"] if row["kind"] == "Workload"} == {"Admitted", "waits"}
        shoal(plane, "import", "--take")
    workloads = {one["metadata"]["uid"] for one in objects(plane, "workloads.kueue.x-k8s.io")}

    shoal(plane, "install", "--crds-only")
    (port,) = free_ports(1)
    ours = [SHOAL, "controller", "--only=queues", f"--health-port={port}", "--open-metrics"]
    with running(ours, plane, tmp_path / "shoal.log"):
        until(lambda: serves(port, "kueue_admitted_active_workloads", 1), lambda: (tmp_path / "shoal.log").read_text())
        until_created(plane, job("third"))
        until(lambda: serves(port, "kueue_pending_workloads", 2), lambda: metrics(port))
        assert running_pods(plane, "first") == first and admitted(plane) == {"first"}
        assert workloads < {one["metadata"]["uid"] for one in objects(plane, "workloads.kueue.x-k8s.io")}
        second = next_starts(plane, "first", "second")

    shoal(plane, "import", "--give-back")
    for path in definitions:
        plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
    with running(command, plane, tmp_path / "kueue.log"):
        until_created(plane, job("fourth"))
        until(lambda: len(objects(plane, "workloads.kueue.x-k8s.io")) >= 3, lambda: "Kueue made no Workload")
        assert running_pods(plane, "second") == second and admitted(plane) == {"second"}
        next_starts(plane, "second", "third")


def until_created(plane: ControlPlane, obj: Json) -> None:
    """A new kind is served a moment after its definition."""

    def made() -> bool:
        try:
            plane.kubectl("create", "-f", "-", stdin=json.dumps(obj))
        except RuntimeError as error:
            refused.append(str(error))
            return "AlreadyExists" in str(error)
        return True

    refused: list[str] = []
    until(made, lambda: refused[-1])


def is_served(plane: ControlPlane, resource: str) -> bool:
    try:
        return objects(plane, resource) == []
    except RuntimeError:
        return False


def serves(port: int, name: str, value: float) -> bool:
    """The sum over all series of this name."""
    try:
        found = [told for series, told in metrics(port).items() if series.partition("{")[0] == name]
    except OSError:
        return False
    return bool(found) and sum(found) == value


# --- MCAD

SUBMITTER = "system:serviceaccount:default:submitter"


def wrapper(name: str, *items: Json, priority: int = 0) -> Json:
    resources = {"GenericItems": [{"replicas": 1, "generictemplate": one} for one in items]}
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"priority": priority, "schedulingSpec": {"minAvailable": 1}, "resources": resources},
    }


def wrapped_pod(name: str, cpu: str) -> Json:
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"wrapped": "yes"}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


def wrapped_deployment(name: str, replicas: int) -> Json:
    pod = wrapped_pod(name, "100m")
    labels = {"wrapped": "yes", "deployment": name}
    template = {"metadata": {"labels": labels}, "spec": {**pod["spec"], "restartPolicy": "Always"}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": pod["metadata"] | {"name": name}, "spec": spec}


def wrapped_pods(plane: ControlPlane) -> dict[str, tuple[str, int]]:
    """Running pods of AppWrappers: UID, and how often a container was started again."""
    return {
        one["metadata"]["name"]: (
            one["metadata"]["uid"],
            sum(each["restartCount"] for each in one["status"].get("containerStatuses") or ()),
        )
        for one in objects(plane, "pods", "-l", "wrapped=yes")
        if one["status"]["phase"] == "Running"
    }


def states(plane: ControlPlane) -> dict[str, str]:
    found = objects(plane, "appwrappers.workload.codeflare.dev")
    return {one["metadata"]["name"]: (one.get("status") or {}).get("state", "") for one in found}


@pytest.mark.skipif(peers.mcad_checkout() is None, reason="MCAD_CHECKOUT names no checkout of MCAD")
def test_dispatched_app_wrappers_go_from_mcad_to_shoal_and_back(plane: ControlPlane, tmp_path: Path) -> None:
    checkout = peers.mcad_checkout()
    assert checkout is not None
    definitions = peers.mcad_definitions(checkout)
    for path in definitions:
        plane.kubectl("apply", "--server-side", "-f", str(path))
    plane.kubectl("create", "serviceaccount", "submitter")
    plane.kubectl("create", "rolebinding", "submitter", "--clusterrole=edit", "--serviceaccount=default:submitter")
    until(lambda: is_served(plane, "appwrappers.workload.codeflare.dev"), lambda: "AppWrappers are not served")
    command = peers.mcad(checkout, plane, tmp_path)
    stands = deployment(command, "mcad-controller", "quay.io/project-codeflare/mcad-controller:v1.35.0")
    del stands["spec"]["template"]["spec"]["containers"][0]["args"]
    variables = {"QUOTA_ENABLED": "false", "DISPATCHER_MODE": "false", "PREEMPTION": "false"}
    configured = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mcad"}, "data": variables}
    stands["spec"]["template"]["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "mcad"}}]
    with running(command, plane, tmp_path / "mcad.log"):
        for obj in (configured, stands):
            plane.kubectl("create", "-n", "default", "-f", "-", stdin=json.dumps(obj))
        for obj in (
            wrapper("pods", wrapped_pod("one", "1"), wrapped_pod("two", "1")),
            wrapper("served", wrapped_deployment("served", 3)),
        ):
            until_created(plane, obj)
        said = lambda: (states(plane), (tmp_path / "mcad.log").read_text()[-2000:])  # noqa: E731
        until(lambda: states(plane) == {"pods": "Running", "served": "Running"}, said)
        until(lambda: len(wrapped_pods(plane)) == 5, lambda: wrapped_pods(plane))
        until_created(plane, wrapper("large", wrapped_pod("large", "1000")))
        until(lambda: states(plane)["large"] == "Pending", said)
        before = wrapped_pods(plane)
        told = json.loads(shoal(plane, "import", "-o", "json"))
        rows = {row["name"]: row for row in told["objects"] if row["kind"] == "AppWrapper"}
        assert {name: (row["state"], row["needs_creator"]) for name, row in rows.items()} == {
            "pods": ("Running", True),
            "served": ("Running", True),
            "large": ("Pending", True),
        }
        (found,) = told["controllers"]
        assert found["source"] == "MCAD" and found["settings"] == {"preemption": "false", "quota": "never"}
        shoal(plane, "import", "--take", "--creator", SUBMITTER)

    shoal(plane, "install", "--crds-only")
    (port,) = free_ports(1)
    ours = [SHOAL, "controller", "--only=appwrapper", f"--health-port={port}", "--open-metrics"]
    log = tmp_path / "shoal.log"
    with running(ours, plane, log):
        until(lambda: serves(port, "shoal_appwrappers_waiting", 1), log.read_text)
        assert states(plane) == {"pods": "Running", "served": "Running", "large": "Pending"}
        plane.add_node("large", cpu="1100", memory="64Gi")
        until(lambda: states(plane)["large"] == "Running", log.read_text)
        with_shoal = wrapped_pods(plane)
        assert before.items() <= with_shoal.items() and set(with_shoal) == {*before, "large"}
        plane.kubectl("delete", "appwrapper", "pods", "--wait=true")
        until(lambda: len(wrapped_pods(plane)) == 4, lambda: wrapped_pods(plane))
    left = wrapped_pods(plane)

    shoal(plane, "import", "--give-back")
    for path in definitions:
        plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
    with running(command, plane, tmp_path / "mcad.log"):
        until_created(plane, wrapper("later", wrapped_pod("later", "1")))
        until(lambda: states(plane) == {"served": "Running", "large": "Running", "later": "Running"}, said)
        assert left.items() <= wrapped_pods(plane).items()
        plane.kubectl("delete", "appwrapper", "served", "--wait=true")
        until(lambda: set(wrapped_pods(plane)) == {"large", "later"}, lambda: wrapped_pods(plane))
