"""Clients in Go, as the operators are written that users bring, see no difference between the two servers.

One program on client-go, one on controller-runtime: both send protobuf bodies for built-in kinds. They run against
the embedded server and the real one, and what they print is compared line by line.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.controlplane import build
from tests.integration.apiserver.conftest import Embedded

pytestmark = pytest.mark.controlplane


@pytest.fixture(params=["embedded", "real"])
def kubeconfig(request: pytest.FixtureRequest) -> Path:
    """The two servers, one after the other."""
    if request.param == "embedded":
        embedded: Embedded = request.getfixturevalue("embedded")
        return embedded.kubeconfig
    path: Path = request.getfixturevalue("control_plane").kubeconfig
    return path


async def said(kubeconfig: Path, program: str) -> list[str]:
    binary = await asyncio.to_thread(build.program, "goclients")
    process = await asyncio.create_subprocess_exec(
        *(str(binary), program),
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, log = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, (output + log).decode()
    return output.decode().splitlines()


async def test_informers_leases_and_custom_kinds(kubeconfig: Path) -> None:
    assert await said(kubeconfig, "client-go") == [
        "created gp 0 false b Always",  # noughts that were written survive, defaults are filled in
        "add gp",
        "update Running",
        "update Running",
        "lease me",
        "update Running",  # marked as deleted
        "delete",
        "schema string integer",
        "custom ADDED 1",
        "custom MODIFIED",
        "OK",
    ]


async def test_an_operator_on_controller_runtime(kubeconfig: Path) -> None:
    """It creates, watches and patches pods, services and a kind of its own, elects a leader and holds a finalizer."""
    assert await said(kubeconfig, "controller-runtime") == [
        "elected true true",
        "fleet 2 white 1",
        "too big: true true",
        "again: true",
        "pod ours-0 0 0 Fleet Always",
        "pod ours-1 0 1 Fleet Always",
        "service 156 ClusterIP true",
        "afloat true true",
        "watched ADDED MODIFIED",
        "stale: true",
        "theirs: true",
        "chart 5 1",
        "moored ours",
        "left 0",
        'lease released by ""',
        "OK",
    ]
