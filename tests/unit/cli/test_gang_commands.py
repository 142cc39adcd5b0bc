"""The commands about one gang, as a user types them, against a server that is reached over the network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli import exits
from shoal.cli.cluster import judges, preparers
from shoal.cli.main import shoal
from shoal.sdk import following
from tests.cluster import Cluster
from tests.unit.queues.build import ray_job
from tests.unit.queues.conftest import cluster, quiet

__all__ = ["cluster", "quiet"]


async def call(*arguments: str) -> Result:
    """In a thread: the server that it asks is in this one."""
    return await asyncio.to_thread(CliRunner().invoke, shoal, list(arguments))


@pytest.fixture
async def where(cluster: Cluster, tmp_path: Path) -> tuple[str, str]:
    await cluster.server.serve()
    path = tmp_path / "kubeconfig"
    cluster.server.write_kubeconfig(path)
    cluster.server.admission.judges.update(judges(cluster.client))
    cluster.server.admission.preparers.update(preparers(cluster.client))
    return ("--kubeconfig", str(path))


async def fares(cluster: Cluster, name: str, deployment: str, job: str, message: str = "") -> None:
    """What the Ray operator would write."""
    status = {"jobDeploymentStatus": deployment, "jobStatus": job, "message": message}
    await cluster.client.patch(kinds.RAY_JOB, name, "default", {"status": status}, subresource="status")


async def submitter(cluster: Cluster, name: str) -> None:
    """The pod of the Job that submits to Ray, running."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": "job-uid", "controller": True}
    await cluster.create(
        kinds.POD,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-abc",
                "labels": {"batch.kubernetes.io/job-name": name},
                "ownerReferences": [owner],
            },
            "spec": {"nodeName": "node-1", "containers": [{"name": "ray-job-submitter", "image": "ray"}]},
        },
    )
    state = {"name": "ray-job-submitter", "state": {"running": {}}, "image": "ray", "imageID": "", "ready": True}
    status = {"phase": "Running", "containerStatuses": [{**state, "restartCount": 0}]}
    await cluster.client.patch(kinds.POD, f"{name}-abc", "default", {"status": status}, subresource="status")


def logs_say(cluster: Cluster, *chunks: bytes, until: asyncio.Event | None = None) -> None:
    async def source(pod: Json, options: Any) -> AsyncIterator[bytes]:
        async def lines() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk
            if options.follow and until is not None:
                await until.wait()

        return lines()

    cluster.server.set_log_source(source)


def is_admitted(workload: Json) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Admitted" and one["status"] == "True" for one in conditions)


async def started(cluster: Cluster, name: str) -> Json:
    """Until the queue has let the job go."""
    return await cluster.until(kinds.RAY_JOB, name, lambda one: not one["spec"].get("suspend"))


async def test_a_command_is_queued_logged_and_ends_with_its_own_exit_code(
    cluster: Cluster, where: tuple[str, str], tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print('trained')")
    done = asyncio.Event()
    logs_say(cluster, b"epoch 1\n", b"boom\n", until=done)
    submitting = asyncio.ensure_future(
        call(
            "submit", "--queue", "user-queue", "--job-name", "train", "--workers", "1", "--working-dir", str(code),
            *where, "--", "python", "train.py",
        )
    )  # fmt: skip
    job = await started(cluster, "train")
    (secret,) = await cluster.client.list(kinds.SECRET, "default", label_selector="shoal.dev/code-of=train")
    await submitter(cluster, "train")
    await fares(cluster, "train", "Running", "RUNNING")
    await cluster.until(kinds.RAY_JOB, "train", lambda one: one["status"]["jobDeploymentStatus"] == "Running")
    message = "Job entrypoint command failed with exit code 7, last available logs (truncated to 20,000 chars):\nboom"
    await fares(cluster, "train", "Failed", "FAILED", message)
    done.set()
    result = await submitting
    assert result.exit_code == 7, result.output
    assert result.stdout == "epoch 1\nboom\n"
    assert "RayJob train created" in result.stderr and "RayJob train: Failed" in result.stderr
    (owner,) = (await cluster.get(kinds.SECRET, secret["metadata"]["name"]))["metadata"]["ownerReferences"]
    assert owner["uid"] == job["metadata"]["uid"]
    table = (await call("get", *where)).stdout
    assert "exit code 7" in table and "boom" not in table


async def test_a_queue_that_is_not_there_is_refused_before_anything_is_created(
    cluster: Cluster, where: tuple[str, str]
) -> None:
    refused = await call("submit", "--queue", "user-qeue", *where, "--", "true")
    assert refused.exit_code == 2
    assert "there is no LocalQueue user-qeue in namespace default; did you mean user-queue?" in refused.output
    assert await cluster.names(kinds.RAY_JOB) == [] and await cluster.names(kinds.SECRET) == []


async def test_what_the_server_refuses_leaves_no_code_behind(
    cluster: Cluster, where: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text("1")
    words = ("--job-name", "twice", "--working-dir", str(tmp_path), *where, "--", "python", "a.py")
    await cluster.create(kinds.RAY_JOB, ray_job("twice", 1))
    refused = await call("submit", "--no-wait", *words)
    assert refused.exit_code == 1 and "already exists" in str(refused.exception)
    assert await cluster.names(kinds.SECRET) == []


async def test_a_manifest_is_submitted_and_waited_for(cluster: Cluster, where: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(msgspec.yaml.encode(ray_job("tune", 1)))
    made = await call("submit", "--no-wait", str(file), *where)
    assert made.exit_code == 0 and made.stdout == "RayJob tune created in namespace default\n"
    await started(cluster, "tune")
    late = await call("wait", "tune", "--timeout", "0.2s", *where)
    assert late.exit_code == 124
    await fares(cluster, "tune", "Running", "RUNNING")
    runs = await call("wait", "tune", "--for", "running", *where)
    assert runs.exit_code == 0 and runs.stdout == "RayJob default/tune is running\n"
    waiting = asyncio.ensure_future(call("wait", "rayjob/tune", *where))
    await fares(cluster, "tune", "Failed", "FAILED", "it broke")
    failed = await waiting
    assert failed.exit_code == 3 and failed.stdout == "RayJob default/tune failed\n"
    late = await call("hold", "tune", *where)
    assert late.exit_code == 1 and "RayJob tune has ended; `shoal rerun` runs it again" in str(late.exception)


async def test_flags_mark_a_manifest_and_those_of_the_shape_are_refused(
    cluster: Cluster, where: tuple[str, str], tmp_path: Path
) -> None:
    manifest = tmp_path / "job.json"
    written = ray_job("marked", 1)
    del written["metadata"]["labels"]
    manifest.write_text(json.dumps(written))
    refused = await call("submit", str(manifest), "--workers", "3", *where)
    assert refused.exit_code == 2 and "--workers is for a command; with a manifest, write it there" in refused.stderr
    flags = ("--queue", "user-queue", "--notify", "https://hooks.example.com/", "-l", "team=red", "--no-wait")
    assert (await call("submit", str(manifest), *flags, *where)).exit_code == 0
    metadata = (await cluster.get(kinds.RAY_JOB, "marked"))["metadata"]
    assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "user-queue" and metadata["labels"]["team"] == "red"
    assert metadata["annotations"]["shoal.dev/notify"] == "https://hooks.example.com/"


async def test_a_gang_is_held_released_and_stopped(cluster: Cluster, where: tuple[str, str]) -> None:
    await cluster.create(kinds.RAY_JOB, ray_job("tune", 1))
    await started(cluster, "tune")
    held = await call("hold", "tune", *where)
    assert held.exit_code == 0 and "RayJob default/tune held" in held.output, held.output
    await cluster.until(kinds.RAY_JOB, "tune", lambda one: bool(one["spec"].get("suspend")))
    why = (await call("why", "tune", *where)).stdout
    assert "RayJob default/tune has been inactive since" in why and "`shoal release rayjob/tune` lets it run" in why
    assert (await call("release", "tune", *where)).exit_code == 0
    await started(cluster, "tune")
    stopped = await call("stop", "tune", *where)
    assert stopped.output == "RayJob default/tune stopped\n"
    await cluster.until_gone(kinds.RAY_JOB, "tune")
    gone = await call("stop", "tune", *where)
    assert "there is no gang tune" in str(gone.exception)


async def test_a_gang_that_is_deleted_ends_the_wait_with_a_code_of_its_own(cluster: Cluster) -> None:
    made = await cluster.create(kinds.RAY_JOB, ray_job("tune", 1))
    views = following.follow(cluster.client, kinds.RAY_JOB, made)
    assert not (await anext(views)).gone
    await cluster.client.delete(kinds.RAY_JOB, "tune", "default")
    last = [view async for view in views][-1]
    assert last.gone and exits.of(last) == 4


async def test_a_job_runs_again_as_it_was_written(cluster: Cluster, where: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print(1)")
    words = ("--queue", "user-queue", "--working-dir", str(tmp_path), "--job-name", "first")
    await call("submit", "--no-wait", *words, *where, "--", "python", "a.py")
    before = await started(cluster, "first")
    again = await call("rerun", "first", "--job-name", "second", "--no-wait", *where)
    assert again.exit_code == 0 and again.stdout == "RayJob second created\n", again.output
    made = await cluster.get(kinds.RAY_JOB, "second")
    assert made["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "user-queue"}
    assert made["spec"]["entrypoint"] == before["spec"]["entrypoint"]
    (volume,) = made["spec"]["submitterPodTemplate"]["spec"]["volumes"]
    assert volume["secret"]["secretName"] == "second-code-0"
    assert (await cluster.get(kinds.SECRET, "second-code-0"))["data"] == (
        await cluster.get(kinds.SECRET, "first-code-0")
    )["data"]


async def test_the_log_of_a_gang_that_waits_says_why_there_is_none(cluster: Cluster, where: tuple[str, str]) -> None:
    await cluster.create(kinds.RAY_JOB, ray_job("wide", 9))
    await cluster.until(kinds.WORKLOAD, (await _workload(cluster)), lambda one: bool(one.get("status")))
    said = await call("logs", "wide", *where)
    assert said.exit_code == 0 and said.stdout == ""
    assert "RayJob wide has no log yet (Queued: " in said.stderr


async def _workload(cluster: Cluster) -> str:
    while not (found := await cluster.names(kinds.WORKLOAD)):
        await cluster.settled(5)
    return found[0]


async def test_events_are_those_of_the_gang_and_of_what_it_made(cluster: Cluster, where: tuple[str, str]) -> None:
    await cluster.create(kinds.RAY_JOB, ray_job("tune", 1))
    await started(cluster, "tune")
    await cluster.settled()
    rows = msgspec.json.decode((await call("events", "tune", "-o", "json", *where)).stdout)
    assert any(row["object"].startswith("Workload/") and row["reason"] == "Admitted" for row in rows), rows


async def test_rows_are_filtered_named_and_formed(cluster: Cluster, where: tuple[str, str]) -> None:
    labelled = ray_job("mine", 1)
    labelled["metadata"]["labels"]["team"] = "red"
    await cluster.create(kinds.RAY_JOB, labelled)
    await started(cluster, "mine")
    await cluster.create(kinds.RAY_JOB, {**ray_job("loose", 1), "metadata": {"name": "loose", "namespace": "default"}})
    assert sorted((await call("get", "-o", "name", *where)).stdout.split()) == [
        "rayjob.ray.io/loose",
        "rayjob.ray.io/mine",
    ]
    assert (await call("get", "--queue", "user-queue", "-o", "name", *where)).stdout == "rayjob.ray.io/mine\n"
    assert (await call("get", "-l", "team=red", "-o", "name", *where)).stdout == "rayjob.ray.io/mine\n"
    names = (await call("get", "-o", "jsonpath={.items[*].name}", *where)).stdout
    assert sorted(names.split(" ")) == ["loose", "mine"]
    bare = (await call("get", "--no-headers", "-o", "wide", *where)).stdout.splitlines()
    assert len(bare) == 2 and sum("user-queue" in line for line in bare) == 1
    queues = (await call("get", "queues", *where)).stdout.splitlines()
    assert queues[1].split()[:3] == ["default", "user-queue", "cluster-queue"]
    nodes = msgspec.json.decode((await call("get", "nodes", "-o", "json", *where)).stdout)["items"]
    assert nodes[0]["name"] == "node-1" and nodes[0]["amounts"]["cpu"]["allocatable"] == "16"
    await cluster.until(kinds.CLUSTER_QUEUE, "cluster-queue", lambda one: _reserved(one) != "0")
    quotas = msgspec.json.decode((await call("get", "quotas", "-o", "json", *where)).stdout)["items"]
    assert [(one["resource"], one["guaranteed"]) for one in quotas] == [("cpu", "4"), ("memory", "8Gi")]
    assert quotas[0]["used"] not in ("", "0")


def _reserved(queue: Json) -> str:
    flavors = (queue.get("status") or {}).get("flavorsReservation") or [{}]
    return next((one["total"] for one in flavors[0].get("resources") or () if one["name"] == "cpu"), "0")


async def test_a_plan_says_what_would_happen_and_creates_nothing(cluster: Cluster, where: tuple[str, str]) -> None:
    words = ("submit", "--check", "--queue", "user-queue", "--job-name", "train", *where)
    fits = await call(*words, "--", "true")
    assert (fits.exit_code, fits.stdout) == (0, "RayJob train starts now\n"), fits.output
    never = await call(*words, "--workers", "9", "--", "true")
    assert never.exit_code == 6 and "RayJob train can never run: " in never.stdout and "cpu" in never.stdout
    assert "  --workers 9 with --worker-cpu 1 each" in never.stdout.splitlines()
    await cluster.create(kinds.RAY_JOB, ray_job("first", 1))
    await started(cluster, "first")
    later = await call(*words, "--workers", "2", "--", "true")
    assert later.exit_code == 5 and "RayJob train waits: " in later.stdout
    assert await cluster.names(kinds.RAY_JOB) == ["first"] and await cluster.names(kinds.SECRET) == []


async def test_what_is_free_is_shown_with_the_largest_gang(cluster: Cluster, where: tuple[str, str]) -> None:
    told = await call("free", "--queue", "user-queue", "--worker-cpu", "1", "--worker-memory", "100Mi", *where)
    assert told.exit_code == 0, told.output
    assert "a Ray job in queue user-queue would start now with up to 2 workers of 1 cpu, 100Mi memory" in told.stdout
    assert "node-1 (Ready)  cpu [....................] 0/16" in told.stdout
    found = msgspec.json.decode((await call("free", "--queue", "user-queue", "-o", "json", *where)).stdout)
    assert found["largest"]["workers"] == 2 and found["quotas"][0]["guaranteed"] == "4"
