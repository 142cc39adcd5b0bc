"""Kubeflow Trainer and JobSet themselves beside Shoal on a real control plane: two TrainJobs, quota for one.

Runs where TRAINER_CHECKOUT and JOBSET_CHECKOUT name checkouts of the two, which are built with Go. Their webhooks are
called, too: Trainer's says when a runtime may be patched.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

from shoal.api.meta import Json
from tests.controlplane.plane import ControlPlane, free_ports
from tests.long.test_move_in import SHOAL, objects, running, shoal, until
from tests.unit.queues.build import cluster_queue, flavor, local_queue, train_job, training_runtime

pytestmark = pytest.mark.timeout(2400)  # where the programs must be built first

TRAINER, JOBSET = Path(os.environ.get("TRAINER_CHECKOUT", "")), Path(os.environ.get("JOBSET_CHECKOUT", ""))
ABSENT = not (TRAINER / "manifests").is_dir() or not (JOBSET / "config").is_dir()
OURS = "kueue.x-k8s.io/manager"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    made = ControlPlane(tmp_path / "state", controllers=True, scheduler=True, nodes=2, jobs_go_on=True)
    made.start()
    yield made
    made.stop()


def built(checkout: Path, package: str, target: Path) -> str:
    subprocess.run(["go", "build", "-o", str(target), package], cwd=checkout, check=True, timeout=1800)
    return str(target)


def configured(plane: ControlPlane, group: str, certificates: str, health: int, port: int) -> str:
    path = plane.folder / f"{group}.yaml"
    said: Json = {
        "apiVersion": f"config.{group}/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": port, "host": "127.0.0.1"},
        "leaderElection": {"leaderElect": False},
        certificates: {"enable": False},
    }
    path.write_text(yaml.safe_dump(said))
    return f"--config={path}"


def call_at(plane: ControlPlane, manifest: Path, port: int, prefix: str) -> None:
    """The API server asks webhooks here, where there is no network for Services."""
    authority = base64.b64encode((plane.folder / "ca.crt").read_bytes()).decode()
    for one in filter(None, yaml.safe_load_all(manifest.read_text())):
        one["metadata"]["name"] = f"{prefix}-{one['metadata']['name']}"
        for hook in one["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}
        plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(one))


def is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except URLError:
        return False


def running_pods(plane: ControlPlane, name: str) -> int:
    found = objects(plane, "pods", "-l", f"jobset.sigs.k8s.io/jobset-name={name}")
    return sum(one["status"]["phase"] == "Running" and one["spec"]["nodeSelector"] == {"pool": "spot"} for one in found)


def told(plane: ControlPlane) -> object:
    return [(one["metadata"]["name"], one.get("status")) for one in objects(plane, "trainjobs,workloads,jobsets")]


@pytest.mark.skipif(ABSENT, reason="TRAINER_CHECKOUT and JOBSET_CHECKOUT name no checkouts of the two")
def test_two_train_jobs_with_quota_for_one(plane: ControlPlane, tmp_path: Path) -> None:
    own, *ports = free_ports(6)
    certificates = tmp_path / "k8s-webhook-server" / "serving-certs"
    certificates.mkdir(parents=True)
    for name in ("crt", "key"):
        shutil.copy(plane.folder / f"server.{name}", certificates / f"tls.{name}")
    definitions = [*(TRAINER / "manifests/base/crds").glob("trainer*.yaml")]
    definitions += (JOBSET / "config/components/crd/bases").glob("*.yaml")
    for path in definitions:
        plane.kubectl("apply", "--server-side", "-f", str(path))
    shoal(plane, "install", "--image", "example.test/shoal:1", "--webhook-url", f"https://127.0.0.1:{own}")
    elsewhere = ["env", f"TMPDIR={tmp_path}"]  # where controllers look for their certificates
    trainer = built(TRAINER, "./cmd/trainer-controller-manager", tmp_path / "trainer")
    trainer_file = configured(plane, "trainer.kubeflow.org", "certManagement", ports[0], ports[1])
    job_set = built(JOBSET, ".", tmp_path / "jobset")
    job_set_file = configured(plane, "jobset.x-k8s.io", "internalCertManagement", ports[2], ports[3])
    ours = [SHOAL, "controller", f"--webhook-url=https://127.0.0.1:{own}", f"--health-port={ports[4]}"]
    with (
        running([*elsewhere, job_set, job_set_file], plane, tmp_path / "jobset.log"),
        running([*elsewhere, trainer, trainer_file], plane, tmp_path / "trainer.log"),
        running(ours, plane, tmp_path / "shoal.log"),
    ):
        until(lambda: all(map(is_ready, (ports[0], ports[2], ports[4]))), lambda: "one of the three is not ready")
        call_at(plane, TRAINER / "manifests/base/webhook/manifests.yaml", ports[1], "trainer")
        call_at(plane, JOBSET / "config/components/webhook/manifests.yaml", ports[3], "jobset")
        walk(plane)


def walk(plane: ControlPlane) -> None:
    plane.kubectl("label", "nodes", "--all", "pool=spot")
    runtime = training_runtime("torch")
    for one in (flavor(nodeLabels={"pool": "spot"}), cluster_queue(quota={"cpu": "4"}), local_queue(), runtime):
        plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(one))
    for name in ("first", "second"):
        job = train_job(name, numNodes=3, resourcesPerNode={"requests": {"cpu": 1}})
        del job["spec"]["suspend"]
        plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(job))
        if name == "first":
            until(lambda: running_pods(plane, "first") == 3, lambda: told(plane))
    until(lambda: "short: 2 cpu" in shoal(plane, "why", "trainjob/second"), lambda: told(plane))
    assert running_pods(plane, "second") == 0
    (held,) = [one for one in objects(plane, "workloads") if "first" in one["metadata"]["name"]]
    off = '{"spec": {"active": false}}'
    plane.kubectl("patch", "workload", held["metadata"]["name"], "--type=merge", "-p", off)
    until(lambda: running_pods(plane, "second") == 3, lambda: told(plane))
    (first,) = [one for one in objects(plane, "trainjobs") if one["metadata"]["name"] == "first"]
    (patch,) = [one for one in first["spec"]["runtimePatches"] if one["manager"] == OURS]
    assert first["spec"]["suspend"] is True and not patch["trainingRuntimeSpec"]["template"]["spec"]
    assert running_pods(plane, "first") == 0
