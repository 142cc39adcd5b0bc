"""The loopback sandbox mounts nothing: scripts, Python and the home of a Ray image find what a manifest mounts."""

from __future__ import annotations

import pytest

from shoal.local.nodes.runtime import loopback, scripts
from tests.faults import proven
from tests.processes.conftest import Machine, pod, text

SCRIPT = "#!/bin/sh\necho written > /etc/ray/tls/key\n. /etc/gen/words.sh\ncat /etc/ray/tls/key /etc/gen/plain\n"
PYTHON = """
import glob, pathlib, shutil
pathlib.Path("/data/in/deep").mkdir(parents=True)
pathlib.Path("/data/in/deep/x").write_text("found")
found, copied = glob.glob("/data/in/**/x", recursive=True), shutil.copy("/data/in/deep/x", "/data/in/y")
print(found, copied, open("/data/in/y").read())
shutil.rmtree("/data/in/deep")
"""


def leaves_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "script_text", lambda path: None)


@proven(without=leaves_scripts)
async def test_f400_a_script_out_of_a_config_map_finds_the_mounts_that_it_names(plain: Machine) -> None:
    """F400: in the loopback sandbox a container runs a script out of a ConfigMap, and the script names mounts of the
    container. Holds: it finds them, in scripts that it calls as well; files that are no scripts are as they are."""
    plain.things.config_maps["gen"] = {
        "data": {"make.sh": SCRIPT, "words.sh": "echo from /etc/gen/x", "plain": "/etc/gen/x\n"}
    }
    mounts = [{"name": "gen", "mountPath": "/etc/gen"}, {"name": "tls", "mountPath": "/etc/ray/tls"}]
    volumes = [{"name": "gen", "configMap": {"name": "gen", "defaultMode": 0o777}}, {"name": "tls", "emptyDir": {}}]
    run = await plain.ended(pod("script", "/etc/gen/make.sh", container={"volumeMounts": mounts}, volumes=volumes))
    said = (await text(run)).splitlines()
    assert said[0].startswith("from /") and said[0].endswith("/x") and said[0] != "from /etc/gen/x"
    assert said[1:] == ["written", "/etc/gen/x"], said


async def test_python_of_any_image_finds_and_makes_files_by_mount_paths(plain: Machine) -> None:
    mounts = {"volumeMounts": [{"name": "in", "mountPath": "/data/in"}]}
    volumes = [{"name": "in", "emptyDir": {}}]
    built_in = PYTHON.replace('"/data/in', '"/da" "ta/in')  # nowhere in the command line
    one = pod("python", "python3", "-c", built_in, image="python", container=mounts, volumes=volumes)
    run = await plain.ended(one)
    assert await text(run) == "['/data/in/deep/x'] /data/in/y found\n"


def knows_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "_own_directories", lambda *_: [])


@proven(without=knows_no_home)
async def test_f401_home_and_logs_of_a_ray_image_are_found_by_their_usual_paths(plain: Machine) -> None:
    """F401: in the loopback sandbox a container of a Ray image names its home, a mount below it by `~`, or Ray's logs,
    which a container beside it reads from a shared volume. Holds: each finds them."""
    plain.things.config_maps["code"] = {"data": {"train.py": "print('trained')"}}
    head = {
        "name": "main",
        "image": "rayproject/ray:2.9",
        "command": [
            "bash",
            "-c",
            'cd /home/ray && python ~/code/train.py && mkdir -p "$SHOAL_SCRATCH/s/logs" && '
            'ln -s s "$SHOAL_SCRATCH/session_latest" && echo line > "$SHOAL_SCRATCH/session_latest/logs/raylet.out"',
        ],
        "volumeMounts": [{"name": "code", "mountPath": "/home/ray/code"}, {"name": "logs", "mountPath": "/tmp/ray"}],
    }
    beside = {
        "name": "beside",
        "image": "busybox",
        "command": [
            "sh",
            "-c",
            "for i in $(seq 200); do cat /tmp/ray/session_latest/logs/raylet.out 2>/dev/null && exit; sleep 0.1; done",
        ],
        "volumeMounts": [{"name": "logs", "mountPath": "/tmp/ray"}],
    }
    made = pod("head", containers=[head, beside])
    made["spec"]["volumes"] = [{"name": "code", "configMap": {"name": "code"}}, {"name": "logs", "emptyDir": {}}]
    run = await plain.ended(made)
    assert (await text(run), await text(run, "beside")) == ("trained\n", "line\n")
