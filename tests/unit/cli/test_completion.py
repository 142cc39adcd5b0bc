"""Completion scripts, and the same command as a plug-in of kubectl."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.api import kinds
from shoal.cli import completion, main
from tests.cluster import Cluster
from tests.unit.cli.test_gang_commands import where
from tests.unit.queues.build import ray_job
from tests.unit.queues.conftest import cluster, quiet

__all__ = ["cluster", "quiet", "where"]

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    done = CliRunner().invoke(main.shoal, ["completion", shell])
    assert done.exit_code == 0 and f"_SHOAL_COMPLETE={shell}_complete" in done.stdout


def test_a_shell_completes_commands() -> None:
    environment = {**os.environ, "_SHOAL_COMPLETE": "bash_complete", "COMP_WORDS": "shoal re", "COMP_CWORD": "1"}
    code = "from shoal.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == {"release", "rerun"}


def test_kubectl_finds_the_command_as_a_plug_in() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {
        "shoal": "shoal.cli.main:main",
        "kubectl-shoal": "shoal.cli.main:kubectl_plugin",
        "kubectl_complete-shoal": "shoal.cli.completion:kubectl_complete",
    }
    code = "from shoal.cli.main import kubectl_plugin; kubectl_plugin(['get', '--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("Usage: kubectl shoal get")


async def test_names_of_gangs_are_completed_also_for_kubectl(
    cluster: Cluster, where: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train", "tune"):
        await cluster.create(kinds.RAY_JOB, ray_job(name, 1))
    monkeypatch.setenv("KUBECONFIG", where[1])

    async def completed(*words: str) -> list[str]:
        await asyncio.to_thread(completion.kubectl_complete, list(words))
        return capsys.readouterr().out.splitlines()

    assert await completed("logs", "tr") == ["train", ":4"]
    assert await completed("why", "rayjob/") == ["rayjob/train", "rayjob/tune", ":4"]
    assert await completed("stop", "train", "aw/") == [":4"]
    assert (await completed("re"))[0].startswith("release\t")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert await completed("logs", "tr") == [":4"]
