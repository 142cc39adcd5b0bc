"""This machine's GPUs, and how each pod sees its own and no other.

By variables in every sandbox; where pods have a /dev of their own, by the device nodes that lie in it. A declared GPU
without hardware behind it stays a number, which Ray accepts. A GPU that is divided (MIG) counts as its slices.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from shoal.local.nodes.runtime.gpus import VARIABLE

SHARED_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps")
"""What every user of a GPU needs beside the GPU's own node."""
DRIVER = Path("/proc/driver/nvidia/gpus")
FIELDS = "index,uuid,name,memory.total"


class Gpu(msgspec.Struct, frozen=True):
    """A GPU, or a slice of one. `number` counts as NVML lists them, `minor` is that of the node /dev/nvidiaMINOR."""

    number: int
    uuid: str
    minor: int
    model: str = ""
    memory: int = 0
    """In MiB."""


def find_gpus() -> tuple[Gpu, ...]:
    """By NVIDIA's library, else by nvidia-smi, else none."""
    with contextlib.suppress(Exception):  # whatever a driver that is half there raises
        return _by_library()
    if shutil.which("nvidia-smi"):
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            asked = ["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"]
            listed = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True)
            return tuple(_from_line(line) for line in listed.stdout.splitlines() if line.strip())
    return ()


def variables(given: str | None, gpus: Sequence[Gpu]) -> dict[str, str]:
    """What a container is told. `given` are its numbers; None when it asked for no GPU. Empty where nothing is real."""
    if not gpus:
        return {}
    if given is None:
        return {VARIABLE: "", "NVIDIA_VISIBLE_DEVICES": "void"}
    mine = _chosen(given, gpus)
    if not mine:
        return {}
    named = ",".join(gpu.uuid for gpu in mine)
    return {VARIABLE: named, "NVIDIA_VISIBLE_DEVICES": named}


def nodes(given: str | None, gpus: Sequence[Gpu]) -> list[str]:
    """Names below /dev of NVIDIA's device nodes that a container may open."""
    mine = _chosen(given or "", gpus)
    return [f"nvidia{gpu.minor}" for gpu in mine] + list(SHARED_NODES if mine else ())


def _chosen(given: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Empty unless all of the numbers stand for hardware."""
    known = {str(gpu.number): gpu for gpu in gpus}
    numbers = [number for number in given.split(",") if number]
    return [known[number] for number in numbers] if all(number in known for number in numbers) else []


def _by_library() -> tuple[Gpu, ...]:
    import pynvml

    pynvml.nvmlInit()
    found: list[Gpu] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        whole = pynvml.nvmlDeviceGetHandleByIndex(index)
        minor = int(pynvml.nvmlDeviceGetMinorNumber(whole))
        for handle in [whole] if (slices := _slices(pynvml, whole)) is None else slices:
            found.append(
                Gpu(
                    number=len(found),
                    uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
                    minor=minor,
                    model=_text(pynvml.nvmlDeviceGetName(handle)),
                    memory=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20,
                )
            )
    return tuple(found)


def _slices(library: Any, whole: Any) -> list[Any] | None:
    """The parts of a GPU that is divided; None of one that is not, or cannot be."""
    try:
        if library.nvmlDeviceGetMigMode(whole)[0] != library.NVML_DEVICE_MIG_ENABLE:
            return None
    except Exception:  # a library or a GPU that knows of no such thing
        return None
    found = []
    for place in range(library.nvmlDeviceGetMaxMigDeviceCount(whole)):
        with contextlib.suppress(library.NVMLError):  # no slice in this place
            found.append(library.nvmlDeviceGetMigDeviceHandleByIndex(whole, place))
    return found


def _from_line(line: str) -> Gpu:
    number, uuid, model, memory = (part.strip() for part in line.split(",", 3))
    size = int(memory) if memory.isdigit() else 0
    return Gpu(number=int(number), uuid=uuid, minor=_minor(uuid, int(number)), model=model, memory=size)


def _minor(uuid: str, otherwise: int) -> int:
    """The driver's own word for it; else the number, as on most machines."""
    with contextlib.suppress(OSError):
        for directory in DRIVER.iterdir():
            said = dict(
                line.replace("\t", "").split(":", 1)
                for line in (directory / "information").read_text().splitlines()
                if ":" in line
            )
            if said.get("GPU UUID", "").strip() == uuid and said.get("Device Minor", "").strip().isdigit():
                return int(said["Device Minor"])
    return otherwise


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
