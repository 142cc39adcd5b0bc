"""`import shoal`: light, and the same gangs as the commands see, with and without `await`."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import pytest

import shoal
from shoal.api import kinds
from shoal.errors import BadInput
from shoal.sdk.options import ClusterOptions, SubmitOptions, WhereOptions
from tests.cluster import Cluster
from tests.unit.cli.test_gang_commands import fares, logs_say, started, submitter, where
from tests.unit.queues.conftest import cluster, quiet

__all__ = ["cluster", "quiet", "where"]


def test_the_import_brings_neither_ray_nor_a_client_nor_an_engine() -> None:
    code = "import sys, shoal; print([one for one in sys.modules if one.startswith(('ray', 'kubernetes', 'aiohttp'))"
    code += " or one in ('numpy', 'click', 'asyncio', 'msgspec')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "[]\n"


async def test_a_job_is_submitted_followed_and_read(cluster: Cluster, where: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    job = await shoal.aio.submit(
        "python train.py", queue="user-queue", name="train", working_dir=tmp_path, kubeconfig=where[1]
    )
    assert repr(job) == "<RayJob default/train>" and "<code>RayJob" in job._repr_html_()
    await started(cluster, "train")
    with pytest.raises(TimeoutError):
        await job.wait(0.2)
    logs_say(cluster, b"epoch 1\nepo", b"ch 2\nlast")
    await submitter(cluster, "train")
    await fares(cluster, "train", "Running", "RUNNING")
    assert (await job.wait(until="running")).stage == "running"
    await fares(cluster, "train", "Complete", "SUCCEEDED")
    assert [line async for line in job.logs(follow=True)] == ["epoch 1", "epoch 2", "last"]
    done = await job.wait()
    assert done.succeeded and done.ended and done.exit_code == 0
    await job.stop()
    await cluster.until_gone(kinds.RAY_JOB, "train")
    assert (await job.status()).deleted
    await job.stop()  # a job that is gone is no error


async def test_why_it_waits_is_what_the_controller_says(cluster: Cluster, where: tuple[str, str]) -> None:
    job = await shoal.aio.submit("true", queue="user-queue", workers=9, kubeconfig=where[1])
    told = await job.why(fresh=True)
    assert told.position == 1 and told.reason == "Quota" and "cpu" in told.message
    assert "position 1 of 1" in str(told)
    again = await shoal.aio.attach(f"rayjob/{job.name}", kubeconfig=where[1])
    assert again.name == job.name


async def test_a_wrong_queue_is_refused_before_anything_is_created(cluster: Cluster, where: tuple[str, str]) -> None:
    with pytest.raises(BadInput, match="did you mean user-queue"):
        await shoal.aio.submit("true", queue="user-queu", kubeconfig=where[1])
    assert await cluster.names(kinds.RAY_JOB) == []


async def test_a_ray_cluster_lasts_as_long_as_its_block(cluster: Cluster, where: tuple[str, str]) -> None:
    async def ready() -> None:
        await cluster.until(kinds.RAY_CLUSTER, "mine", lambda one: not one["spec"].get("suspend"))
        await cluster.client.patch(
            kinds.RAY_CLUSTER, "mine", "default", {"status": {"state": "ready"}}, subresource="status"
        )

    making = asyncio.ensure_future(ready())
    async with shoal.aio.cluster(workers=1, queue="user-queue", name="mine", kubeconfig=where[1]) as made:
        assert (await made.status()).stage == "running"
    await making
    await cluster.until_gone(kinds.RAY_CLUSTER, "mine")
    assert await cluster.names(kinds.RAY_CLUSTER) == []


async def test_the_same_without_await(cluster: Cluster, where: tuple[str, str]) -> None:
    def script() -> list[str]:
        job = shoal.submit(["echo", "a b"], queue="user-queue", name="plain", kubeconfig=where[1])
        lines = list(job.logs(follow=True))
        assert job.wait().exit_code == 4 and job.why().state == "failed"
        assert job.status().stage == "failed"
        job.stop()
        return lines

    logs_say(cluster, b"one\ntwo\n")
    running = asyncio.ensure_future(asyncio.to_thread(script))
    job = await started(cluster, "plain")
    assert job["spec"]["entrypoint"] == "echo 'a b'"
    await submitter(cluster, "plain")
    await fares(cluster, "plain", "Failed", "FAILED", "Job entrypoint command failed with exit code 4, last")
    assert await running == ["one", "two"]


@pytest.mark.parametrize(
    ("call", "options", "own"),
    [
        (shoal.aio.submit, SubmitOptions, {"command"}),
        (shoal.aio.attach, WhereOptions, {"name"}),
        (shoal.aio.cluster, ClusterOptions, {"workers"}),
    ],
)
def test_what_is_passed_on_is_typed_as_it_is_taken(call: Callable[..., object], options: type, own: set[str]) -> None:
    """An editor completes `shoal.submit(…)`, and mypy checks it."""
    taken = inspect.signature(call).parameters
    assert set(get_type_hints(options)) == set(taken) - own
