"""The controller's image as far as it goes without a registry: what the Dockerfile says, and the wheel it installs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tools import image

from shoal.cli import install_workload

ROOT = Path(__file__).parents[2]
NOT_IN_IT = ("ray", "cel_expr_python", "re2", "rich", "pyroute2", "kubernetes")
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({NOT_IN_IT!r}))"
"""Importing one of these fails, as it does in the image."""


def stages() -> list[list[tuple[str, str]]]:
    """Instructions and what follows them, for each stage."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE))
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    found: list[list[tuple[str, str]]] = [[]]
    for word, rest in lines:
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    return found


def test_the_last_stage_runs_as_the_user_of_the_deployment_and_installs_nothing() -> None:
    (before, build, last) = stages()
    assert [word for word, _ in before] == ["ARG"] and build[0][1].endswith("AS build")
    said = dict(last)
    assert said["FROM"] == "${BASE}"  # by digest, where one is given
    assert said["USER"] == f"{install_workload.USER}:{install_workload.USER}"
    assert json.loads(said["ENTRYPOINT"]) == ["shoal"]
    assert "RUN" not in said and "ADD" not in said  # no compiler, no pip, nothing fetched
    assert "--require-hashes" in " ".join(rest for word, rest in build if word == "RUN")
    assert all(f"org.opencontainers.image.{one}" in said["LABEL"] for one in ("version", "revision", "licenses"))


def test_its_requirements_are_those_of_the_project_and_leave_ray_out() -> None:
    assert image.TARGET.read_text() == image.text(), "requirements-image.txt is stale: run make requirements"
    pinned = set(re.findall(r"^([a-z0-9-]+)==", image.TARGET.read_text(), re.MULTILINE))
    assert "prometheus-client" in pinned and not pinned & {"ray", "pytest", "rich"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built and installed as the Dockerfile does."""
    folder = tmp_path_factory.mktemp("image")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run(wheel, check=True, timeout=120, capture_output=True)
    (built,) = folder.glob("*.whl")
    target = folder / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(built)], check=True, timeout=120)
    return target


def run(installed: Path, code: str) -> str:
    """As the image does: from the wheel, without what it has not, without a home, writing no byte code."""
    environment = {
        "PYTHONPATH": str(installed),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/nonexistent",
        "PATH": "/usr/bin",
    }
    done = subprocess.run(
        [sys.executable, "-c", f"{WITHOUT}\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_is_whole_and_everyone_may_read_it(installed: Path) -> None:
    where = run(installed, "import shoal; print(shoal.__file__)")
    assert Path(where.strip()).is_relative_to(installed)
    listed = "from shoal.cli.main import main; main(['install', '--image', 'x', '--dry-run', '-o', 'json'])"
    assert len(json.loads(run(installed, listed))["items"]) > 30  # CRDs included
    packed = {path.relative_to(installed) for path in (installed / "shoal").rglob("*.yaml")}
    assert packed == {path.relative_to(ROOT / "src") for path in (ROOT / "src" / "shoal").rglob("*.yaml")}
    assert not [path for path in installed.rglob("*") if not path.stat().st_mode & 0o004]


def test_the_controller_starts_and_serves_metrics_without_ray(installed: Path) -> None:
    told = run(installed, "from shoal.cli.main import main; main(['controller', '--help'])")
    assert "--health-port" in told
    served = run(installed, SERVING)
    assert "shoal_leading 1.0" in served and "process_resident_memory_bytes" in served


SERVING = """
import asyncio, aiohttp
import shoal.controllers.appwrapper, shoal.controllers.queues, shoal.controllers.ray, shoal.controllers.multicluster
import shoal.cli.admission
from shoal.kube.health import HealthServer, lease_samples

async def scrape():
    health = HealthServer()
    health.add_metrics(lambda: lease_samples(True, 1))
    port = await health.start("127.0.0.1", 0)
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        print(await answer.text())
    await health.stop()

asyncio.run(scrape())
"""
