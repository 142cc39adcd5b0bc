"""From `helm install` to `helm uninstall` on a real control plane: users with the cluster role edit work meanwhile, and
the release is upgraded under their load.

The earlier release is this chart under an older number, or the checkout that SHOAL_PREVIOUS_RELEASE names: then its
chart is installed and its code runs until the upgrade.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.queues import QueueSettings
from tests.controlplane.plane import ControlPlane
from tests.faults import proven
from tests.integration.release.issuer import Issuer, install_kinds
from tests.integration.release.release import CHART, NAMESPACE, Json, Release, until
from tests.integration.release.users import LAB, SAMPLES, Eve, Load, created
from tests.resting import hold_by, rules_of

CLUSTER_WIDE = (
    "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,"
    "flowschemas,prioritylevelconfigurations"
)
IN_NAMESPACE = (
    "deployments,replicasets,pods,jobs,services,secrets,configmaps,leases,roles,rolebindings,serviceaccounts,"
    "poddisruptionbudgets,networkpolicies"
)
EVERY_NAMESPACE_HAS = {"configmap/kube-root-ca.crt", "serviceaccount/default"}


def uids(plane: ControlPlane, *what: str) -> dict[str, str]:
    found = json.loads(plane.kubectl("get", *what, "-n", LAB, "-o", "json"))["items"]
    return {f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["uid"] for one in found}


def left_behind(plane: ControlPlane) -> set[str]:
    """What an uninstalled release has left, but for its kinds and what cert-manager made."""
    wide = {one for one in plane.kubectl("get", CLUSTER_WIDE, "-o", "name").split() if "shoal" in one}
    own = set(plane.kubectl("-n", NAMESPACE, "get", IN_NAMESPACE, "-o", "name").split())
    return wide | own - EVERY_NAMESPACE_HAS


def earlier(folder: Path) -> tuple[Path, dict[str, str]]:
    """Chart and environment of the release before this one."""
    checkout = os.environ.get("SHOAL_PREVIOUS_RELEASE")
    if checkout:
        return Path(checkout) / "charts" / "shoal", {"PYTHONPATH": f"{checkout}/src"}
    shutil.copytree(CHART, folder / "earlier")
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (folder / "earlier" / "Chart.yaml").write_text(json.dumps({**about, "version": "0.0.1", "appVersion": "0.0.1"}))
    return folder / "earlier", {}


def _helm_knows_no_finalizers(patch: pytest.MonkeyPatch) -> None:
    def nothing(self: Release, pod: Json) -> None:
        ended = json.dumps({"status": {"phase": "Succeeded"}})
        where = ("-n", NAMESPACE, "pod", pod["metadata"]["name"], "--subresource=status", "--type=merge", "-p", ended)
        self.plane.kubectl("patch", *where)

    patch.setattr(Release, "run_pod", nothing)


@proven(without=_helm_knows_no_finalizers)
def test_f441_a_release_comes_is_upgraded_under_load_and_goes_and_nothing_is_lost(
    release: Release, plane: ControlPlane, tmp_path: Path
) -> None:
    """F441: Helm installs Shoal, a user with the role edit works with it, Helm upgrades it under load and uninstalls
    it. Holds: no submission is refused, no gang starts twice, nothing of the release is left, what users run goes on,
    and no deletion waits for a finalizer."""
    chart, environment = earlier(tmp_path)
    plane.add_node("node-0", cpu="4", memory="16Gi")
    release.install("install", {}, chart)
    before = [release.begin(environment), release.begin(environment)]
    for replica in before:
        replica.until_ready()
    eve = Eve(release)
    eve.until_may("appwrappers.workload.codeflare.dev", "rayclusters.ray.io", "questions.shoal.dev")

    eve.create("appwrapper/raycluster.yaml")
    eve.until_state("first", "Running")
    until(lambda: len(eve.pods("first")) == 2, "the first cluster has not all its pods")
    eve.create("appwrapper/raycluster-second.yaml")
    eve.until_state("second", "Pending")
    assert "cpu" in eve.shoal("why", "appwrapper/second") and "second" in eve.shoal("get")
    assert eve.pods("second") == []
    eve.kubectl("delete", "appwrapper", "first", "--wait=true")
    eve.until_state("second", "Running")

    _queued_jobs(plane, eve)
    plane.add_node("node-1", cpu="32", memory="64Gi")
    with Load(eve) as load:
        until(lambda: len(load.submitted) >= 3, "no load")
        release.install("upgrade", {"logFormat": "json"})
        for replica in before:
            fresh = release.begin()
            fresh.until_ready()
            release.end(replica)
        count = len(load.submitted)
        until(lambda: len(load.submitted) >= count + 3 or bool(load.refused), "no load after the upgrade")
    assert load.refused == []
    eve.until_running(["second", *load.submitted])
    assert {created(plane, "pods")[name] for name in load.submitted} == {1}
    wrapped = {name: count for name, count in created(plane, "rayclusters").items() if not name.startswith("train-")}
    assert wrapped == {"first": 1, "second": 1}
    assert admitted(eve) == {"train-second"} and len(eve.pods_of("train-second")) == 1
    assert any('"object":"AppWrapper/lab/load-' in replica.said for replica in release.replicas)
    hold_by(plane.kubeconfig, rules_of(AppWrapperSettings(), QueueSettings(), ray=True))

    kept = "appwrappers.workload.codeflare.dev,rayjobs,rayclusters,workloads.kueue.x-k8s.io,localqueues,pods,services"
    running = uids(plane, kept)
    assert "finished" not in release.uninstall()
    assert left_behind(plane) == set()
    assert uids(plane, kept) == running
    for kind in ("appwrappers.workload.codeflare.dev", "rayjobs", "workloads.kueue.x-k8s.io"):
        plane.kubectl("-n", LAB, "delete", kind, "--all", "--timeout=60s")
    plane.kubectl("delete", "clusterqueue,resourceflavor", "--all", "--timeout=60s")
    until(lambda: uids(plane, "pods,rayclusters") == {}, "pods are left")
    plane.kubectl("delete", "namespace", LAB)


def _queued_jobs(plane: ControlPlane, eve: Eve) -> None:
    """The walk of two training jobs and one GPU: an administrator makes the queue, the user submits; the second job
    waits whole until the first is gone."""
    plane.add_node("gpu", **{"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"})
    of_queue, of_user = [], []
    for one in yaml.safe_load_all((SAMPLES / "ray" / "gpu-queue.yaml").read_text()):
        (of_queue if one["apiVersion"].startswith("kueue") else of_user).append(json.dumps(one))
    plane.kubectl("-n", LAB, "apply", "-f", "-", stdin="\n---\n".join(of_queue))
    configuration, first, second = of_user
    for one in (configuration, first):
        eve.kubectl("create", "-f", "-", stdin=one)
    until(
        lambda: admitted(eve) == {"train-first"} and len(eve.pods_of("train-first")) == 1, "the first job is not there"
    )
    eve.kubectl("create", "-f", "-", stdin=second)
    until(lambda: "nvidia.com/gpu" in eve.shoal("why", "rayjob/train-second"), "why does not name the GPU")
    assert "train-second" in eve.shoal("get")
    assert admitted(eve) == {"train-first"} and eve.pods_of("train-second") == []
    eve.kubectl("delete", "rayjob", "train-first", "--wait=true")
    until(lambda: admitted(eve) == {"train-second"}, "the second job is not admitted")
    until(lambda: len(eve.pods_of("train-second")) == 1, "the second job has no head")


def admitted(eve: Eve) -> set[str]:
    """Jobs whose Workload is admitted, as the user sees them."""
    return {
        one["metadata"]["ownerReferences"][0]["name"]
        for one in json.loads(eve.kubectl("get", "workloads.kueue.x-k8s.io", "-o", "json"))["items"]
        if any(c["type"] == "Admitted" and c["status"] == "True" for c in one.get("status", {}).get("conditions") or ())
    }


def _looks_everywhere(patch: pytest.MonkeyPatch) -> None:
    """Rights and webhooks for all namespaces, as without the value."""
    whole = Release.install

    def unlimited(self: Release, verb: str, values: Json, chart: Path = CHART) -> None:
        whole(self, verb, {name: value for name, value in values.items() if name != "namespaces"}, chart)

    patch.setattr(Release, "install", unlimited)


@proven(without=_looks_everywhere)
def test_f442_one_namespace_and_the_certificates_of_cert_manager(release: Release, plane: ControlPlane) -> None:
    """F442: an administrator gives Shoal one namespace, and leaves the certificate of its webhooks to cert-manager.
    Holds: a user there submits as always; in other namespaces the controller starts and stamps nothing and may read no
    Secret; a renewed certificate is presented without a restart."""
    plane.add_node("node-2", cpu="8", memory="32Gi")
    install_kinds(plane)
    eve = Eve(release)
    plane.kubectl("create", "namespace", "other")
    release.install("install", {"namespaces": [LAB], "certificates": "cert-manager", "replicas": 1})
    issuer = Issuer(plane)
    issuer.issue("shoal-webhook")
    issuer.inject()
    replica = release.begin()
    replica.until_ready()
    eve.until_may("appwrappers.workload.codeflare.dev", "rayclusters.ray.io")
    eve.create("appwrapper/raycluster.yaml")
    eve.until_state("first", "Running")
    until(lambda: len(eve.pods("first")) == 2, "the cluster has not all its pods")

    elsewhere = (
        (SAMPLES / "appwrapper" / "raycluster.yaml").read_text().replace("namespace: default", "namespace: other")
    )
    plane.kubectl("create", "-f", "-", stdin=elsewhere)
    account = f"system:serviceaccount:{NAMESPACE}:shoal-controller"
    for verb, resource, where in (
        ("list", "secrets", "other"),
        ("list", "secrets", NAMESPACE),
        ("create", "pods", "other"),
        ("patch", "rayclusters.ray.io", "other"),
        ("patch", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "other"),
    ):
        assert not may(plane, account, verb, resource, where), (verb, resource, where)
    assert may(plane, account, "list", "secrets", LAB)
    renewed = issuer.issue("shoal-webhook")
    until(lambda: presented(release.relay.port) == renewed.serial, "the renewed certificate is not presented")
    eve.create("appwrapper/raycluster-second.yaml")
    eve.until_state("second", "Running")
    stored = release.get("-n", "other", "appwrapper", "first")
    assert "shoal.dev/created-by" not in (stored["metadata"].get("annotations") or {}) and "status" not in stored
    release.uninstall()
    assert left_behind(plane) == {"secret/shoal-webhook-tls"}  # cert-manager's own to keep
    assert plane.kubectl("-n", LAB, "get", "roles,rolebindings", "-o", "name").split() == [
        "rolebinding.rbac.authorization.k8s.io/eve"
    ]


def may(plane: ControlPlane, account: str, verb: str, resource: str, where: str) -> bool:
    """`kubectl auth can-i` ends with 1 when it says no."""
    try:
        return plane.kubectl("auth", "can-i", verb, resource, "-n", where, f"--as={account}").strip() == "yes"
    except RuntimeError:
        return False


def presented(port: int) -> int:
    """Serial number of the certificate that the webhooks' server shows now."""
    return x509.load_pem_x509_certificate(ssl.get_server_certificate(("127.0.0.1", port)).encode()).serial_number
