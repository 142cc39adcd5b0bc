"""A Python environment of this machine that a RayJob's runtime environment names is there, with the head's Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.local.images import ImageTable
from shoal.local.job_environments import problems
from tests.unit.local.test_environments import environment


def job(**metadata: Any) -> dict[str, Any]:
    head = {"template": {"spec": {"containers": [{"image": "rayproject/ray:2.9"}]}}}
    return {"metadata": metadata, "spec": {"rayClusterSpec": {"headGroupSpec": head}}}


def table(tmp_path: Path, ray: str = "2.60.0") -> ImageTable:
    return ImageTable(python=str(environment(tmp_path / "own", ray) / "bin" / "python"))


def test_what_cannot_run_the_job_is_said_with_what_to_do(tmp_path: Path) -> None:
    old, none, images = environment(tmp_path / "old", "2.9.3"), environment(tmp_path / "none"), table(tmp_path)
    assert problems(job(), {"py_executable": "/nowhere/bin/python -s"}, images) == [
        "spec.runtimeEnvYAML: py_executable: /nowhere/bin/python is not on this machine"
    ]
    assert problems(job(), {"conda": str(none)}, images) == [
        f"spec.runtimeEnvYAML: conda: {none} has no Ray; install it: "
        f"{none}/bin/python -m pip install 'ray[default]==2.60.0'"
    ]
    assert problems(job(), {"py_executable": f"{old}/bin/python"}, images) == [
        f"spec.runtimeEnvYAML: py_executable: {old} has Ray 2.9.3 and the head 2.60.0; they need the same: "
        f"{old}/bin/python -m pip install 'ray[default]==2.60.0'"
    ]


def test_what_only_ray_can_judge_is_left_to_it(tmp_path: Path) -> None:
    images, same = table(tmp_path), environment(tmp_path / "same", "2.60.0")
    wrapper = tmp_path / "tools" / "profile"
    wrapper.parent.mkdir()
    wrapper.touch()
    left = ["uv run", "python -m x", str(wrapper), f"{same}/bin/python", "'", ""]
    assert [problems(job(), {"py_executable": one}, images) for one in left] == [[]] * len(left)
    assert problems(job(), {"conda": "named", "pip": ["torch"]}, images) == []
    assert problems(job(), {"conda": {"dependencies": ["pip"]}, "py_executable": 7}, images) == []
    chosen = job(annotations={"image.shoal.dev/environment": "/elsewhere"})
    assert problems(chosen, {"conda": str(environment(tmp_path / "old", "2.9.3"))}, images) == []
    assert problems({"metadata": {}, "spec": {"clusterSelector": {}}}, {"conda": str(same)}, images) == []
