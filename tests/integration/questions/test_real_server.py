"""Questions on a real API server: under the shipped rights and webhooks, and with two replicas and no webhook."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.api.meta import Json
from shoal.cli import installation
from tests.controlplane.plane import ControlPlane, free_ports
from tests.integration.test_install import (
    SHOAL,
    apply,
    controller,
    health_port,
    installed,
    shoal,
    told,
    until,
    until_allowed,
    webhook_url,
)
from tests.unit.queues.build import cluster_queue, flavor, job, local_queue

__all__ = ["controller", "health_port", "installed", "webhook_url"]

BINDING = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding"}


def namespaced(kind: str, api_version: str, name: str, namespace: str, **rest: object) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **rest}


def kubeconfig_of(plane: ControlPlane, token: str, path: Path) -> Path:
    own = json.loads(plane.kubeconfig.read_text())
    own["users"] = [{"name": "admin", "user": {"token": token}}]
    path.write_text(json.dumps(own))
    return path


def wrapper(name: str, namespace: str, cpu: str) -> Json:
    item = {
        "generictemplate": namespaced("ConfigMap", "v1", name, namespace),
        "custompodresources": [{"replicas": 1, "requests": {"cpu": cpu}}],
    }
    return namespaced("AppWrapper", "workload.codeflare.dev/v1beta1", name, namespace,
                      spec={"resources": {"GenericItems": [item]}})  # fmt: skip


def ask(kubeconfig: Path, *arguments: str) -> Json:
    done = subprocess.run(
        [SHOAL, "why", *arguments, "-o", "json", "--kubeconfig", str(kubeconfig)],
        capture_output=True, text=True, timeout=120, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: Json = json.loads(done.stdout)
    return found


def test_an_ordinary_user_asks_and_learns_only_the_names_they_may_read(
    installed: ControlPlane, controller: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """The user has the cluster's own role `edit` in one namespace; what `shoal install` adds to it lets them ask."""
    plane = installed
    for name in ("red", "blue"):
        plane.kubectl("create", "namespace", name)
    plane.kubectl("-n", "red", "create", "serviceaccount", "ann")
    rules = [
        {"apiGroups": ["workload.codeflare.dev"], "resources": ["appwrappers"], "verbs": ["get", "list", "create"]}
    ]
    apply(plane, namespaced("Role", "rbac.authorization.k8s.io/v1", "gangs", "red", rules=rules))
    subject = {"kind": "ServiceAccount", "name": "ann", "namespace": "red"}
    for role in ({"kind": "Role", "name": "gangs"}, {"kind": "ClusterRole", "name": "edit"}):
        reference = {"apiGroup": "rbac.authorization.k8s.io", **role}
        metadata = {"name": role["name"], "namespace": "red"}
        apply(plane, {**BINDING, "metadata": metadata, "roleRef": reference, "subjects": [subject]})
    user = "system:serviceaccount:red:ann"
    until_allowed(plane, user, "red", "questions.shoal.dev", "appwrappers.workload.codeflare.dev")
    hers = kubeconfig_of(plane, plane.kubectl("-n", "red", "create", "token", "ann").strip(), tmp_path / "ann")
    nodes = json.loads(plane.kubectl("get", "nodes", "-o", "json"))["items"]
    most = min(int(one["status"]["allocatable"]["cpu"]) for one in nodes)
    for number in range(len(nodes)):
        apply(plane, wrapper(f"secret-{number}", "blue", str(most - 1)))
        plane.kubectl("-n", "blue", "wait", f"appwrapper/secret-{number}",
                      "--for=jsonpath={.status.queuejobstate}=Dispatched", "--timeout=60s")  # fmt: skip
    apply(plane, wrapper("waits", "red", str(most - 1)))
    plane.kubectl("-n", "red", "wait", "appwrapper/waits", "--for=jsonpath={.status.queuejobstate}=Backoff",
                  "--timeout=60s")  # fmt: skip
    found = ask(hers, "waits", "-n", "red", "--fresh")
    assert (found["reason"], found["namedBy"], found["holders"]) == ("Room", "Rights", []), found
    holders = {f"AppWrapper/blue/secret-{number}" for number in range(len(nodes))}
    holders.add(f"Deployment/{installation.NAMESPACE}/{installation.NAME}")  # its pods take room, and are no gang's
    assert found["holdersNotShown"] == len(holders) and found["releaseNotShown"] == 1
    assert "blue" not in json.dumps(found) and found["madeFrom"]["at"]
    everyones = ask(plane.kubeconfig, "waits", "-n", "red")
    assert set(everyones["holders"]) == holders and everyones["holders"][0].startswith("AppWrapper/blue/secret-")
    forged = namespaced("Question", "shoal.dev/v1alpha1", "forged", "red")
    forged["metadata"]["annotations"] = {"shoal.dev/created-by": '{"user":"admin","groups":["system:masters"]}'}
    forged["spec"] = {"target": {"kind": "AppWrapper", "name": "waits"}}
    apply(plane, forged, f"--as={user}")
    plane.kubectl("-n", "red", "wait", "question/forged", "--for=jsonpath={.status.reason}=Room", "--timeout=60s")
    assert "blue" not in plane.kubectl("-n", "red", "get", "question", "forged", "-o", "jsonpath={.status}")
    for name in ("red", "blue"):
        plane.kubectl("-n", name, "delete", "appwrappers", "--all", "--wait=true")


@pytest.fixture
def replicas(full_control_plane: ControlPlane, tmp_path: Path) -> Iterator[list[tuple[subprocess.Popen[bytes], int]]]:
    """Two controllers and no webhook; the first leads."""
    plane = full_control_plane
    shoal(plane, "install", "--crds-only")
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "two-replicas"}})
    started: list[tuple[subprocess.Popen[bytes], int]] = []
    try:
        for number, port in enumerate(free_ports(2)):
            with (tmp_path / f"log-{number}").open("wb") as log:
                command = [SHOAL, "controller", f"--kubeconfig={plane.kubeconfig}", "--namespace=two-replicas",
                           "--only=queues", f"--health-port={port}"]  # fmt: skip
                started.append((subprocess.Popen(command, stdout=log, stderr=log), port))
            until(lambda port=port: is_served(port))  # type: ignore[misc]
            if number == 0:
                until(lambda: bool(leader(plane)))
        yield started
    finally:
        for process, _ in started:
            if process.poll() is None:
                process.terminate()
                process.wait(60)


def is_served(port: int) -> bool:
    try:
        return bool(told(port, "/healthz"))
    except OSError:
        return False


def leader(plane: ControlPlane) -> str:
    return plane.kubectl(
        "-n", "two-replicas", "get", "lease", "shoal-controller", "--ignore-not-found", "-o",
        "jsonpath={.spec.holderIdentity}",
    )  # fmt: skip


def test_only_the_leader_answers_and_the_next_one_does_when_it_is_gone(
    full_control_plane: ControlPlane, replicas: list[tuple[subprocess.Popen[bytes], int]]
) -> None:
    plane = full_control_plane
    first = job("first", cpu="3")
    first["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "example.com/never"}]  # or it would end at once
    for obj in (flavor(), cluster_queue(quota={"cpu": "4"}), local_queue(), first):
        apply(plane, obj)
    plane.kubectl("wait", "job/first", "--for=jsonpath={.spec.suspend}=false", "--timeout=60s")
    apply(plane, job("second", cpu="2"))
    until(lambda: ask(plane.kubeconfig, "job/second").get("reason") == "Quota")
    found = ask(plane.kubeconfig, "job/second", "--fresh")
    assert (found["holders"], found["release"], found["namedBy"]) == (
        ["Job/default/first"],
        ["Job/default/first"],
        "Namespace",
    )
    assert (found["position"], found["queueLength"], found["localPosition"]) == (1, 1, 1)
    stored = json.loads(plane.kubectl("get", "questions", "-o", "json", "--show-managed-fields"))["items"]
    assert stored and all(
        sum(one.get("subresource") == "status" for one in question["metadata"]["managedFields"]) == 1
        for question in stored
    )
    before = leader(plane)
    replicas[0][0].kill()
    replicas[0][0].wait(30)
    until(lambda: leader(plane) not in ("", before))
    until(lambda: ask(plane.kubeconfig, "job/second").get("reason") == "Quota")
    plane.kubectl("delete", "job", "--all", "--wait=true")
