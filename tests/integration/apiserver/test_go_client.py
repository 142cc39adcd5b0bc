"""A Go client, as operators are written, works against the embedded server."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from tests.integration.apiserver.conftest import Embedded

pytestmark = pytest.mark.controlplane

HERE = Path(__file__).parent
PINS = HERE.parents[1] / "controlplane" / "kubernetes"


async def test_informers_leases_and_custom_kinds(embedded: Embedded, tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not on the PATH")
    source = tmp_path / "goclient"
    shutil.copytree(HERE / "goclient", source)
    for name in ("go.mod", "go.sum"):
        shutil.copy(PINS / name, source / name)
    build = await asyncio.create_subprocess_exec(
        *(go, "build", "-mod=mod", "-trimpath", "-ldflags", "-s -w", "-o", str(tmp_path / "client"), "."),
        cwd=source,
        env={**os.environ, "CGO_ENABLED": "0"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await build.communicate()
    assert build.returncode == 0, output.decode()
    said = (await embedded.run(str(tmp_path / "client"))).splitlines()
    assert said[0] == "created gp 0 false b Always"  # noughts that were written survive, defaults are filled in
    assert said[1:3] == ["add gp", "update Running"] and "lease me" in said and "delete" in said
    assert said[-3:] == ["custom ADDED 1", "custom MODIFIED", "OK"]
