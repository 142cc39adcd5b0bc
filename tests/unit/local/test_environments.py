"""Environments that stand for images: found, built once, listed, refused with what to do."""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from shoal.cli.main import shoal
from shoal.errors import BadInput, ShoalError
from shoal.local import environments
from shoal.local.images import ImageTable, parse_mapping

NOW = "2026-11-16T12:00:00Z"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def wheel(folder: Path) -> Path:
    """A package of one line, as a file, so that nothing is downloaded."""
    folder.mkdir(parents=True, exist_ok=True)
    made, info = folder / "tiny-1.0-py3-none-any.whl", "tiny-1.0.dist-info"
    content = {
        "tiny.py": "answer = 42\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(text)}\n"
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return made


def environment(prefix: Path, ray: str = "") -> Path:
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python").touch()
    packages = prefix / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    if ray:
        (packages / f"ray-{ray}.dist-info").mkdir()
        (prefix / "bin" / "ray").touch()
    return prefix


def test_an_environment_is_found_where_users_keep_it(tmp_path: Path) -> None:
    venv, project = environment(tmp_path / "venv", "2.60.0"), tmp_path / "project"
    environment(project / ".venv")
    assert parse_mapping(f"team={venv}") == ("team", str(venv))
    assert parse_mapping(f"team={project}") == ("team", str(project / ".venv"))
    found = ImageTable({"team": str(venv)}).find("registry/team:1")
    assert found is not None and found.family == "ray" and found.path.startswith(f"{venv}/bin:")
    assert environments.read(str(venv)).ray == "2.60.0"


@pytest.mark.parametrize("name, advice", [("pyproject.toml", "uv sync"), ("environment.yml", "conda env create")])
def test_a_recipe_without_its_environment_says_how_to_make_it(tmp_path: Path, name: str, advice: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(BadInput, match=advice):
        parse_mapping(f"team={tmp_path}")


def test_a_file_must_be_a_list_of_packages(tmp_path: Path) -> None:
    (tmp_path / "packages.toml").touch()
    with pytest.raises(BadInput, match="requirements file"):
        parse_mapping(f"team={tmp_path}/packages.toml")


def test_what_an_environment_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = str(environment(tmp_path / "own", "2.60.0") / "bin" / "python")
    said: list[str] = []
    environments.prepare("bare", str(environment(tmp_path / "bare")), said.append, NOW, python)
    environments.prepare("old", str(environment(tmp_path / "old", "2.50.0")), said.append, NOW, python)
    environments.prepare("same", str(environment(tmp_path / "same", "2.60.0")), said.append, NOW, python)
    assert len(said) == 2
    assert "image bare has no Ray" in said[0] and '"ray[default]==2.60.0"' in said[0]
    assert "image old has Ray 2.50.0" in said[1]
    bare = ImageTable({"bare": str(tmp_path / "bare")}).find("bare")
    assert bare is not None and "has no Ray" in bare.lacks_ray


def test_a_requirements_file_is_built_once_and_listed(tmp_path: Path) -> None:
    folder = tmp_path / "team"
    made = wheel(folder)
    (folder / "requirements.txt").write_text(f"./{made.name}\n")
    name, target = parse_mapping(f"team={folder}")
    assert target == str(folder / "requirements.txt")
    said: list[str] = []
    first = environments.prepare(name, target, said.append, NOW, sys.executable)
    again = environments.prepare("other", target, said.append, NOW, sys.executable)
    assert first.prefix == again.prefix == ImageTable({name: target}).find("team").environment  # type: ignore[union-attr]
    assert len(list(Path(first.prefix).glob("lib/python3*/site-packages/tiny.py"))) == 1
    assert sum("this happens once" in text for text in said) == 1
    shown = CliRunner().invoke(shoal, ["image", "list", "-o", "json"])
    assert msgspec.json.decode(shown.output)[0]["names"] == ["team", "other"]
    assert "team,other" in CliRunner().invoke(shoal, ["image", "list"]).output
    assert "removed" in CliRunner().invoke(shoal, ["image", "remove", "team"]).output
    assert list(environments.listed()) == []
    (folder / "requirements.txt").write_text(f"./{made.name}\n# changed\n")
    assert environments.prefix_of(target) != first.prefix


def test_a_list_that_cannot_be_installed_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("./missing-1.0-py3-none-any.whl\n")
    with pytest.raises(ShoalError, match=r"image team cannot be built(.|\n)*missing-1.0"):
        environments.prepare("team", str(tmp_path / "requirements.txt"), lambda text: None, NOW)
    assert list(environments.listed()) == []
