"""GPUs as pods see them: exactly their own, and none where none was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.api.meta import Json
from shoal.local.nodes.runtime import devices
from shoal.local.nodes.runtime.devices import Gpu, nodes, variables
from shoal.local.nodes.runtime.processes import ProcessRuntime
from tests.processes.conftest import Machine, finished, pod, text

GPUS = (Gpu(number=0, uuid="GPU-aa", minor=901), Gpu(number=1, uuid="GPU-bb", minor=902))
INFORMATION = "Model: \t H200\nGPU UUID: \t GPU-bb\nDevice Minor: \t 5\n"
MADE = "mknod /dev/nvidia903 c 195 3 2>/dev/null; mknod /tmp/gpu c 195 3 2>/dev/null && echo made;"
SHOWN = (
    f"{MADE} echo $CUDA_VISIBLE_DEVICES/$NVIDIA_VISIBLE_DEVICES; ls /dev | grep -c nvidia90; ls /dev | grep nvidia90"
)


@pytest.fixture
def device_nodes() -> Iterator[None]:
    """Nodes of two GPUs that no machine has so many of."""
    made = [Path(f"/dev/nvidia{gpu.minor}") for gpu in GPUS]
    for path in made:
        path.touch()
    yield
    for path in made:
        path.unlink()


def asking(name: str, count: int, **container: Any) -> Json:
    manifest = pod(name, "sh", "-c", SHOWN, container=dict(container))
    manifest["metadata"]["uid"] = name
    if count:
        manifest["spec"]["containers"][0].setdefault("resources", {})["limits"] = {"nvidia.com/gpu": str(count)}
    return manifest


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
async def test_a_pod_sees_its_own_gpus_and_no_other(isolated: Machine, device_nodes: None) -> None:
    isolated.host.gpus = GPUS
    runtime = ProcessRuntime(isolated.host)
    runtime.gpus.add_node("n1", {"nvidia.com/gpu": "2"})
    shown = []
    stubborn = {"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0,1"}]}
    for manifest in (asking("a", 1), asking("none", 0, **stubborn), asking("both", 2)):
        manifest["spec"]["nodeName"] = "n1"
        environment = runtime.gpus.take("n1", manifest["metadata"]["uid"], manifest)
        run = isolated.start(manifest, environment=environment)
        await finished(run)
        runtime.gpus.give_back("n1", manifest["metadata"]["uid"])
        shown.append((await text(run)).split())
    assert shown == [
        ["GPU-aa/GPU-aa", "1", "nvidia901"],
        ["/void", "0"],
        ["GPU-aa,GPU-bb/GPU-aa,GPU-bb", "2", "nvidia901", "nvidia902"],
    ]


def test_declared_gpus_without_hardware_stay_numbers() -> None:
    assert variables("0,1", ()) == {} and nodes("0,1", ()) == []
    assert variables("7", GPUS) == {} and nodes("7", GPUS) == []  # more were declared than are there
    assert variables(None, GPUS) == {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    assert nodes(None, GPUS) == [] and nodes("1", GPUS)[0] == "nvidia902"


def test_gpus_are_found_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi alone, and the driver's own word for the number of the node."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, GPU-aa, NVIDIA H200, 143771'\necho '1, GPU-bb, NVIDIA H200, [N/A]'\n")
    program.chmod(0o755)
    (tmp_path / "gpus" / "0000:01").mkdir(parents=True)
    (tmp_path / "gpus" / "0000:01" / "information").write_text(INFORMATION)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(devices, "DRIVER", tmp_path / "gpus")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    first, second = devices.find_gpus()
    assert (first.minor, first.model, first.memory) == (0, "NVIDIA H200", 143771)
    assert (second.uuid, second.minor, second.memory) == ("GPU-bb", 5, 0)
