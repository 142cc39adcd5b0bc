"""GPUs as pods see them: exactly their own, and none where none was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shoal.api.meta import Json
from shoal.local import machine
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


class NoSlice(Exception):
    """As NVML says that a place holds no slice, or that a GPU cannot be divided."""


ANSWERS = {
    "gpu 0": (b"GPU-5c1e", 0, "NVIDIA A100-SXM4-40GB", 40 << 30, ("slice 0", None, "slice 2")),
    "gpu 1": (b"GPU-9d20", 1, "NVIDIA A100-SXM4-40GB", 40 << 30, None),
    "slice 0": (b"MIG-0a11", -1, "NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20 << 30, None),
    "slice 2": (b"MIG-0a13", -1, "NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5 << 30, None),
}
"""Of a machine with two GPUs, the first of them divided: UUID, minor, name, memory, slices by place."""


def divided_library() -> ModuleType:
    """Answers in the shape that NVML has; not tried on hardware."""

    def places(handle: str) -> tuple[str | None, ...]:
        found = ANSWERS[handle][4]
        if found is None:
            raise NoSlice(handle)
        return found

    def slice_at(handle: str, place: int) -> str:
        found = places(handle)[place]
        if found is None:
            raise NoSlice(place)
        return found

    library: Any = ModuleType("pynvml")
    library.NVMLError, library.NVML_DEVICE_MIG_ENABLE = NoSlice, 1
    library.nvmlInit = lambda: None
    library.nvmlDeviceGetCount = lambda: 2
    library.nvmlDeviceGetHandleByIndex = lambda index: f"gpu {index}"
    library.nvmlDeviceGetMigMode = lambda handle: [1, 1] if places(handle) else [0, 0]
    library.nvmlDeviceGetMaxMigDeviceCount = lambda handle: len(places(handle))
    library.nvmlDeviceGetMigDeviceHandleByIndex = slice_at
    library.nvmlDeviceGetUUID = lambda handle: ANSWERS[handle][0]
    library.nvmlDeviceGetMinorNumber = lambda handle: ANSWERS[handle][1]
    library.nvmlDeviceGetName = lambda handle: ANSWERS[handle][2]
    library.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(total=ANSWERS[handle][3])
    return library


def test_a_divided_gpu_counts_as_its_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", divided_library())
    found = devices.find_gpus()
    assert [(gpu.number, gpu.uuid, gpu.minor, gpu.memory >> 10) for gpu in found] == [
        (0, "MIG-0a11", 0, 20),
        (1, "MIG-0a13", 0, 5),
        (2, "GPU-9d20", 1, 40),
    ]
    assert machine.capacity()["nvidia.com/gpu"] == "3"
    assert machine.gpu_labels()["nvidia.com/gpu.memory"] == str(5 << 10)
    assert variables("1", found)["CUDA_VISIBLE_DEVICES"] == "MIG-0a13"
    assert nodes("1", found)[0] == "nvidia0" and nodes("2", found)[0] == "nvidia1"
