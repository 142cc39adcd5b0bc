"""The image, made from the Dockerfile on a base of Debian packages, and run as a runtime runs it; needs root."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools import image, rootfs
from tools.rootfs import Stage

from shoal.cli import install_workload
from tests.controlplane.plane import ControlPlane, free_ports
from tests.patience import PATIENCE

KUBECONFIG = "/run/kubeconfig"
ENTER = (
    'mount --bind "$0" "$0" && mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" '
    '&& mount -o remount,ro,bind "$0" && exec chroot --userspec="$USER_OF_IMAGE" "$0" "$@"'
)
"""In a mount namespace of its own: the root is read-only, then the process is the image's user in it."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a root file system is entered by root alone")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return rootfs.make(tmp_path_factory.mktemp("image") / "root", {"REVISION": "0123abcd"})


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory, built: Stage) -> Iterator[ControlPlane]:
    plane = ControlPlane(tmp_path_factory.mktemp("plane") / "state")
    plane.start()
    mounted = built.root / KUBECONFIG.lstrip("/")  # as a volume would be
    mounted.write_text(plane.kubectl("config", "view", "--raw", "--flatten"))
    mounted.chmod(0o644)
    yield plane
    plane.stop()


def entered(built: Stage, *arguments: str, entrypoint: list[str] | None = None) -> list[str]:
    command = [*(built.config.entrypoint if entrypoint is None else entrypoint), *arguments]
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, str(built.root), *command]


def environment(built: Stage) -> dict[str, str]:
    """The image's alone. Its PATH finds the entry point after chroot; the tools before it are found by ours."""
    return {
        **built.config.env,
        "PATH": f"{built.config.env['PATH']}:/usr/sbin:/sbin",
        "USER_OF_IMAGE": built.config.user,
    }


def run(built: Stage, *arguments: str, entrypoint: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    command = entered(built, *arguments, entrypoint=entrypoint)
    return subprocess.run(command, env=environment(built), capture_output=True, text=True, timeout=180, cwd="/")


def test_files_are_root_s_and_nothing_is_there_to_build_with(built: Stage) -> None:
    for path in (built.root / "opt/shoal").rglob("*"):
        found = path.lstat()
        assert found.st_uid == 0, path
        assert stat.S_ISLNK(found.st_mode) or not found.st_mode & 0o022, path
        assert stat.S_ISLNK(found.st_mode) or found.st_mode & 0o004, path
    missing = ("usr/bin/gcc", "usr/bin/cc", "usr/bin/g++", "opt/shoal/bin/pip", "build")
    assert [name for name in missing if (built.root / name).exists()] == []
    assert not (built.root / rootfs.CERTIFICATES.lstrip("/")).exists()


def test_labels_and_bill_of_materials(built: Stage) -> None:
    labels = {name.rpartition(".")[2]: value for name, value in built.config.labels.items()}
    assert labels["title"] == "shoal" and labels["revision"] == "0123abcd" and labels["licenses"] == "Apache-2.0"
    bill = json.loads((built.root / "opt/shoal/sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["version"] == labels["version"]
    listed = {(one["name"], one["version"]) for one in bill["components"]}
    pinned = set(re.findall(r"^([a-z0-9-]+)==([^ \\\n]+)", image.TARGET.read_text(), re.MULTILINE))
    assert pinned <= listed
    assert "python3" in {name for name, _ in listed}  # of Debian
    assert not {"ray", "pip", "setuptools"} & {name for name, _ in listed if name != "python3-pip"}


def test_the_user_has_no_rights_and_the_root_is_read_only(built: Stage) -> None:
    assert built.config.user == f"{install_workload.USER}:{install_workload.USER}"
    code = "import os; print(os.getuid(), os.getgid()); open('/opt/shoal/x', 'w')"
    tried = run(built, "-c", code, entrypoint=["python3"])
    assert tried.stdout.split() == [str(install_workload.USER)] * 2
    assert "Read-only file system" in tried.stderr or "Permission denied" in tried.stderr


def test_it_says_its_help_as_it_is_started_without_arguments(built: Stage) -> None:
    told = run(built, *built.config.command)
    assert told.returncode == 0 and "Usage: shoal" in told.stdout


def test_the_image_installs_and_controls_a_real_cluster(built: Stage, plane: ControlPlane) -> None:
    installed = run(built, "install", "--crds-only", f"--kubeconfig={KUBECONFIG}")
    assert installed.returncode == 0, installed.stderr
    (port,) = free_ports(1)
    arguments = ("controller", f"--kubeconfig={KUBECONFIG}", f"--health-port={port}", "--open-metrics")
    process = subprocess.Popen(
        entered(built, *arguments, "--log-format=json"), env=environment(built), stderr=subprocess.PIPE, text=True
    )
    try:
        until_told(port, "/readyz", "\nready")
        until_told(port, "/metrics", "shoal_leading 1.0")
        status = Path(f"/proc/{process.pid}/status").read_text()
        ids = re.findall(r"^[UG]id:\t(\d+)", status, re.MULTILINE)
        assert ids == [str(install_workload.USER)] * 2
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert [json.loads(line)["message"] for line in said.splitlines()][-1] == "stopped"


def until_told(port: int, path: str, wanted: str) -> None:
    deadline, last = time.monotonic() + PATIENCE, ""
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                last = answer.read().decode()
                if wanted in last:
                    return
        except urllib.error.HTTPError as error:
            last = error.read().decode()
        except OSError as error:
            last = str(error)
        time.sleep(0.2)
    raise AssertionError(f"{path}: {last}")
