"""Completion scripts, and the same command as a plug-in of kubectl."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.cli import main

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
    assert scripts == {"shoal": "shoal.cli.main:main", "kubectl-shoal": "shoal.cli.main:kubectl_plugin"}
    code = "from shoal.cli.main import kubectl_plugin; kubectl_plugin(['get', '--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("Usage: kubectl shoal get")
