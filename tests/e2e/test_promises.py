"""What `shoal doctor` promises is what pods get, where there are no programs, rights or namespaces."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e import as_user, deprived
from tests.e2e.machine import Machine
from tests.e2e.test_shapes import cluster, create, ray_job

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(os.geteuid() != 0, reason="only root can give rights up")]

USER = 42019
NET_ADMIN = "12"

LOOK = """
import json, os, socket

def there(path):
    try:
        open(path).read()
        return True
    except OSError:
        return False

def can_listen(port):
    with socket.socket() as one:
        try:
            one.bind(("0.0.0.0", port))
            return True
        except OSError:
            return False

def can_write(path):
    try:
        open(path, "w").close()
        return True
    except OSError:
        return False

print(json.dumps({
    "own network": can_listen(int(os.environ["TAKEN"])),
    "own files": there("/etc" + "/word/word") and not os.path.exists("/tmp" + "/" + os.environ["MARK"]),
    "own processes": os.readlink("/proc/self/ns/pid") != os.environ["PROCESSES"],
    "pods and credentials": not there(os.environ["SECRET"]),
    "overlay file system": can_write("/usr" + "/" + os.environ["MARK"]),
}))
"""


def looking(taken: int, mark: str, secret: Path) -> tuple[dict, dict]:
    """A pod that tries every part; its paths are spelled so that no text of the manifest has them."""
    words = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "word"}, "data": {"word": "fish"}}
    told = {"TAKEN": taken, "MARK": mark, "SECRET": secret, "PROCESSES": os.readlink("/proc/self/ns/pid")}
    look = {
        "name": "look",
        "image": "python",
        "command": ["python3", "-c", LOOK],
        "env": [{"name": name, "value": str(value)} for name, value in told.items()],
        "volumeMounts": [{"name": "word", "mountPath": "/etc/word"}],
    }
    who = {"name": "who", "image": "busybox", "command": ["id", "-u"], "securityContext": {"runAsUser": 4711}}
    volumes = [{"name": "word", "configMap": {"name": "word"}}]
    spec = {"restartPolicy": "Never", "containers": [look, who], "volumes": volumes}
    return words, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "looking"}, "spec": spec}


@pytest.fixture
def less() -> Iterator[Callable[..., Machine]]:
    """A machine without some of what it has, for root or for a user without rights."""
    made: list[tuple[Machine, Path]] = []

    def make(*taken: str, user: int = 0) -> Machine:
        home = Path(tempfile.mkdtemp(prefix="shoal-less-", dir="/tmp"))
        os.chown(home, user, user)
        python = (sys.executable, "-I")
        become = (*python, str(Path(as_user.__file__)), str(user)) if user else ()
        machine = Machine("less", home, (*become, *python, str(Path(deprived.__file__)), *taken, "--"))
        machine.environment["HOME"] = str(home)
        made.append((machine, home))
        return machine

    yield make
    for machine, home in made:
        if (home / "shoal" / "less").exists():
            machine.down("--purge")
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.parametrize(
    "taken, user, sandbox",
    [
        pytest.param(["programs"], 0, "netns", id="root without a program on the PATH"),
        pytest.param([NET_ADMIN], 0, "netns", id="root that may not change the network"),
        pytest.param(["networks"], 0, "mounts", id="root without network namespaces"),
        pytest.param(["networks", "mounts", "users"], 0, "loopback", id="root without namespaces"),
        pytest.param(["programs"], USER, "netns", id="a user without a program on the PATH"),
        pytest.param(["networks"], USER, "mounts", id="a user without network namespaces"),
        pytest.param(["users"], USER, "loopback", id="a user without user namespaces"),
    ],
)
def test_what_doctor_promises_is_what_pods_get(
    less: Callable[..., Machine], taken: list[str], user: int, sandbox: str
) -> None:
    machine = less(*taken, user=user)
    found = json.loads(machine.shoal("doctor", "-o", "json"))
    promised = {one["name"]: one["good"] for one in found}
    assert next(one["detail"] for one in found if one["name"] == "sandbox").startswith(f"{sandbox}:")
    machine.up("--node", "name=node,cpu=4,memory=8Gi")
    with socket.create_server(("0.0.0.0", 0)) as busy, tempfile.NamedTemporaryFile(dir="/tmp") as mark:
        secret = machine.home / "shoal" / "less" / "kubeconfig"
        create(machine, *looking(busy.getsockname()[1], Path(mark.name).name, secret))
        machine.wait("pod/looking", "jsonpath={.status.phase}=Succeeded")
    given = json.loads(machine.kubectl("logs", "looking", "-c", "look"))
    if (written := Path("/usr") / Path(mark.name).name).exists():
        written.unlink()
        given["overlay file system"] = False  # it was the machine's own
    assert given == {name: promised[name] for name in given}
    runs_as = machine.kubectl("logs", "looking", "-c", "who").strip()
    assert (runs_as == "4711") == (sandbox != "loopback" and taken != [NET_ADMIN] and not user)
    named = looking(0, "", Path())[1]
    named["metadata"], named["spec"]["hostAliases"] = {"name": "named"}, [{"ip": "10.0.0.1", "hostnames": ["friend"]}]
    said = machine.kubectl("create", "-f", "-", stdin=json.dumps(named), fails=sandbox == "loopback")
    assert "spec.hostAliases: a container has no /etc/hosts of its own" in said or sandbox != "loopback"


SCRIPT = """
import ray

ray.init()

@ray.remote
def word():
    with open("/home/ray" + "/samples/word") as file:
        return file.read()

print("the word is", ray.get(word.remote()))
"""


@pytest.mark.ray
def test_ray_finds_its_files_without_networks_of_its_own(less: Callable[..., Machine]) -> None:
    """Ports are moved, paths are not: a file whose path is built into a program is there."""
    machine = less("networks")
    machine.up("--node", "name=node,cpu=4,memory=8Gi")
    data = {"sample_code.py": SCRIPT, "word": "fish"}
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": data}
    rays = cluster(volumes=[{"name": "code", "configMap": {"name": "code"}}])
    spec = {"entrypoint": "python /home/ray/samples/sample_code.py", "rayClusterSpec": rays}
    create(machine, code, ray_job("script", spec))
    machine.wait("rayjob/script", "jsonpath={.status.jobDeploymentStatus}=Complete")
    assert "the word is fish" in machine.kubectl("logs", "job/script")
