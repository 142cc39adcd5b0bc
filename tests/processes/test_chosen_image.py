"""An annotation of a pod chooses its environment: found or built once, and refused in clear words."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.api.labels import IMAGE_ENVIRONMENT
from shoal.api.meta import Json
from shoal.local import environments
from shoal.local.nodes.runtime.pod import PodRun
from tests.faults import proven
from tests.patience import PATIENCE
from tests.processes.conftest import Machine, pod, state, text
from tests.processes.test_pods import until
from tests.unit.local.test_environments import environment, wheel

RAY = "rayproject/ray:2.60.0"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel(tmp_path / "wheels").parent))


def asking(name: str, target: Path | str, *command: str, image: str = RAY, **labels: str) -> Json:
    made = pod(name, *command, image=image)
    made["metadata"]["annotations"] = {IMAGE_ENVIRONMENT: str(target)}
    made["metadata"]["labels"].update(labels)
    return made


async def waits(run: PodRun) -> str:
    """Why the container waits, once it says so."""
    await until(lambda: "message" in state(run).get("waiting", {}))
    found = state(run)["waiting"]
    assert found["reason"] == "CreateContainerConfigError"
    return str(found["message"])


def program(prefix: Path) -> Path:
    made = environment(prefix)
    (made / "bin" / "hello").write_text("#!/bin/sh\necho hello from the environment\n")
    (made / "bin" / "hello").chmod(0o755)
    return made


async def test_the_directory_of_an_environment_is_what_a_ray_image_means(one_machine: Machine, tmp_path: Path) -> None:
    run = await one_machine.ended(asking("by-directory", program(tmp_path / "env"), "hello"))
    assert await text(run) == "hello from the environment\n"
    unknown = await one_machine.ended(asking("unknown", program(tmp_path / "other"), "hello", image="team/train:1"))
    assert await text(unknown) == "hello from the environment\n"
    beside = await one_machine.ended(
        asking("beside", tmp_path / "env", "sh", "-c", "command -v hello", image="busybox")
    )
    assert await text(beside) == "", "the image of a shell stays what it is"


async def test_a_list_of_packages_is_built_once_for_all(plain: Machine, tmp_path: Path) -> None:
    listed = tmp_path / "requirements.txt"
    listed.write_text("# ours\ntiny==1.0\n")
    say = ("python", "-c", "import tiny; print(tiny.answer)")
    both = [plain.start(asking(name, listed, *say)) for name in ("first", "second")]
    for run in both:
        await asyncio.wait_for(run.finished.wait(), 4 * PATIENCE)
        assert await text(run) == "42\n"
    assert [reason for _, reason, _ in plain.events].count("Pulling") == 1
    assert [built.names for _, built in environments.listed()] == [["ray"]]


@pytest.mark.parametrize(
    "target, said",
    [
        ("nowhere", "'nowhere' is neither a known image nor an absolute path"),
        ("/nowhere", "/nowhere is not a directory"),
        ("LIST", "line 2, is not the name of a package with its versions"),
        ("HIDDEN", "is hidden from pods"),
    ],
)
async def test_a_choice_that_cannot_be_is_said(plain: Machine, tmp_path: Path, target: str, said: str) -> None:
    (tmp_path / "list.txt").write_text("tiny\n-e ./source\n")
    plain.host.private = (environment(tmp_path / "state"),)
    places = {"LIST": str(tmp_path / "list.txt"), "HIDDEN": str(tmp_path / "state")}
    message = await waits(plain.start(asking("wrong", places.get(target, target), "true")))
    assert message.startswith(f"annotation {IMAGE_ENVIRONMENT}: ") and said in message


def believes_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "check_plain", lambda file: None)


@pytest.mark.parametrize("line", ["./source", "-r /etc/other.txt", "tiny @ file:///x", "--index-url http://x", "a b"])
@proven(without=believes_lists)
def test_f402_an_annotation_has_no_code_run_outside_the_sandbox(tmp_path: Path, line: str) -> None:
    """F402: a user who may only create pods names a requirements file by annotation, whose lines are sources, options
    or addresses: the agent would run their code, or read the machine's files, outside any pod. Holds: refused by the
    number of the line, without its text."""
    (tmp_path / "list.txt").write_text(f"ray[default]==2.60.0 ; python_version > '3.9' --hash=sha256:ab12\n{line}\n")
    with pytest.raises(environments.BadInput, match="line 2") as refused:
        environments.check_plain(tmp_path / "list.txt")
    assert line not in str(refused.value)


async def test_a_worker_with_another_ray_than_its_head_says_so(plain: Machine, tmp_path: Path) -> None:
    old, new = environment(tmp_path / "old", "2.9.3"), environment(tmp_path / "new", "2.60.0")
    head = asking("head", new, "ray start --head", **{"ray.io/node-type": "head"})
    plain.host.head_of = lambda worker: head
    kind = {"ray.io/node-type": "worker"}
    message = await waits(plain.start(asking("worker", old, "sh", "-c", "ray start --address=x", **kind)))
    assert message == (
        "image ray has Ray 2.9.3 and the head of this Ray cluster 2.60.0; Ray needs the same in all its pods: give "
        f"both the same environment, or install Ray 2.60.0 in {old}"
    )
    none = await waits(plain.start(asking("none", environment(tmp_path / "none"), "sh", "-c", "ray start", **kind)))
    assert f"image ray has no Ray: {tmp_path}/none/bin/ray does not exist" in none
