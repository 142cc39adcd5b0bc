"""`shoal install` on a real API server, and the controller under exactly the rights that it ships with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.cli import installation
from tests.controlplane.plane import ControlPlane, free_ports
from tests.faults import proven

SHOAL = str(Path(sys.executable).with_name("shoal"))
INSTALL = ("install", "--image", "example.test/shoal:1", "--replicas", "1")
SAMPLES = Path(__file__).parents[2] / "samples" / "appwrapper"


def shoal(plane: ControlPlane, *arguments: str) -> str:
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}
    done = subprocess.run([SHOAL, *arguments], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def webhook_url() -> str:
    """Where this test's controller listens: the control plane here has no network for Services."""
    return f"https://127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture(scope="module")
def health_port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def installed(full_control_plane: ControlPlane, webhook_url: str) -> Iterator[ControlPlane]:
    shoal(full_control_plane, *INSTALL, "--webhook-url", webhook_url)
    yield full_control_plane
    shoal(full_control_plane, "uninstall")


@pytest.fixture
def controller(
    installed: ControlPlane, webhook_url: str, health_port: int, tmp_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """`shoal controller` with the service account's own token, and nothing more."""
    token = installed.kubectl("-n", installation.NAMESPACE, "create", "token", installation.NAME).strip()
    own = json.loads(installed.kubeconfig.read_text())
    own["users"] = [{"name": "admin", "user": {"token": token}}]
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(own))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                SHOAL,
                "controller",
                f"--kubeconfig={path}",
                f"--webhook-url={webhook_url}",
                f"--health-port={health_port}",
            ],
            stdout=log,
            stderr=log,
        )
        yield process
        process.terminate()
        assert process.wait(30) == 0
    said = (tmp_path / "log").read_text()
    assert "forbidden" not in said.lower(), said


def told(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def submit(plane: ControlPlane, sample: str) -> None:
    """Create a sample as soon as the API server knows our certificate: until then it refuses, as it should."""
    deadline = time.monotonic() + 60
    while True:
        try:
            plane.kubectl("create", "-f", str(SAMPLES / sample))
            return
        except RuntimeError as error:
            if "failed calling webhook" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _forgets_pods(patch: pytest.MonkeyPatch) -> None:
    kept = [rule for rule in installation.rules() if "pods" not in rule["resources"]]
    patch.setattr(installation, "rules", lambda: kept)
    # the command runs in a process of its own: apply the poorer role after it
    whole = shoal

    def poorer(plane: ControlPlane, *arguments: str) -> str:
        said = whole(plane, *arguments)
        if arguments[0] == "install":
            role = {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": installation.NAME},
                "rules": kept,
            }
            plane.kubectl("replace", "-f", "-", stdin=json.dumps(role))
        return said

    patch.setattr(sys.modules[__name__], "shoal", poorer)


@proven(without=_forgets_pods)
def test_f133_the_shipped_role_is_enough_and_has_no_star(
    installed: ControlPlane, controller: subprocess.Popen[bytes]
) -> None:
    """F133: our role is broader than our work. Holds: a whole walk passes under exactly it, and no rule has a star."""
    role = json.loads(installed.kubectl("get", "clusterrole", installation.NAME, "-o", "json"))
    for rule in role["rules"]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
    submit(installed, "raycluster.yaml")
    installed.kubectl("wait", "appwrapper/first", "--for=jsonpath={.status.state}=Running", "--timeout=60s")
    installed.kubectl("wait", "raycluster/first", "--for=jsonpath={.status.state}=ready", "--timeout=60s")
    installed.kubectl("delete", "appwrapper", "first", "--wait=true")
    installed.kubectl("wait", "raycluster/first", "--for=delete", "--timeout=60s")
    assert controller.poll() is None


def test_the_installed_webhooks_stamp_and_refuse(installed: ControlPlane, controller: subprocess.Popen[bytes]) -> None:
    submit(installed, "raycluster.yaml")
    stored = json.loads(installed.kubectl("get", "appwrapper", "first", "-o", "json"))
    assert json.loads(stored["metadata"]["annotations"]["shoal.dev/created-by"])["user"] == "admin"
    forged = json.dumps({"metadata": {"annotations": {"shoal.dev/created-by": '{"user":"someone"}'}}})
    installed.kubectl("patch", "appwrapper", "first", "--type=merge", "-p", forged)
    stored = json.loads(installed.kubectl("get", "appwrapper", "first", "-o", "json"))
    assert json.loads(stored["metadata"]["annotations"]["shoal.dev/created-by"])["user"] == "admin"
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"}}
    wrapper = {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": "grants", "namespace": "default"},
        "spec": {"resources": {"GenericItems": [{"generictemplate": role}]}},
    }
    with pytest.raises(RuntimeError, match="cannot be wrapped"):
        installed.kubectl("create", "-f", "-", stdin=json.dumps(wrapper))
    installed.kubectl("delete", "appwrapper", "first", "--wait=true")


def test_a_second_install_changes_nothing_and_uninstall_leaves_users_objects(
    installed: ControlPlane, webhook_url: str, controller: subprocess.Popen[bytes]
) -> None:
    before = installed.kubectl(
        "get", "crd", "appwrappers.workload.codeflare.dev", "-o", "jsonpath={.metadata.generation}"
    )
    shoal(installed, *INSTALL, "--webhook-url", webhook_url)
    after = installed.kubectl(
        "get", "crd", "appwrappers.workload.codeflare.dev", "-o", "jsonpath={.metadata.generation}"
    )
    assert before == after
    submit(installed, "deployment.yaml")
    controller.terminate()  # as the Deployment's pods would end: without rights it could only complain
    controller.wait(30)
    shoal(installed, "uninstall")
    assert "appwrapper" in installed.kubectl("get", "-f", str(SAMPLES / "deployment.yaml"), "-o", "name")
    with pytest.raises(RuntimeError, match="not found"):
        installed.kubectl("-n", installation.NAMESPACE, "get", "deployment", installation.NAME)
    installed.kubectl("delete", "-f", str(SAMPLES / "deployment.yaml"))


def test_a_dry_run_prints_manifests_that_the_server_takes(installed: ControlPlane, webhook_url: str) -> None:
    printed = shoal(installed, *INSTALL, "--webhook-url", webhook_url, "--dry-run", "-o", "yaml")
    taken = installed.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", stdin=printed
    )
    assert taken.count("(server dry run)") == printed.count("\n---\n") + 1
