"""A container's plan in the loopback sandbox, where there are no namespaces: paths and ports mapped instead of mounted.

Mount paths in the command line, the environment and the working directory are replaced by the directories behind them.
A path that a program has built in is not seen; the netns sandbox has no such limit.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from shoal.api.meta import Json
from shoal.local.images import Image
from shoal.local.nodes.runtime import rayentry, raysite
from shoal.local.nodes.runtime.process import RunPlan
from shoal.local.nodes.runtime.raysite.sitecustomize import mapped
from shoal.local.nodes.runtime.shim.kernel import StartFailed
from shoal.local.nodes.runtime.shim.root import open_beneath
from shoal.local.nodes.runtime.sources import ConfigError
from shoal.local.nodes.sandbox import Sandbox, SandboxAddress
from shoal.local.nodes.sandbox.loopback import AUTOSCALER_METRICS, DASHBOARD_METRICS, LoopbackSandbox

_SERVICE = re.compile(r"(?<![\w.\-])([a-z0-9][-a-z0-9.]*\.svc\.cluster\.local)(?::(\d+))?(?![\w.\-])")
_SHORT = re.compile(r"(?<![\w.\-])([a-z][-a-z0-9]*(?:\.[a-z0-9][-a-z0-9]*){0,2}):(\d+)(?![\w.\-])")
_LOCALHOST = re.compile(r"(?<![\w.\-])(?:127\.0\.0\.1|localhost):(\d+)(?!\d)")


def adapt(
    plan: RunPlan,
    address: SandboxAddress,
    directory: Path,
    image: Image,
    mounts: list[Json],
    sandbox: Sandbox,
    container: Json,
    namespace: str,
) -> None:
    """Change the plan in place."""
    assert isinstance(sandbox, LoopbackSandbox)
    pod = directory.parent.parent.parent
    paths = [(mount["target"], _source(mount)) for mount in mounts]
    message = directory / "termination-log"
    message.touch()
    paths.append((container.get("terminationMessagePath") or "/dev/termination-log", str(message)))
    plan.paths = paths
    home = directory / "home"
    home.mkdir(parents=True, exist_ok=True)
    scratch = sandbox.scratch(address)
    temporary = scratch / f"t{directory.name}"  # short: sockets of Ray's dashboard lie there, too
    temporary.mkdir(parents=True, exist_ok=True, mode=0o700)
    plan.env.update(HOME=str(home), TMPDIR=str(temporary))
    plan.argv = [mapped(word, paths) for word in plan.argv]
    plan.env = {name: mapped(value, paths) for name, value in plan.env.items()}
    plan.cwd = mapped(plan.cwd, paths) if plan.cwd not in ("", "/", "/home/ray") else str(home)
    plan.argv = [real_addresses(word, address, sandbox, namespace) for word in plan.argv]
    plan.env = {name: real_addresses(value, address, sandbox, namespace) for name, value in plan.env.items()}
    plan.env.update(
        SHOAL_POD_DIR=str(sandbox.shared(address)),
        SHOAL_HOSTS=str(pod / "hosts"),
        SHOAL_POD_IP=address.ip,
        SHOAL_PORT_BASE=str(address.port_base),
        SHOAL_SCRATCH=str(scratch / str(int(directory.name) % 1000)),
    )
    if image.family == "ray":
        _ray(plan, address, pod, image)
        _entrypoints(plan, directory)
        shared = (port["hostPort"] for port in container.get("ports") or () if port.get("hostPort"))
        plan.env["SHOAL_HOST_PORTS"] = ",".join(map(str, shared))  # the machine's own, where only one pod can have it
    plan.visible = [
        *((_source(mount), bool(mount.get("readonly"))) for mount in mounts),
        (str(message), False),
        (str(home), False),
        (str(scratch), False),
        (str(sandbox.shared(address).parent), True),
        (str(sandbox.shared(address)), False),
        *((str(path), True) for path in (pod / "hosts", pod / "bin", directory / "mounts.json") if path.exists()),
    ]


def _entrypoints(plan: RunPlan, directory: Path) -> None:
    """Ray starts a job's entrypoint itself, long after this plan: its Python maps the mount paths then."""
    listed = directory / "mounts.json"
    listed.write_text(json.dumps(plan.paths))
    plan.env["SHOAL_MOUNTS"] = str(listed)
    plan.env["PYTHONPATH"] = ":".join(filter(None, (raysite.DIRECTORY, plan.env.get("PYTHONPATH", ""))))


def _ray(plan: RunPlan, address: SandboxAddress, pod: Path, image: Image) -> None:
    real = next((os.path.join(d, "ray") for d in image.path.split(":") if os.path.exists(os.path.join(d, "ray"))), "")
    if not real:
        return
    entry = pod / "bin" / "ray"
    entry.parent.mkdir(exist_ok=True)
    entry.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{rayentry.__file__}" ray "{real}" "$@"\n')
    entry.chmod(0o755)
    plan.env["PATH"] = f"{entry.parent}:{plan.env['PATH']}"
    plan.env["DASHBOARD_METRIC_PORT"] = str(address.port_base + DASHBOARD_METRICS)
    plan.env["AUTOSCALER_METRIC_PORT"] = str(address.port_base + AUTOSCALER_METRICS)


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
