"""Pods on the machine's own network: Ray's commands and Python programs find what is theirs all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.local import machine
from shoal.local.nodes.runtime import rayentry, raysite
from shoal.local.nodes.runtime.shim import private
from shoal.local.nodes.sandbox import trials
from shoal.local.nodes.sandbox.choose import choose_sandbox
from tests.faults import proven

AUTOSCALER = ["kuberay-autoscaler", "--cluster-name", "tide", "--cluster-namespace", "default"]


def resolves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rayentry, "real_address", lambda text, pod: text)


@proven(without=resolves_nothing)
def test_f290_rays_autoscaler_asks_the_head_of_its_own_pod(tmp_path: Path) -> None:
    """F290: beside a head that shares the machine's network Ray's autoscaler asks the machine's address, where there is
    no head or another's, and the cluster never grows. Holds: it is given the address of its own pod's head."""
    given = {"SHOAL_POD_DIR": str(tmp_path), "SHOAL_POD_IP": "127.9.1.2", "SHOAL_PORT_BASE": "20000"}
    (tmp_path.parent / "peers.json").write_text(json.dumps({"127.9.1.2": {"base": 20000, "directory": str(tmp_path)}}))
    pod = rayentry.RayPod(given)
    assert rayentry.translate(AUTOSCALER, pod) == [*AUTOSCALER, "--gcs-address=127.9.1.2:20000"]
    named = [*AUTOSCALER, "--gcs-address=127.9.1.2:7000"]
    assert rayentry.translate(named, pod) == named


LOOK = """
import os, ssl
print(open("/var/run/secrets/token").read())
print(os.path.exists("/var/run/secrets/token"), os.path.exists("/var/run/secret"), os.listdir("/var/run/secrets"))
try:
    ssl.create_default_context(cafile="/var/run/secrets/token")
except ssl.SSLError as error:
    print("read as a certificate")
"""


def maps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raysite, "DIRECTORY", "/nowhere")


@proven(without=maps_nothing)
def test_f291_python_finds_mounts_whose_paths_are_built_in(tmp_path: Path) -> None:
    """F291: nothing is mounted in the loopback sandbox, and a Python program (Ray's autoscaler, a client that reads its
    account's token) has a mount path built in. Holds: it opens and finds what is behind the path."""
    behind, listed = tmp_path / "secrets", tmp_path / "mounts.json"
    behind.mkdir()
    (behind / "token").write_text("of the account")
    listed.write_text(json.dumps([("/var/run/secrets", str(behind))]))
    told = {**os.environ, "PYTHONPATH": raysite.DIRECTORY, "SHOAL_MOUNTS": str(listed)}
    done = subprocess.run([sys.executable, "-c", LOOK], env=told, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["of the account", "True False ['token']", "read as a certificate"], done.stderr


def believes_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "may_use_namespaces", lambda: True)


@proven(without=believes_the_kernel)
def test_f292_a_root_that_may_not_change_the_network_is_given_no_network_namespaces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """F292: the kernel gives network namespaces and refuses the bridge that joins them: every pod would wait for ever.
    Holds: another sandbox is chosen, or the start is refused when this one was asked for by name."""
    monkeypatch.setattr(trials, "changes_network", lambda: False)
    monkeypatch.setattr(trials, "own_root", lambda network=False: True)
    assert choose_sandbox("auto", "try", None, tmp_path).name == "mounts"
    with pytest.raises(Exception, match="network namespaces: shoal doctor"):
        choose_sandbox("netns", "try", None, tmp_path)
    monkeypatch.setattr(trials, "own_root", lambda network=False: False)
    assert choose_sandbox("auto", "try", None, tmp_path).name == "loopback"


def forbids_all_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_allow", lambda *_: None)


@pytest.mark.skipif(private.landlock_version() < 2, reason="needs a kernel with Landlock")
@proven(without=forbids_all_moves)
def test_f293_files_move_between_directories_of_a_pod(tmp_path: Path) -> None:
    """F293: pods of the loopback sandbox are kept apart by Landlock, which forbids moves between directories unless
    they are allowed by name: pip cannot build a wheel. Holds: a file is moved."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "wheel").touch()

    def move() -> None:
        private.keep_apart()
        (tmp_path / "here" / "wheel").rename(tmp_path / "there" / "wheel")

    assert trials.works(move)
    assert (tmp_path / "there" / "wheel").exists()


def test_doctor_says_which_parts_are_there_without_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "may_use_namespaces", lambda: False)
    monkeypatch.setattr(machine, "may_have_own_namespaces", lambda: False)
    monkeypatch.setattr(machine, "may_use_mounts", lambda: True)
    found = {one.name: one for one in machine.findings()}
    assert found["sandbox"].detail.startswith("mounts:") and "standard ports" in found["sandbox"].advice
    assert found["own files"].good and found["own processes"].good and not found["own network"].good
    assert found["way out"].good
    monkeypatch.setattr(machine, "knows_netlink", lambda: False)
    assert "pyroute2" in machine.sandbox_finding().advice
