"""Who admits and starts the jobs of bench/jobs.py: how each subject is installed and started, and as which users."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane import peers
from tests.controlplane.plane import ControlPlane, free_ports

SHOAL = str(Path(sys.executable).with_name("shoal"))
FRAMEWORKS = ["batch/job", "ray.io/rayjob", "ray.io/raycluster"]
FAST = 1000
"""Requests a second of each where their own limits are lifted."""

Commands = Callable[[ControlPlane, list[str]], dict[str, list[str]]]


@dataclass(frozen=True)
class Subject:
    """Each of its processes is a user of its own, so that the API server can tell what it asks."""

    name: str
    users: tuple[str, ...]
    install: Callable[[ControlPlane], None]
    commands: Commands

    @contextmanager
    def started(self, plane: ControlPlane, options: list[str]) -> Iterator[dict[str, int]]:
        """Its processes by user. One that ends by itself is an error."""
        with ExitStack() as stack:
            found = {}
            for user, command in self.commands(plane, options).items():
                found[user] = stack.enter_context(_running(command, plane, user))
            yield {user: process.pid for user, process in found.items()}
            for user, process in found.items():
                if process.poll() is not None:
                    said = (plane.folder / f"{user}.log").read_text(errors="replace")[-1000:]
                    raise RuntimeError(f"{user} ended during the run: {said}")


@contextmanager
def _running(command: list[str], plane: ControlPlane, user: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        "KUBECONFIG": str(plane.kubeconfig_of(user)),
        peers.CERTIFICATES: str(plane.folder / "certificates"),
    }
    with (plane.folder / f"{user}.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=plane.folder)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _install_shoal(plane: ControlPlane) -> None:
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}
    done = subprocess.run([SHOAL, "install", "--crds-only"], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)


def _install_peers(plane: ControlPlane) -> None:
    for path in [*peers.kueue_definitions(), *peers.kuberay_definitions()]:
        plane.kubectl("apply", "--server-side", "-f", str(path))


def _shoal(plane: ControlPlane, options: list[str]) -> dict[str, list[str]]:
    (port,) = free_ports(1)
    return {"shoal": [SHOAL, "controller", f"--health-port={port}", "--open-metrics", *options]}


def _kueue(plane: ControlPlane, options: list[str]) -> dict[str, list[str]]:
    return {"kueue": peers.kueue(plane, FRAMEWORKS), "kuberay": peers.kuberay()}


def _fast_kueue(plane: ControlPlane, options: list[str]) -> dict[str, list[str]]:
    limits = {"qps": FAST, "burst": 2 * FAST}
    operator = (f"--qps={FAST}", f"--burst={2 * FAST}", "--reconcile-concurrency=10")
    return {"kueue": peers.kueue(plane, FRAMEWORKS, clientConnection=limits), "kuberay": peers.kuberay(*operator)}


SUBJECTS = {
    one.name: one
    for one in (
        Subject("shoal", ("shoal",), _install_shoal, _shoal),
        Subject("kueue", ("kueue", "kuberay"), _install_peers, _kueue),
        Subject("kueue-fast", ("kueue", "kuberay"), _install_peers, _fast_kueue),
    )
}
