"""What users of kubectl, `kubectl ray` and `ray job` type, understood as they mean it."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
import pytest

from shoal.api import kinds
from shoal.cli.main import shoal
from tests.cluster import Cluster
from tests.unit.cli.test_gang_commands import call, started, where
from tests.unit.queues.build import ray_job
from tests.unit.queues.conftest import cluster, quiet

__all__ = ["cluster", "quiet", "where"]


def choose_namespace(path: Path, namespace: str) -> None:
    """As `kubectl config set-context --current --namespace` does."""
    config = msgspec.yaml.decode(path.read_bytes())
    config["contexts"][0]["context"]["namespace"] = namespace
    path.write_bytes(msgspec.yaml.encode(config))


async def test_the_namespace_is_that_of_the_context(cluster: Cluster, where: tuple[str, str]) -> None:
    await cluster.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
    for namespace in ("default", "team-a"):
        job = ray_job(f"of-{namespace}", 1)
        del job["metadata"]["labels"]
        job["metadata"]["namespace"] = namespace
        await cluster.create(kinds.RAY_JOB, job)
    assert (await call("get", "-o", "name", *where)).stdout == "rayjob.ray.io/of-default\n"
    choose_namespace(Path(where[1]), "team-a")
    assert (await call("get", "-o", "name", *where)).stdout == "rayjob.ray.io/of-team-a\n"
    assert (await call("get", "-n", "default", "-o", "name", *where)).stdout == "rayjob.ray.io/of-default\n"
    made = await call("submit", "--no-wait", "--job-name", "mine", *where, "--", "true")
    assert made.stdout == "RayJob mine created in namespace team-a\n"
    assert (await call("stop", "of-default", *where)).exit_code == 1


async def test_every_command_that_prints_takes_a_template(cluster: Cluster, where: tuple[str, str]) -> None:
    await cluster.create(kinds.RAY_JOB, ray_job("tune", 1))
    await started(cluster, "tune")
    for words, template, text in (
        (("get",), "{.items[0].name}", "tune"),
        (("get", "nodes"), "{.items[*].name}", "node-1"),
        (("why", "tune"), "{.kind}/{.name}", "RayJob/tune"),
        (("free", "--queue", "user-queue"), "{.largest.queue}", "user-queue"),
    ):
        assert (await call(*words, "-o", f"jsonpath={template}", *where)).stdout == text
    listed = msgspec.json.decode((await call("get", "-o", "json", *where)).stdout)
    assert [one["name"] for one in listed["items"]] == ["tune"]


def commands(group: click.Group, above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    context, found = click.Context(group), []
    for name in group.list_commands(context):
        one = group.get_command(context, name)
        assert one is not None
        found += commands(one, (*above, name)) if isinstance(one, click.Group) else [((*above, name), one)]
    return found


def test_one_rule_says_which_cluster_a_command_means() -> None:
    """Whatever takes a context takes --name, and says the rule in its help; the server processes have their own."""
    for name, command in commands(shoal):
        options = {option for one in command.params for option in one.opts}
        if "--context" in options and name != ("controller",):
            said = " ".join(command.get_help(click.Context(command, info_name=" ".join(name))).split())
            assert "Without it --kubeconfig and --context decide, as for kubectl" in said, name


async def test_flags_of_other_commands_are_understood(where: tuple[str, str], tmp_path: Path) -> None:
    words = ("--labels", "a=b,c=d", "--head-node-selectors", "disk=fast", "--worker-node-selectors", "gpu=yes,zone=a")
    plain = ("--worker-replicas", "3", "--log-style", "record", "--log-color", "false", "-v", "--job-id", "raysubmit_1")
    made = await call("submit", "--dry-run", *words, *plain, *where, "--", "python", "-V")
    assert made.exit_code == 0, made.output
    job = msgspec.yaml.decode(made.stdout)
    assert job["metadata"]["labels"] == {"a": "b", "c": "d"} and job["spec"]["jobId"] == "raysubmit_1"
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    assert cluster["headGroupSpec"]["template"]["spec"]["nodeSelector"] == {"disk": "fast"}
    assert workers["template"]["spec"]["nodeSelector"] == {"gpu": "yes", "zone": "a"} and workers["replicas"] == 3


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--address", "http://127.0.0.1:8265"), "--address is for a Ray cluster that runs already: shoal session"),
        (("--entrypoint-memory", "5"), "--entrypoint-memory has no place in a RayJob"),
        (("--name", "rayjob-sample"), "there is no cluster rayjob-sample on this machine; the name of a job is --job-"),
    ],
)
async def test_what_cannot_be_done_is_refused_with_another_way(flags: tuple[str, str], said: str) -> None:
    refused = await call("submit", *flags, "--", "true")
    assert refused.exit_code == 2 and said in refused.stderr


async def test_a_command_goes_into_the_ray_job_of_a_manifest(
    cluster: Cluster, where: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `kubectl ray job submit -f rayjob.yaml --working-dir . -- python train.py`."""
    written = ray_job("tune", 1)
    written["spec"] |= {"submissionMode": "InteractiveMode", "runtimeEnvYAML": "env_vars: {A: b}\n"}
    (tmp_path / "job.yaml").write_bytes(msgspec.yaml.encode(written))
    (tmp_path / "train.py").write_text("print(1)")
    monkeypatch.chdir(tmp_path)
    made = await call("submit", "-f", "job.yaml", "--working-dir", ".", "--no-wait", *where, "--", "python", "train.py")
    assert made.exit_code == 0, made.output
    spec = (await cluster.get(kinds.RAY_JOB, "tune"))["spec"]
    assert spec["entrypoint"] == "python train.py" and spec["submissionMode"] == "K8sJobMode"
    assert msgspec.yaml.decode(spec["runtimeEnvYAML"]) == {
        "env_vars": {"A": "b"},
        "working_dir": "/shoal/code/code.zip",
    }
    assert await cluster.names(kinds.SECRET) == ["tune-code-0"]
    refused = await call("submit", "-f", "job.yaml", "--workers", "3", *where, "--", "python", "train.py")
    assert refused.exit_code == 2 and "--workers is for a command" in refused.stderr


async def test_a_plan_names_the_line_that_asks_for_too_much(where: tuple[str, str], tmp_path: Path) -> None:
    text = msgspec.yaml.encode(ray_job("tune", 1)).decode()
    (tmp_path / "queue.yaml").write_text("# a comment\n---\n" + text.replace("cpu: '1'", "cpu: '40'"))
    never = await call("submit", "--check", str(tmp_path / "queue.yaml"), *where)
    assert never.exit_code == 6, never.output
    lines = (tmp_path / "queue.yaml").read_text().splitlines()
    (said,) = [line for line in never.stdout.splitlines() if "queue.yaml, line " in line]
    number = int(said.rpartition("line ")[2].partition(":")[0])
    assert lines[number - 1].strip().startswith("cpu: ") and "40" in lines[number - 1]
