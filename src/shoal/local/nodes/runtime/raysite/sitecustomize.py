"""Python in a pod that shares the machine's network: it finds the pod's mounts, and servers have the pod's address.

Ray's head runs a job's entrypoint as a shell command (`python /home/ray/samples/train.py` out of a ConfigMap), and its
autoscaler reads the account's token at a path that it has built in. Nothing is mounted in the loopback sandbox, so
mount paths are replaced by what is behind them: in the text of shell commands, and where Python opens, makes or looks
for a file. In the mounts sandbox, too, pods share the machine's network: what Python binds on all addresses (Serve's
port 8000) is bound on the pod's own, so that two clusters can both have it, and is still found at localhost from within
the pod. Where the pod's Ray cluster has a token, Ray's server of `ray://` says what is missing (`ray_hint`). Python
imports this by its name at every start; it must stay small, work on any Python, and never fail. Another
`sitecustomize` further along the path is still run.
"""

from __future__ import annotations

import functools
import importlib.machinery
import json
import os
import re
import sys

__all__ = ["LocalServers", "mapped"]


def mapped(text: str, paths: list[tuple[str, str]]) -> str:
    """Every mount path in a text, whole components only, by the directory behind it; the longest match wins."""
    for target, source in sorted(paths, key=lambda pair: -len(pair[0])):
        pattern = r"(?<![\w.\-/])" + re.escape(target) + r"(?![\w.\-])"
        text = re.sub(pattern, source.replace("\\", r"\\"), text)
    return text


class LocalServers:
    """Which ports of this pod are bound on its own address; its processes share the list, a directory."""

    def __init__(self, address: str, directory: str, shared: tuple[int, ...] = ()) -> None:
        """`shared`: ports that the pod asks for on the machine itself."""
        self.address, self.directory = address, os.path.join(directory, "bound")
        self.shared = (0, *shared)  # what the system chooses clashes with nothing

    def place_to_bind(self, place: object) -> object:
        """Where to bind instead of all addresses."""
        if isinstance(place, tuple) and place[0] in ("", "0.0.0.0") and place[1] not in self.shared:
            return (self.address, place[1])
        return place

    def place_to_reach(self, place: object) -> object:
        if isinstance(place, tuple) and place[0] in ("localhost", "127.0.0.1") and self._bound(place[1]):
            return (self.address, *place[1:])
        return place

    def note(self, port: object) -> None:
        try:
            os.makedirs(self.directory, exist_ok=True)
            with open(os.path.join(self.directory, str(port)), "w", encoding="utf-8"):
                pass
        except OSError:
            pass

    def _bound(self, port: object) -> bool:
        return os.path.exists(os.path.join(self.directory, str(port)))


def _serve_at(servers: LocalServers) -> None:
    import socket

    plain = socket.socket

    def bind(self: socket.socket, place: object) -> None:
        is_tcp = (self.family, self.type) == (socket.AF_INET, socket.SOCK_STREAM)
        chosen = servers.place_to_bind(place) if is_tcp else place
        super(plain, self).bind(chosen)  # type: ignore[arg-type]  # whatever its caller gave
        if chosen is not place:
            servers.note(chosen[1])  # type: ignore[index]  # a pair: it was chosen here

    def connect(self: socket.socket, place: object) -> None:
        super(plain, self).connect(servers.place_to_reach(place))  # type: ignore[arg-type]

    def connect_ex(self: socket.socket, place: object) -> int:
        return super(plain, self).connect_ex(servers.place_to_reach(place))  # type: ignore[arg-type]

    plain.bind, plain.connect, plain.connect_ex = bind, connect, connect_ex  # type: ignore[method-assign,assignment]


def behind(path: object, paths: list[tuple[str, str]]) -> object:
    """What lies behind a path that is a mount path or below one, the longest first; anything else as it is."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(text, str):
        for target, source in paths:
            if text == target or text.startswith(target + "/"):
                return source + text[len(target) :]
    return path


def _redirect(owner: object, name: str, paths: list[tuple[str, str]]) -> None:
    """A function whose first argument is a path, or some of whose arguments are: by what is behind them."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def redirected(*given: object, **named: object) -> object:
        return original(
            *(behind(one, paths) for one in given), **{key: behind(one, paths) for key, one in named.items()}
        )

    setattr(owner, name, redirected)
    for abilities in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if original in abilities:
            abilities.add(redirected)  # what others ask before they use it


_ASKED = (
    *("stat", "lstat", "access", "open", "listdir", "scandir", "readlink", "mkdir", "rmdir", "remove", "unlink"),
    *("rename", "replace", "chmod", "utime", "truncate", "chdir"),
)
"""What `os.path`, `pathlib`, `shutil` and `glob` go by."""


class _Ssl:
    """Certificates are read by C: the calls that name their files are redirected once `ssl` is imported."""

    def __init__(self, paths: list[tuple[str, str]]) -> None:
        self.paths = paths

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != "ssl":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]  # a finder, as far as one is needed
        spec = importlib.machinery.PathFinder.find_spec(name)
        original = spec.loader.exec_module  # type: ignore[union-attr]  # a module of the standard library

        def execute(module: object) -> None:
            original(module)  # type: ignore[arg-type]  # whatever the import system gives
            for one in ("load_verify_locations", "load_cert_chain"):
                _redirect(module.SSLContext, one, self.paths)  # type: ignore[attr-defined]

        spec.loader.exec_module = execute  # type: ignore[union-attr,method-assign]
        return spec


def _install(paths: list[tuple[str, str]]) -> None:
    import builtins
    import io
    import subprocess

    paths = sorted(paths, key=lambda pair: -len(pair[0]))
    _redirect(io, "open", paths)
    builtins.open = io.open
    for name in _ASKED:
        _redirect(os, name, paths)
    sys.meta_path.insert(0, _Ssl(paths))  # type: ignore[arg-type]  # a finder, as far as one is needed

    original = subprocess.Popen.__init__

    def start(self: object, args: object, *rest: object, **options: object) -> None:
        if options.get("shell") and isinstance(args, str):
            args = mapped(args, paths)
        original(self, args, *rest, **options)  # type: ignore[call-overload]  # whatever its caller gave

    subprocess.Popen.__init__ = start  # type: ignore[method-assign]  # this is what the module is for


def _serves_ray_clients() -> bool:
    """Is this the process at `ray://`? Those behind it, one for each client, are left as they are. Its arguments are
    not in `sys.argv` yet."""
    try:
        with open("/proc/self/cmdline", encoding="utf-8", errors="replace") as words:
            return {"ray.util.client.server", "--mode=proxy"} <= set(words.read().split("\0"))
    except OSError:
        return False


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
    if os.environ.get("SHOAL_POD_IP") and os.environ.get("SHOAL_POD_DIR"):
        _shared = tuple(int(one) for one in os.environ.get("SHOAL_HOST_PORTS", "").split(",") if one.isdigit())
        _serve_at(LocalServers(os.environ["SHOAL_POD_IP"], os.environ["SHOAL_POD_DIR"], _shared))
    if os.environ.get("SHOAL_TOKEN_HINT") and _serves_ray_clients():
        import ray_hint  # type: ignore[import-not-found]  # beside this file, whose directory is on the path

        ray_hint.install(os.environ["SHOAL_TOKEN_HINT"])
    _run_the_next()
