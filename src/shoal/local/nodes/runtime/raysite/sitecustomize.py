"""Shell commands that Python starts in a pod of the loopback sandbox find the pod's mounts.

Ray's head runs a job's entrypoint as a shell command (`python /home/ray/samples/train.py` out of a ConfigMap).
Nothing is mounted in that sandbox, so the mount paths in the command's text are replaced by the directories behind
them, however the job was submitted. Python imports this by its name at every start; it must stay small, work on any
Python, and never fail. Another `sitecustomize` further along the path is still run.
"""

from __future__ import annotations

import json
import os
import re
import sys

__all__ = ["mapped"]


def mapped(text: str, paths: list[tuple[str, str]]) -> str:
    """Every mount path in a text, whole components only, by the directory behind it; the longest match wins."""
    for target, source in sorted(paths, key=lambda pair: -len(pair[0])):
        pattern = r"(?<![\w.\-/])" + re.escape(target) + r"(?![\w.\-])"
        text = re.sub(pattern, source.replace("\\", r"\\"), text)
    return text


def _install(paths: list[tuple[str, str]]) -> None:
    import subprocess

    original = subprocess.Popen.__init__

    def start(self: object, args: object, *rest: object, **options: object) -> None:
        if options.get("shell") and isinstance(args, str):
            args = mapped(args, paths)
        original(self, args, *rest, **options)  # type: ignore[call-overload]  # whatever its caller gave

    subprocess.Popen.__init__ = start  # type: ignore[method-assign]  # this is what the module is for


def _run_the_next() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    for directory in sys.path:
        path = os.path.join(directory, "sitecustomize.py")
        if os.path.abspath(directory or ".") != here and os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                exec(compile(file.read(), path, "exec"), {"__name__": "sitecustomize", "__file__": path})
            return


if __name__ == "sitecustomize":
    try:
        with open(os.environ["SHOAL_MOUNTS"], encoding="utf-8") as listed:
            _paths = json.load(listed)
        if _paths:
            _install(_paths)
    except (KeyError, OSError, ValueError):
        pass
    _run_the_next()
