"""From a container's manifest to what the shim runs: image, command, environment, mounts, limits.

Called once per run of a container, so that a restart sees changed config maps and a fresh /tmp.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from shoal.api import quantity, ray_token
from shoal.api.meta import Json
from shoal.errors import BadInput
from shoal.local.images import Image
from shoal.local.nodes.runtime import devices, echo, gpus, loopback, rayentry, rayenv, security
from shoal.local.nodes.runtime.chosen_image import check_versions, image_of
from shoal.local.nodes.runtime.environment import command_line, expand, secret_data, variables
from shoal.local.nodes.runtime.host import PodHost
from shoal.local.nodes.runtime.process import ContainerProcess, RunPlan
from shoal.local.nodes.runtime.sources import ConfigError, Sources
from shoal.local.nodes.runtime.token_hint import add_hint
from shoal.local.nodes.runtime.volumes import Volumes
from shoal.local.nodes.sandbox import SandboxAddress, outside

RAY_HOME = "/home/ray"


async def plan(
    host: PodHost,
    pod: Json,
    container: Json,
    address: SandboxAddress,
    volumes: Volumes,
    extra: dict[str, str],
    directory: Path,
) -> RunPlan:
    """Everything decided before the first process exists. Raises ConfigError or UnknownImage."""
    image = await image_of(host, pod, container)
    memory = memory_limit(container)
    base = base_variables(pod, image, memory, host)
    base.update(await token_variables(pod, host.sources))
    base.update(extra)
    given = extra.get(gpus.VARIABLE)
    seen = devices.variables(given, host.gpus)
    base.update(seen)
    environment = await variables(pod, container, base, host.sources)
    if given is None:
        environment.update(seen)  # a manifest that names devices gets none by that
    if image.family == "ray":
        add_hint(environment, pod, container)
    argv = own_stand_in(command_line(container, image.command, environment), image, container)
    if not argv:
        raise ConfigError(f"container {container['name']} has no command and image {image.name} brings none")
    if image.lacks_ray and rayenv.gate_weight(argv):
        raise ConfigError(image.lacks_ray)
    if rayenv.gate_weight(argv):
        check_versions(host, pod, image)
    made = RunPlan(
        argv=argv,
        env=environment,
        cwd=expand(container.get("workingDir") or "", environment) or _home(image),
        grace=float(pod["spec"].get("terminationGracePeriodSeconds", 30)),
        hostname=_host_name(pod),
        stdin=bool(container.get("stdin")),
        stdin_once=bool(container.get("stdinOnce")),
        tty=bool(container.get("tty")),
    )
    if made.tty:
        made.env.setdefault("TERM", "xterm")
    _take_identity(made, host, pod, container, image)
    _make(directory)
    if memory or cpu_limit(container):
        made.cgroups = host.limits.open(group_name(address, container["name"]), memory)
    made.hidden = [str(path) for path in host.private]
    if host.sandbox.roots:
        made.gpu_nodes = devices.nodes(given, host.gpus)
        made.root, made.pid_namespace, made.net_namespace = str(directory), True, address.namespace
        made.mounts = [
            *_own_mounts(directory, pod, container, host.sandbox.isolates),
            *_hidden_programs(image),
            *volumes.mounts(container, environment),
        ]
    else:
        mounts = volumes.mounts(container, environment)
        loopback.map_paths(made, address, directory, image, mounts, host.sandbox, container)
        made.view = host.view
    if not host.sandbox.isolates:
        namespace = pod["metadata"].get("namespace", "")
        loopback.map_ports(made, address, directory, image, host.sandbox, container, namespace)
    return made


def _take_identity(made: RunPlan, host: PodHost, pod: Json, container: Json, image: Image) -> None:
    """The security context, and an event that says what of it does not hold here."""
    who, refusal = security.identity(pod, container, image, host.sandbox.roots)
    if refusal:
        host.announce(pod, "Warning", "SecurityContextIgnored", f"container {container['name']}: {refusal}")
    made.user, made.group, made.groups = who.user, who.group, who.groups
    made.no_new_privileges, made.read_only_root = who.no_new_privileges, who.read_only_root
    made.capabilities = security.capabilities(container)
    if who.user and made.env.get("HOME") == "/root":
        made.env["HOME"] = "/"


def _make(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)


def own_stand_in(argv: list[str], image: Image, container: Json) -> list[str]:
    """Commands that this machine does better itself: an echo server without a command, a wait for Ray's GCS.

    A login shell would read this machine's profile and lose the PATH of a Ray image, so it becomes an ordinary one.
    """
    if image.family == "ray":
        argv = without_login(argv)
    if image.family == "echo" and not container.get("command"):
        ports = container.get("ports") or [{"containerPort": 8080}]
        said = next((word.partition("=")[2] for word in argv if word.startswith(("-text=", "--text="))), "")
        return [sys.executable, "-I", str(Path(echo.__file__)), str(ports[0]["containerPort"]), said]
    waited = rayenv.waits_for(argv)
    if waited is not None and rayenv.gate_weight(argv) == 0:
        return [sys.executable, "-I", "-S", str(Path(rayentry.__file__)), "wait", waited[0], str(waited[1])]
    return argv


def without_login(argv: list[str]) -> list[str]:
    """`bash -lc …` as `bash -c …`."""
    if not argv or os.path.basename(argv[0]) not in ("bash", "sh"):
        return argv
    kept = [argv[0]]
    for index, word in enumerate(argv[1:], 1):
        if word == "--" or not word.startswith("-"):
            return [*kept, *argv[index:]]
        if word == "--login" or re.fullmatch(r"-l+", word):
            continue
        kept.append(re.sub("l", "", word) if re.fullmatch(r"-[a-zA-Z]+", word) else word)
    return kept


def base_variables(pod: Json, image: Image, memory: int | None, host: PodHost) -> dict[str, str]:
    """What every container gets before the manifest speaks."""
    values = {
        "PATH": image.path,
        "HOME": _home(image) if image.family == "ray" else "/root",
        "LANG": "C.UTF-8",
        "HOSTNAME": pod["metadata"]["name"],
        "NO_PROXY": "127.0.0.1,127.0.0.0/8,10.0.0.0/8,localhost,.svc,.local",
    }
    api = host.sources.api_address()
    if api is not None:
        values.update(
            {
                "KUBERNETES_SERVICE_HOST": api[0],
                "KUBERNETES_SERVICE_PORT": str(api[1]),
                "KUBERNETES_SERVICE_PORT_HTTPS": str(api[1]),
                "KUBERNETES_PORT": f"tcp://{api[0]}:{api[1]}",
            }
        )
    if pod["spec"].get("enableServiceLinks", True):
        values = {**host.links(pod["metadata"].get("namespace", "")), **values}
    if host.sandbox.isolates and not pod["spec"].get("hostNetwork"):
        # Only this spelling: gRPC reads the lower-case ones, and Ray's own connections must stay inside.
        values["HTTPS_PROXY"] = f"http://127.0.0.1:{outside.PORT}"
    if image.family == "ray":
        values.update(rayenv.ray_variables(memory))
    return values


async def token_variables(pod: Json, sources: Sources) -> dict[str, str]:
    """The token of a Ray pod that names a Secret for it: in the environment of its processes, nowhere in the pod."""
    metadata = pod["metadata"]
    name = (metadata.get("annotations") or {}).get(ray_token.ANNOTATION)
    if not name:
        return {}
    data = await secret_data(metadata.get("namespace", ""), {"name": name}, sources)
    if ray_token.KEY not in data:
        raise ConfigError(f"secret {name!r} has no {ray_token.KEY}, which the pod's Ray processes need")
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": data[ray_token.KEY].decode(errors="replace")}


def _home(image: Image) -> str:
    return RAY_HOME if image.family == "ray" else "/"


def _own_mounts(directory: Path, pod: Json, container: Json, own_network: bool) -> list[Json]:
    """A /tmp of its own, the pod's names, and the place for a last message."""
    scratch = directory / "tmp"
    scratch.mkdir(exist_ok=True)
    os.chmod(scratch, 0o1777)
    message = directory / "termination-log"
    message.touch()
    message.chmod(0o666)
    found = [
        {"source": str(scratch), "target": "/tmp"},
        {"source": str(directory.parent.parent.parent / "hosts"), "target": "/etc/hosts"},
        {"source": str(message), "target": container.get("terminationMessagePath") or "/dev/termination-log"},
    ]
    if own_network and not pod["spec"].get("hostNetwork"):  # on the machine's own, its name servers are asked
        names = directory.parent.parent.parent / "resolv.conf"
        found.append({"source": str(names), "target": "/etc/resolv.conf"})
    if not pod["spec"].get("hostNetwork"):
        (directory / "hostname").write_text(f"{_host_name(pod)}\n")
        found.append({"source": str(directory / "hostname"), "target": "/etc/hostname"})
    return found


def _host_name(pod: Json) -> str:
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]


def _hidden_programs(image: Image) -> list[Json]:
    """Environments that lie where a pod has directories of its own, such as a virtual environment below /tmp."""
    needed = {sys.prefix, sys.base_prefix, str(Path(echo.__file__).parent)}
    needed |= {os.path.dirname(part) for part in image.path.split(":")}
    return [
        {"source": path, "target": path, "readonly": True}
        for path in sorted(needed)
        if path.startswith(("/tmp/", "/run/")) and os.path.isdir(path)
    ]


def memory_limit(container: Json) -> int | None:
    text = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    try:
        return quantity.amount("memory", text) if text is not None else None
    except BadInput:
        return None


def cpu_limit(container: Json) -> int | None:
    """In thousandths of a core."""
    text = ((container.get("resources") or {}).get("limits") or {}).get("cpu")
    try:
        return quantity.amount("cpu", text) if text is not None else None
    except BadInput:
        return None


def group_name(address: SandboxAddress, container: str) -> str:
    return f"{address.pod_id}-{container}"


def argv_of(process: ContainerProcess) -> list[str]:
    """What a run was told to execute; also for runs that an earlier agent started."""
    return list(_planned(process).get("argv") or ())


def environment_of(process: ContainerProcess) -> dict[str, str]:
    return dict(_planned(process).get("env") or {})


def _planned(process: ContainerProcess) -> Json:
    try:
        return dict(json.loads((process.directory / "plan.json").read_bytes()))
    except (OSError, ValueError):
        return {}
