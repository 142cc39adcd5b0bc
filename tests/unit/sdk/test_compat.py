"""codeflare-sdk's names, notebook displays, samples and the published schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import shoal
from shoal.api import kinds, questions
from shoal.cli import exits, sample
from shoal.cli.main import main
from shoal.cli.top import screen
from shoal.compat import codeflare
from shoal.compat.codeflare import Cluster, ClusterConfiguration, CodeFlareClusterStatus
from shoal.errors import BadInput, ShoalError
from shoal.sdk import aio, explaining, gangs
from tests.cluster import Cluster as MemoryCluster
from tests.unit.cli.test_gang_commands import where
from tests.unit.queues.build import job, make
from tests.unit.queues.conftest import cluster, quiet

__all__ = ["cluster", "quiet", "where"]
ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((Path(explaining.__file__).parent / "explanation.schema.json").read_text())


async def test_a_codeflare_notebook_creates_looks_and_deletes(
    cluster: MemoryCluster, where: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    import asyncio

    codeflare.KubeConfigFileAuthentication(where[1]).load_kube_config()
    config = ClusterConfiguration(
        name="lab",
        num_workers=1,
        head_cpu_requests=1,
        head_cpu_limits=1,
        worker_memory_limits=2,
        local_queue="user-queue",
    )
    lab = Cluster(config)
    await asyncio.to_thread(lab.up)
    stored = await cluster.get(kinds.RAY_CLUSTER, "lab")
    worker = stored["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"]
    assert (
        worker["limits"]["memory"] == "2G" and stored["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "user-queue"
    )
    found, ready = await asyncio.to_thread(lab.status)
    assert found in (CodeFlareClusterStatus.QUEUED, CodeFlareClusterStatus.STARTING) and not ready
    assert "<b>RayCluster default/lab</b>" in (await asyncio.to_thread(lab.details))._repr_html_()
    again = await asyncio.to_thread(codeflare.get_cluster, "lab", "default")
    assert again.config.num_workers == 1 and again.cluster_uri() == "ray://lab-head-svc.default.svc:10001"
    assert [one["name"] for one in await asyncio.to_thread(codeflare.list_all_clusters, "default")] == ["lab"]
    await asyncio.to_thread(lab.down)
    await cluster.until_gone(kinds.RAY_CLUSTER, "lab")
    wrong = Cluster(ClusterConfiguration(name="lab", local_queue="user-quue"))
    with pytest.raises(BadInput, match="did you mean user-queue"):
        await asyncio.to_thread(wrong.up)
    assert await cluster.names(kinds.RAY_CLUSTER) == []
    assert "has successfully been created" in capsys.readouterr().out


def test_an_app_wrapper_holds_the_cluster_and_fields_without_a_meaning_are_refused() -> None:
    made = codeflare.manifest(ClusterConfiguration(name="lab", appwrapper=True, local_queue="main"), "default")
    assert made["kind"] == "AppWrapper" and made["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "main"}
    assert made["spec"]["components"][0]["template"]["kind"] == "RayCluster"
    config = ClusterConfiguration(name="lab", worker_extended_resource_requests={"example.com/fpga": 1})
    (workers,) = codeflare.manifest(config, "default")["spec"]["workerGroupSpecs"]
    assert workers["template"]["spec"]["containers"][0]["resources"]["limits"]["example.com/fpga"] == "1"
    with pytest.raises(BadInput, match="write_to_file: nothing is written here"):
        Cluster(ClusterConfiguration(name="lab", namespace="default", write_to_file=True))
    with pytest.raises(TypeError, match="enable_gcs_ft"):
        ClusterConfiguration(name="lab", enable_gcs_ft=True)  # type: ignore[call-arg]


async def test_a_codeflare_notebook_submits_jobs_to_the_default_queue(
    cluster: MemoryCluster, where: tuple[str, str], tmp_path: Path
) -> None:
    import asyncio

    codeflare.KubeConfigFileAuthentication(where[1]).load_kube_config()
    chosen = {"metadata": {"annotations": {"kueue.x-k8s.io/default-queue": "true"}}}
    await cluster.client.patch(kinds.LOCAL_QUEUE, "user-queue", "default", chosen)
    (queue,) = await asyncio.to_thread(codeflare.list_local_queues, "default")
    assert queue["name"] == "user-queue" and queue["flavors"]
    (tmp_path / "train.py").write_text("print(1)")
    job = codeflare.RayJob(
        job_name="demo",
        entrypoint="python train.py",
        cluster_config=codeflare.ManagedClusterConfig(
            num_workers=1,
            head_cpu_requests=1,
            head_cpu_limits=1,
            head_memory_requests=1,
            head_memory_limits=1,
            head_accelerators={"nvidia.com/gpu": 0},
        ),
        runtime_env={"working_dir": str(tmp_path), "env_vars": {"A": "b"}},
    )
    assert await asyncio.to_thread(job.submit) == "demo"
    stored = await cluster.get(kinds.RAY_JOB, "demo")
    assert stored["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "user-queue"
    assert json.loads(stored["spec"]["runtimeEnvYAML"])["env_vars"] == {"A": "b"}
    assert (await asyncio.to_thread(job.status))[1] is False
    await cluster.until(kinds.RAY_JOB, "demo", lambda one: not one["spec"].get("suspend"))
    assert await asyncio.to_thread(job.stop)
    await cluster.until(kinds.RAY_JOB, "demo", lambda one: bool(one["spec"].get("suspend")))
    assert await asyncio.to_thread(job.resubmit) and await asyncio.to_thread(job.delete)
    await cluster.until_gone(kinds.RAY_JOB, "demo")
    beside = codeflare.RayJob(job_name="beside", entrypoint="true", cluster_name="lab")
    assert beside.manifest(None)["spec"]["clusterSelector"] == {"ray.io/cluster": "lab"}
    with pytest.raises(BadInput, match="either cluster_name or cluster_config"):
        codeflare.RayJob(job_name="neither", entrypoint="true")


def test_a_token_login_is_a_private_file_that_goes() -> None:
    login = codeflare.TokenAuthentication("secret", "https://example.com:6443")
    assert "secret" not in login.login()
    path = codeflare.choice().kubeconfig
    assert path is not None and path.stat().st_mode & 0o077 == 0 and "secret" in path.read_text()
    login.logout()
    assert not path.exists() and codeflare.choice().kubeconfig is None


async def test_a_wrong_queue_is_refused_before_a_cluster_is_created(
    cluster: MemoryCluster, where: tuple[str, str]
) -> None:
    with pytest.raises(BadInput, match="did you mean user-queue"):
        async with shoal.aio.cluster(workers=1, queue="user-quee", kubeconfig=where[1]):
            raise AssertionError("it must not start")
    assert await cluster.names(kinds.RAY_CLUSTER) == []


def test_results_are_shown_as_text_in_a_notebook() -> None:
    told = aio.GangExplanation(state="queued", message="<script>alert(1)</script>", position=1, queue_length=2)
    assert "&lt;script&gt;" in told._repr_html_() and "1 of 2" in told._repr_html_()
    assert "exit code" in aio.JobResult(stage="failed", state="Failed", exit_code=3)._repr_html_()


async def test_an_explanation_follows_the_published_schema(cluster: MemoryCluster) -> None:
    await make(cluster, job("first", cpu="3"), job("second", cpu="3"))
    await cluster.settled()
    for name in ("first", "second"):
        told = await explaining.explain_to(cluster.client, (*gangs.KINDS, *gangs.QUEUED), name, "default", fresh=True)
        jsonschema.validate(told, SCHEMA)
        assert set(told) <= set(SCHEMA["properties"]) | {"pods", "nodes", "quota"}, set(told) - set(
            SCHEMA["properties"]
        )
    assert set(SCHEMA["properties"]["reason"]["enum"]) == {"", *questions.REASONS}


def test_the_page_for_agents_has_every_exit_code() -> None:
    said = (ROOT / "AGENTS.md").read_text()
    assert [code for code in exits.MEANING if f"| {code} |" not in said] == []


def test_samples_are_listed_printed_and_nearly_found(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sample", "start/queue"])
    assert "kind: LocalQueue" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["sample"])
    assert "ray/rayjob " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["sample", "start/queu"])
    assert "did you mean start/queue?" in capsys.readouterr().err
    assert sample.folder().is_dir()


def test_top_shows_what_goes_on_before_what_has_ended() -> None:
    base = {
        "namespace": "default",
        "kind": "RayJob",
        "created": "2026-01-01T00:00:00Z",
        "reason": "\x1b[2Jshort of cpu",
    }
    rows = [
        {**base, "name": "done", "state": "Complete", "ended": "2026-01-01T01:00:00Z"},
        {**base, "name": "waits", "state": "Queued"},
    ]
    queue = {"namespace": "default", "name": "main", "pending": 1, "admitted": 0, "state": "Active"}
    lines = screen(rows, {"queues": [queue], "nodes": []}, 0, 0)
    assert lines[0] == "2 gangs: 1 Complete, 1 Queued" and lines[3].split() == ["default/main", "1", "0", "Active"]
    assert "default/waits" in lines[6] and "default/done" in lines[7] and "\x1b" not in "".join(lines)
    assert len(screen(rows * 50, {"queues": [], "nodes": []}, 0, 20)) <= 20


def test_up_says_which_packages_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.cli import packages, up

    up.check_packages()
    monkeypatch.setitem(packages.LOCAL_PACKAGES, "not_there_at_all", "some-package")
    with pytest.raises(ShoalError, match=r"needs some-package, .* pip install 'shoal-ray\[local\]'"):
        up.check_packages()


def test_check_judges_shapes_where_a_package_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where the core package alone is installed."""
    from shoal.cli import packages

    monkeypatch.setitem(packages.LOCAL_PACKAGES, "not_there_at_all", "some-package")
    (tmp_path / "job.yaml").write_text(
        "apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {name: a}\nspec: {entrypont: b}\n"
    )
    with pytest.raises(SystemExit) as stopped:
        main(["check", str(tmp_path / "job.yaml")])
    told = capsys.readouterr()
    assert stopped.value.code == 1 and 'unknown field "spec.entrypont"' in told.out
    assert "only shapes are checked: the server's rules need some-package: pip install 'shoal-ray[local]'" in told.err
