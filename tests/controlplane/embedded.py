"""The embedded server in a process of its own, in the shape of the real control plane: one suite runs on both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.controlplane import build
from tests.controlplane.plane import run_kubectl


class EmbeddedPlane:
    """Started and stopped like `ControlPlane`; the test that drives it need not be asynchronous."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> EmbeddedPlane:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.integration.apiserver.child", str(self.folder / "state")]
        self._process = subprocess.Popen([*command, str(self.kubeconfig)], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if not self._process.stdout.readline().strip():
            raise RuntimeError("the embedded server did not start")
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run the pinned kubectl; a refusal raises with what it said."""
        return run_kubectl(build.binaries("kubectl")["kubectl"], self.kubeconfig, arguments, stdin)
