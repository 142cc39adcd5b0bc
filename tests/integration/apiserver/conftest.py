"""An embedded server on a real port, with its state on the disk, and the kubectl of this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.kube.client import Client
from shoal.local.apiserver import Server


class Embedded:
    """A running server and how to reach it from outside."""

    def __init__(self, server: Server, folder: Path, port: int) -> None:
        self.server = server
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.client = Client(server.transport())
        self.url = f"https://127.0.0.1:{port}"

    async def run(self, *command: str, input: str | None = None, check: bool = True, timeout: float = 120) -> str:
        """Run a command with this server's kubeconfig; its output and errors, as one text."""
        process = await asyncio.create_subprocess_exec(
            *command,
            env={
                **os.environ,
                "KUBECONFIG": str(self.kubeconfig),
                "HOME": str(self.folder),
                "KUBECTL_EXTERNAL_DIFF": "diff",
            },
            cwd=self.folder,
            stdin=asyncio.subprocess.PIPE if input is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asyncio.wait_for(
                process.communicate(input.encode() if input is not None else None), timeout
            )
        except TimeoutError:
            process.kill()
            raise
        text = output.decode()
        if check and process.returncode != 0:
            raise AssertionError(f"{' '.join(command)} ended with {process.returncode}:\n{text}")
        return text

    async def kubectl(self, *arguments: str, input: str | None = None, check: bool = True) -> str:
        return await self.run("kubectl", *arguments, input=input, check=check)


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Embedded]:
    server = Server(tmp_path / "state")
    await server.start()
    port = await server.serve()
    server.write_kubeconfig(tmp_path / "kubeconfig")
    yield Embedded(server, tmp_path, port)
    await server.stop()


@pytest.fixture
def kubectl_present() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
