"""A container's plan where pods share the machine's network: ports mapped, and paths too where nothing can be mounted.

Mount paths in the command line, the environment, the working directory and in scripts out of volumes are replaced by
the directories behind them, as are the home of a Ray image and Ray's own directory. A path that a program other than
Python has built in is not seen; the netns and mounts sandboxes have no such limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from pathlib import Path

from shoal.api.meta import Json
from shoal.local.images import Image
from shoal.local.nodes.runtime import rayentry, raysite, scripts
from shoal.local.nodes.runtime.process import RunPlan
from shoal.local.nodes.runtime.raysite.sitecustomize import mapped
from shoal.local.nodes.runtime.shim.kernel import StartFailed
from shoal.local.nodes.runtime.shim.root import open_beneath
from shoal.local.nodes.runtime.sources import ConfigError
from shoal.local.nodes.sandbox import Sandbox, SandboxAddress
from shoal.local.nodes.sandbox.loopback import AUTOSCALER_METRICS, DASHBOARD_METRICS, LoopbackSandbox

RAY_HOME, RAY_FILES = "/home/ray", "/tmp/ray"
"""Where an image of Ray has its user's home, and Ray its logs."""
SUBMIT = "ray job submit"
SHOWN = "/run/shoal"
"""Where a container with a root of its own finds what its `ray` command needs."""

_SERVICE = re.compile(r"(?<![\w.\-])([a-z0-9][-a-z0-9.]*\.svc\.cluster\.local)(?::(\d+))?(?![\w.\-])")
_SHORT = re.compile(r"(?<![\w.\-])([a-z][-a-z0-9]*(?:\.[a-z0-9][-a-z0-9]*){0,2}):(\d+)(?![\w.\-])")
_LOCALHOST = re.compile(r"(?<![\w.\-])(?:127\.0\.0\.1|localhost):(\d+)(?!\d)")


def map_paths(
    plan: RunPlan,
    address: SandboxAddress,
    directory: Path,
    image: Image,
    mounts: list[Json],
    sandbox: Sandbox,
    container: Json,
) -> None:
    """Where nothing can be mounted: paths by what is behind them, and directories of the pod's own for the rest."""
    assert isinstance(sandbox, LoopbackSandbox)
    home, scratch, volumes = directory / "home", sandbox.scratch(address), directory.parent.parent.parent / "volumes"
    home.mkdir(parents=True, exist_ok=True)
    temporary = scratch / f"t{directory.name}"  # short: sockets of Ray's dashboard lie there, too
    temporary.mkdir(parents=True, exist_ok=True, mode=0o700)
    rays = scratch / str(int(directory.name) % 1000)
    message = directory / "termination-log"
    message.touch()
    paths = [(mount["target"], _source(mount)) for mount in mounts]
    paths.append((container.get("terminationMessagePath") or "/dev/termination-log", str(message)))
    own = _own_directories(paths, home, rays, volumes) if image.family == "ray" else []
    paths = scripts.with_scripts(mounts, [*paths, *own], volumes, directory)
    plan.paths = paths
    plan.env.update(HOME=str(home), TMPDIR=str(temporary))
    # What is sent to Ray runs in the head, which has a home and logs of its own.
    named = [one for one in paths if one not in own] if SUBMIT in " ".join(plan.argv) else paths
    plan.argv = [mapped(word, named) for word in plan.argv]
    plan.env = {name: mapped(value, paths) for name, value in plan.env.items()}
    plan.env["SHOAL_SCRATCH"] = str(rays)
    plan.cwd = mapped(plan.cwd, paths) if plan.cwd not in ("", "/", RAY_HOME) else str(home)
    _entrypoints(plan, directory)
    plan.visible = [
        *((_source(mount), bool(mount.get("readonly"))) for mount in mounts),
        (str(message), False),
        (str(home), False),
        (str(scratch), False),
        *((str(path), True) for path in (directory / "mounts.json", directory / "scripts") if path.exists()),
    ]


def map_ports(
    plan: RunPlan,
    address: SandboxAddress,
    directory: Path,
    image: Image,
    sandbox: Sandbox,
    container: Json,
    namespace: str,
) -> None:
    """On the machine's own network: addresses and ports as they really are, and a `ray` command that knows them."""
    assert isinstance(sandbox, LoopbackSandbox)
    pod = directory.parent.parent.parent
    shared = sandbox.shared(address)
    peers = Path(SHOWN, "peers") if sandbox.roots else shared.parent
    hosts = Path("/etc/hosts") if sandbox.roots else pod / "hosts"
    plan.argv = [real_addresses(word, address, sandbox, namespace) for word in plan.argv]
    plan.env = {name: real_addresses(value, address, sandbox, namespace) for name, value in plan.env.items()}
    plan.env.update(
        SHOAL_POD_DIR=str(peers / address.pod_id),
        SHOAL_HOSTS=str(hosts),
        SHOAL_POD_IP=address.ip,
        SHOAL_PORT_BASE=str(address.port_base),
    )
    needed = [(shared.parent, peers, True), (shared, peers / address.pod_id, False)]
    if image.family == "ray":
        programs = Path(SHOWN, "bin") if sandbox.roots else pod / "bin"
        if _ray(plan, address, pod / "bin", image):
            plan.env["PATH"] = f"{programs}:{plan.env['PATH']}"
            needed.append((pod / "bin", programs, True))
    if image.family in ("ray", "shell"):
        raysite.put_first(plan.env)
        machines = (port["hostPort"] for port in container.get("ports") or () if port.get("hostPort"))
        plan.env["SHOAL_HOST_PORTS"] = ",".join(map(str, machines))  # where only one pod can have it
    if sandbox.roots:
        plan.mounts += [
            {"source": str(source), "target": str(target), "readonly": readonly} for source, target, readonly in needed
        ]
    else:
        needed.append((hosts, hosts, True))
        plan.visible += [(str(source), readonly) for source, _, readonly in needed if source.exists()]


def _own_directories(paths: list[tuple[str, str]], home: Path, rays: Path, volumes: Path) -> list[tuple[str, str]]:
    """The home and the directory of Ray's logs, unless they are mounts or the machine's own, and links in them to the
    mounts below them."""
    targets, links = {target for target, _ in paths}, []
    for target, source in paths:
        below_another = any(target.startswith(f"{other}/") for other in targets)
        if target.startswith(f"{RAY_HOME}/") and not below_another:
            links.append((home / target.removeprefix(f"{RAY_HOME}/"), source))
        elif target == RAY_FILES and Path(source).is_relative_to(volumes):  # Ray's sockets need shorter paths than that
            links.append((Path(source, "session_latest"), str(rays / "session_latest")))
    for link, source in links:
        with contextlib.suppress(OSError):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(source)
    own = [] if os.path.isdir(RAY_HOME) else [(RAY_HOME, str(home))]  # where that is a user's home, programs lie in it
    return [one for one in (*own, (RAY_FILES, str(rays))) if one[0] not in targets]


def _entrypoints(plan: RunPlan, directory: Path) -> None:
    """Ray starts a job's entrypoint itself, long after this plan: its Python maps the mount paths then."""
    listed = directory / "mounts.json"
    listed.write_text(json.dumps(plan.paths))
    plan.env["SHOAL_MOUNTS"] = str(listed)


def _ray(plan: RunPlan, address: SandboxAddress, programs: Path, image: Image) -> bool:
    """Put our `ray` where it comes before the image's; False when the image has none."""
    real = next((os.path.join(d, "ray") for d in image.path.split(":") if os.path.exists(os.path.join(d, "ray"))), "")
    if not real:
        return False
    programs.mkdir(exist_ok=True)
    entry = programs / "ray"
    entry.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{rayentry.__file__}" ray "{real}" "$@"\n')
    entry.chmod(0o755)
    plan.env["DASHBOARD_METRIC_PORT"] = str(address.port_base + DASHBOARD_METRICS)
    plan.env["AUTOSCALER_METRIC_PORT"] = str(address.port_base + AUTOSCALER_METRICS)
    return True


def real_addresses(text: str, address: SandboxAddress, sandbox: LoopbackSandbox, namespace: str = "") -> str:
    """Service names, full or short, that resolve now, and Ray's ports on localhost, as they really are; the rest stays.

    Names that have no address yet are left to the `ray` entry, which waits for them.
    """

    def service(match: re.Match[str]) -> str:
        found = sandbox.lookup(match.group(1))
        if not found:
            return match.group(0)
        return f"{found[0]}:{sandbox.real_port(found[0], int(match.group(2)))}" if match.group(2) else found[0]

    def own(match: re.Match[str]) -> str:
        port = int(match.group(1))
        return f"{address.ip}:{sandbox.real_port(address.ip, port)}" if sandbox.knows(port) else match.group(0)

    def short(match: re.Match[str]) -> str:
        name, port = match.group(1), int(match.group(2))
        for domain in (f"{namespace}.svc.cluster.local", "svc.cluster.local", "cluster.local"):
            if found := sandbox.lookup(f"{name}.{domain}"):
                return f"{found[0]}:{sandbox.real_port(found[0], port)}"
        return match.group(0)

    return _LOCALHOST.sub(own, _SHORT.sub(short, _SERVICE.sub(service, text)))


def _source(mount: Json) -> str:
    """The directory behind a mount, resolved without following a link below the volume."""
    try:
        held = open_beneath(mount["source"], mount.get("subPath", ""))
    except StartFailed as error:
        raise ConfigError(str(error)) from error
    try:
        return os.readlink(f"/proc/self/fd/{held}")
    finally:
        os.close(held)
