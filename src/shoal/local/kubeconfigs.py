"""The user's own kubeconfig: one entry added by `shoal up`, exactly that entry removed by `shoal down`.

Works as kind does. Never touches other entries, never loses the file: it is rewritten beside and renamed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from shoal.errors import BadInput, ShoalError

_SECTIONS = ("clusters", "users", "contexts")


def user_file() -> Path:
    """The file that kubectl writes to: the first of $KUBECONFIG, else ~/.kube/config."""
    for part in os.environ.get("KUBECONFIG", "").split(os.pathsep):
        if part:
            return Path(part)
    return Path.home() / ".kube" / "config"


def add(source: Path, context: str, target: Path | None = None) -> Path:
    """Merge the one entry of `source` under the name `context` and make it the current context."""
    path = _real(target or user_file())
    own = yaml.safe_load(source.read_text())
    entries = {
        "clusters": {"name": context, "cluster": own["clusters"][0]["cluster"]},
        "users": {"name": context, "user": own["users"][0]["user"]},
        "contexts": {
            "name": context,
            "context": {**own["contexts"][0]["context"], "cluster": context, "user": context},
        },
    }
    with _locked(path):
        config = _read(path)
        for section, entry in entries.items():
            config[section] = [old for old in config.get(section) or [] if old.get("name") != context] + [entry]
        config["current-context"] = context
        _write(path, config)
    return path


def remove(context: str, target: Path | None = None) -> bool:
    """Take our entry out; False when it was not there."""
    path = _real(target or user_file())
    if not path.exists():
        return False
    with _locked(path):
        config = _read(path)
        found = any(entry.get("name") == context for section in _SECTIONS for entry in config.get(section) or [])
        if not found:
            return False
        for section in _SECTIONS:
            config[section] = [entry for entry in config.get(section) or [] if entry.get("name") != context]
        if config.get("current-context") == context:
            config["current-context"] = ""
        _write(path, config)
    return True


def _real(path: Path) -> Path:
    """Behind links, as kubectl writes it: the link of a user that keeps the file elsewhere stays one."""
    return Path(os.path.realpath(path))


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"apiVersion": "v1", "kind": "Config", "preferences": {}, "clusters": [], "users": [], "contexts": []}
    try:
        config = yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        where = " ".join(str(error).split()).replace(' in "<unicode string>",', ": see")
        raise BadInput(f"{path} is not YAML and was left as it is: {where}; use --no-kubeconfig") from None
    if not isinstance(config, dict):
        raise BadInput(f"{path} is not a kubeconfig and was left as it is; use --no-kubeconfig")
    for section in _SECTIONS:
        entries = config.get(section) or []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise BadInput(f"{section} of {path} is no list of entries, and was left as it is; use --no-kubeconfig")
    config.setdefault("apiVersion", "v1")
    config.setdefault("kind", "Config")
    return config


def private(mode: int) -> int:
    """What is left of a file's mode once an administrator's token is in it: nothing for anyone but its owner."""
    return mode & 0o700 | 0o600


def shared(path: Path) -> bool:
    """Whether others than its owner may read or change a file."""
    return path.exists() and bool(path.stat().st_mode & 0o077)


def _write(path: Path, config: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.shoal")
    partial.unlink(missing_ok=True)  # left by a start that was killed, or put there for us to fill
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.yaml.encode(config))
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        os.chmod(partial, private(path.stat().st_mode))
    os.replace(partial, path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_name(f".{path.name}.shoal-lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise ShoalError(f"{path} cannot be written: {error.strerror}; use --no-kubeconfig") from None
