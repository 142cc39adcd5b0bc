"""Python environments that stand for images: found where a user keeps one, or built once from a list of packages.

`shoal up --image NAME=TARGET`, or an annotation of a pod, names the directory of an environment (venv, uv, conda), a
project with `.venv`, or a requirements file. What is built lies in the user's cache under a name made from the file's
content and the Python that it is for, and is used again until either changes. Asked at start, by the node agent for
annotations, and by `shoal image`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from shoal.errors import BadInput, ShoalError

MARK = "shoal-image.json"
"""Written last: an environment without it was not finished."""
REQUIREMENTS = "requirements.txt"
_RECIPES = {
    "environment.yml": "conda env create -p {0}/env -f {0}/environment.yml, then name {0}/env",
    "environment.yaml": "conda env create -p {0}/env -f {0}/environment.yaml, then name {0}/env",
    "pyproject.toml": "uv sync --project {0}",
}
MOST_OUTPUT = 2000
_VERSION = r"\s*[<>=!~]{1,3}\s*[\w.*+!\-]+"
_PLAIN = re.compile(
    rf"[A-Za-z0-9][\w.\-]*\s*(\[[\w\s,.\-]*\])?({_VERSION}(\s*,{_VERSION})*)?\s*(;[^@]*?)?(\s+--hash=\w+:[0-9a-f]+)*"
)

Say = Callable[[str], None]


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one without running it."""

    prefix: str
    python: str = ""
    ray: str = ""
    """Version; empty where there is none."""


class Built(msgspec.Struct, kw_only=True):
    """What is written beside an environment that was built here."""

    file: str
    names: list[str]
    built_at: str


def cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / "images"


def target_of(path: str) -> str:
    """What `--image NAME=PATH` means: an environment, any other directory with programs, or a requirements file.
    Raises BadInput where the path is neither, with what to do."""
    found = Path(path).expanduser().absolute()
    if found.is_file():
        if found.suffix != ".txt":
            raise BadInput(f"{path} is a file, and no list of packages: name a requirements file that ends in .txt")
        return str(found)
    if not found.is_dir():
        raise BadInput(f"{path} is not a directory; name a Python environment, a requirements file or a known image")
    if has_python(found):
        return str(found)
    if has_python(found / ".venv"):
        return str(found / ".venv")
    if (found / REQUIREMENTS).is_file():
        return str(found / REQUIREMENTS)
    for name, advice in _RECIPES.items():
        if (found / name).is_file() and not (found / "bin").is_dir():
            raise BadInput(f"{path} has {name} and no environment yet; make it first: {advice.format(path)}")
    return str(found)


def has_python(prefix: Path) -> bool:
    return (prefix / "bin" / "python").exists() or (prefix / "bin" / "python3").exists()


def prefix_of(target: str) -> str:
    """The directory whose programs containers get; of a requirements file, where it is built."""
    return str(_place(Path(target))) if target.endswith(".txt") and os.path.isfile(target) else target


def read(prefix: str) -> Environment:
    """Versions as the environment's own directories tell them."""
    found = Environment(prefix=prefix)
    for packages in sorted(Path(prefix).glob("lib/python3*/site-packages")):
        found = msgspec.structs.replace(found, python=packages.parent.name.removeprefix("python"))
        for info in packages.glob("ray-*.dist-info"):
            found = msgspec.structs.replace(found, ray=info.name.removeprefix("ray-").removesuffix(".dist-info"))
    return found


def check_plain(file: Path) -> None:
    """Raises BadInput where a list has more than names and versions: options and addresses can name files of the
    machine, and sources run code while they are built. Lines are told by number alone: the file may not be for all."""
    try:
        lines = file.read_text(errors="replace").replace("\\\n", " ").splitlines()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if text and not _PLAIN.fullmatch(text):
            raise BadInput(
                f"{file}, line {number}, is not the name of a package with its versions, which is all that an "
                f"annotation can have built; shoal up --image NAME={file} takes any line"
            )


def build(name: str, file: Path, now: str, python: str = sys.executable) -> None:
    """From wheels alone: of those nothing runs while they are installed. Raises ShoalError."""
    _build(name, file, lambda text: None, now, python, only_wheels=True)


def prepare(name: str, target: str, say: Say, now: str, python: str = sys.executable) -> Environment:
    """Build what is not built yet, and say what a user of this image should know. Raises ShoalError."""
    if target.endswith(".txt"):
        _build(name, Path(target), say, now, python)
    found, own = read(prefix_of(target)), read(str(Path(python).parent.parent))
    if not has_python(Path(found.prefix)):
        return found
    wanted = f'"ray[default]{"==" + own.ray if own.ray else ""}"'
    where = f"{found.prefix}/bin/python -m pip install {wanted}"
    if target.endswith(".txt"):
        where = f"add {wanted} to {target}"
    if not found.ray:
        say(f"warning: image {name} has no Ray, so that Ray pods cannot use it; for that: {where}")
    elif own.ray and found.ray != own.ray:
        say(f"warning: image {name} has Ray {found.ray}, other images {own.ray}; head and workers need the same")
    return found


def listed() -> Iterator[tuple[Path, Built]]:
    """What was built on this machine by this user."""
    root = cache_root()
    for mark in sorted(root.glob(f"*/{MARK}")) if root.is_dir() else ():
        try:
            yield mark.parent, msgspec.json.decode(mark.read_bytes(), type=Built)
        except (OSError, msgspec.MsgspecError):
            continue


def _place(file: Path, python: str = sys.executable) -> Path:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ShoalError(f"{file} cannot be read: {error.strerror}") from None
    version = "{}.{}".format(*sys.version_info[:2])
    key = hashlib.sha256(b"\0".join((content, version.encode(), os.path.realpath(python).encode()))).hexdigest()
    words = re.sub(r"[^a-z0-9]+", "-", f"{file.parent.name}-{file.stem}".lower()).strip("-")
    return cache_root() / f"{words[:40]}-{key[:12]}"


def _build(name: str, file: Path, say: Say, now: str, python: str, *, only_wheels: bool = False) -> None:
    place = _place(file, python)
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{place}.lock", "w") as lock:  # two starts at once build it once
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark = place / MARK
        if mark.exists():
            _note_name(mark, name)
            return
        shutil.rmtree(place, ignore_errors=True)
        say(f"image {name} is built from {file} into {place}; this happens once")
        make, install = _steps(str(place), str(file), python)
        _run(make, name, file)
        _run([*install, *(("--only-binary", ":all:") if only_wheels else ())], name, file)
        mark.write_bytes(msgspec.json.encode(Built(file=str(file), names=[name], built_at=now)))


def _steps(place: str, file: str, python: str) -> list[list[str]]:
    """With uv where there is one: it is many times faster."""
    uv, inside = shutil.which("uv"), f"{place}/bin/python"
    if uv is not None:
        install = [uv, "pip", "install", "--quiet", "--python", inside, "-r", file]
        return [[uv, "venv", "--quiet", "--python", python, place], install]
    install = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", file]
    return [[python, "-m", "venv", place], install]


def _note_name(mark: Path, name: str) -> None:
    known = msgspec.json.decode(mark.read_bytes(), type=Built)
    if name not in known.names:
        known.names.append(name)
        mark.write_bytes(msgspec.json.encode(known))


def _run(step: list[str], name: str, file: Path) -> None:
    """In the file's own directory, from which its relative paths are meant."""
    done = subprocess.run(step, cwd=file.parent, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-MOST_OUTPUT:]
        raise ShoalError(f"image {name} cannot be built from {file}: {' '.join(step[:4])} … failed:\n{said}")
