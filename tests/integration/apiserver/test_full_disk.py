"""A disk that is really full: a small file system of our own, in a namespace of our own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


async def run(*command: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def test_a_full_disk_refuses_writes_keeps_reads_and_recovers(tmp_path: Path) -> None:
    mounted = f"mount -t tmpfs -o size=4m none {tmp_path}"
    code, _ = await run("unshare", "-Urm", "sh", "-c", mounted)
    if code:
        pytest.skip("this machine gives users no namespaces of their own")
    walk = f"{mounted} && exec {sys.executable} -m tests.integration.apiserver.full_disk {tmp_path}"
    code, said = await run("unshare", "-Urm", "sh", "-c", walk)
    assert code == 0 and said.strip().endswith("OK"), said
