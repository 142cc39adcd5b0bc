"""What an image name means on a machine without images: which environment its containers get.

Asked by the process runtime for every container. Matches the last path component only, whatever registry, tag or
digest; never pulls anything. Names it does not know are refused with the words that say how to map them.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Literal

import msgspec

from shoal.errors import BadInput
from shoal.local import environments

Family = Literal["ray", "shell", "echo", "pause"]

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_RAY = {"ray", "ray-ml", "ray-llm", "autoscaler"}
_SHELL = {
    "ubuntu",
    "debian",
    "busybox",
    "alpine",
    "python",
    "bash",
    "fedora",
    "centos",
}
_REDIS = ("redis-server", "--protected-mode", "no")
"""As Redis' own image starts it: every address may connect, as in a pod it must."""
_ECHO = {"echo", "echo-server", "echoserver", "http-echo"}


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """An environment for containers: where commands are found, what runs when the manifest names no command."""

    name: str
    family: Family
    path: str
    command: tuple[str, ...] = ()
    environment: str = ""
    """The directory that a user mapped the name to."""

    @property
    def lacks_ray(self) -> str:
        """What to say of a container that starts Ray with it; empty where it has Ray, or nothing is known."""
        if self.family == "ray" or not self.environment:
            return ""
        return (
            f"image {self.name} has no Ray: {self.environment}/bin/ray does not exist; "
            "install Ray there, or map the name to another environment"
        )


class ImageTable:
    """The built-in names, and the user's own: `name` to a directory of a Python environment, or to a built-in name."""

    def __init__(self, mapped: dict[str, str] | None = None, python: str = sys.executable) -> None:
        self._mapped = {
            name: environments.prefix_of(target) if "/" in target else target for name, target in (mapped or {}).items()
        }
        self._python_bin = str(Path(python).parent)

    def find(self, reference: str) -> Image | None:
        """The environment for an image reference; None for an unknown name."""
        name = short_name(reference)
        target = self._mapped.get(reference) or self._mapped.get(name)
        if target is not None and "/" in target:
            return self.of_environment(name, target)
        return self._built_in(target or name)

    def of_environment(self, name: str, prefix: str) -> Image:
        """An image that is the directory of an environment."""
        family: Family = "ray" if _has_ray(prefix) else "shell"
        return Image(name=name, family=family, path=f"{prefix}/bin:{SYSTEM_PATH}", environment=prefix)

    def versions(self, image: Image) -> environments.Environment:
        """Its Python and its Ray, as far as its directories tell them."""
        return environments.read(image.environment or str(Path(self._python_bin).parent))

    def refusal(self, reference: str) -> str:
        """Why this image cannot run, and what to do."""
        if short_name(reference) == "redis":
            return (
                f'Container image "{reference}" is this machine\'s own redis-server here, and there is none; install '
                "it (Debian: apt install redis-server), or map the name with --image redis=TARGET"
            )
        return (
            f'Container image "{reference}" is not known on this machine and images are never pulled here; map it to '
            f"a Python environment, a requirements file or a known name: shoal up --image {short_name(reference)}=ray "
            "(or =./venv, =./requirements.txt)"
        )

    def _built_in(self, name: str) -> Image | None:
        if name in _RAY:
            return Image(name=name, family="ray", path=f"{self._python_bin}:{SYSTEM_PATH}")
        if name in _ECHO:
            return Image(name=name, family="echo", path=f"{self._python_bin}:{SYSTEM_PATH}")
        if name == "pause":
            return Image(name=name, family="pause", path=SYSTEM_PATH, command=("sleep", "infinity"))
        if name == "redis" and shutil.which("redis-server", path=SYSTEM_PATH):
            return Image(name=name, family="shell", path=SYSTEM_PATH, command=_REDIS)
        if name == "python":
            return Image(name=name, family="shell", path=f"{self._python_bin}:{SYSTEM_PATH}", command=("python3",))
        if name in _SHELL or name.startswith("ubi"):
            return Image(name=name, family="shell", path=SYSTEM_PATH, command=("sh",))
        return None


def parse_mapping(text: str) -> tuple[str, str]:
    """One `name=target` of the user's table."""
    name, sign, target = text.partition("=")
    if not sign or not name or not target:
        raise BadInput(
            f"image mapping {text!r} must read name=target, such as glue=ray, glue=./venv or glue=./requirements.txt"
        )
    if "/" in target or target.endswith(".txt"):
        try:
            return name, environments.target_of(target)
        except BadInput as error:
            raise BadInput(f"image mapping {text!r}: {error}") from None
    if ImageTable().find(target) is None:
        raise BadInput(
            f"image mapping {text!r}: unknown image {target!r}; name a Python environment, with a / in its path, or "
            f"one of {', '.join(sorted(_RAY | _SHELL | _ECHO | {'pause', 'ubi'}))}"
        )
    return name, target


def short_name(reference: str) -> str:
    """`quay.io/x/ray:2.5.0-py38@sha256:…` is `ray`."""
    return reference.partition("@")[0].rsplit("/", 1)[-1].partition(":")[0]


def _has_ray(environment: str) -> bool:
    return os.path.exists(os.path.join(environment, "bin", "ray"))
