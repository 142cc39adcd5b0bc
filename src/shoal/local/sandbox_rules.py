"""What a manifest asks for that the loopback or mounts sandbox can never give, said before the object is stored.

Asked by the embedded API server where every pod runs in such a sandbox: pods share the machine's network and its name
servers there, and in loopback nothing can be mounted. Only what is certain from the manifest alone is refused; what a
program does inside is its own affair. Pure but for the questions to the machine in `Around`.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from shoal.api.meta import Json
from shoal.kube.admission_review import AdmissionRequest, AdmissionVerdict

JUDGED = (
    *(("", name) for name in ("pods", "replicationcontrollers")),
    *(("apps", name) for name in ("deployments", "replicasets", "statefulsets", "daemonsets")),
    *(("batch", name) for name in ("jobs", "cronjobs")),
    *(("ray.io", name) for name in ("rayclusters", "rayjobs", "rayservices", "raycronjobs")),
    ("ray.k8s.io", "rays"),
    ("workload.codeflare.dev", "appwrappers"),
    ("mcad.ibm.com", "appwrappers"),
)
"""Groups and resources that are, or hold, pods."""
PROGRAMS = re.compile(r"(/usr)?(/local)?/(s?bin|lib(32|64|exec)?)(/.*)?|/|/usr|/usr/local|/etc|/proc(/.*)?|/sys(/.*)?")
"""Where shells, linkers and the kernel look for themselves, whatever a command line says."""
SYSTEM_FILES = re.compile(r"/etc/(hosts|hostname|resolv\.conf|nsswitch\.conf|passwd|group|shadow|localtime|ld\.so\..*)")
IMAGE_IN_ENVIRONMENT = re.compile(r"^[\"']?(image_uri|container)[\"']?\s*:", re.MULTILINE)
RAY_HOME = "/home/ray"


class Around(msgspec.Struct, frozen=True):
    """What of the machine decides."""

    mounts: bool = False
    """Whether containers have files of their own."""
    lowest_port: int = 0
    """The first that our user may listen on."""
    is_directory: Callable[[str], bool] = os.path.isdir
    has_podman: bool = False


def around(mounts: bool) -> Around:
    return Around(mounts, _lowest_port(), has_podman=shutil.which("podman") is not None)


def _lowest_port() -> int:
    """Tried, as root of a user namespace may look as if it could."""
    with socket.socket() as tried:
        try:
            tried.bind(("127.87.53.1", 1))
        except PermissionError:
            try:
                return int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
            except (OSError, ValueError):
                return 1024
        except OSError:
            pass
    return 0


def judge(facts: Around, applies: Callable[[], bool]) -> Callable[[AdmissionRequest], AdmissionVerdict]:
    """The handler; `applies` says whether every pod runs in this sandbox."""

    def judged(request: AdmissionRequest) -> AdmissionVerdict:
        obj, old = request.object, request.old_object
        if obj is None or request.sub_resource or obj["metadata"].get("deletionTimestamp") or not applies():
            return AdmissionVerdict()
        spec = obj.get("spec")
        if type(spec) is dict and "/" in str(spec.get("managedBy") or ""):
            return AdmissionVerdict()  # another controller runs it, elsewhere
        before = problems(old, facts) if old is not None else []
        found = [one for one in problems(obj, facts) if one not in before]
        if not found:
            return AdmissionVerdict()
        here, better = ("mounts", "netns sandbox") if facts.mounts else ("loopback", "netns and mounts sandboxes")
        return AdmissionVerdict(
            False,
            f"{request.kind.kind} {request.name!r} cannot run in the {here} sandbox: {'; '.join(found)}; "
            f"what the {better} would need of this machine is said by: shoal doctor",
            422,
            "Invalid",
        )

    return judged


def problems(obj: Json, facts: Around) -> list[str]:
    """Each with its field."""
    return [problem for path, found in _dicts(obj, "") for problem in _of_one(path, found, facts)]


def _dicts(value: object, path: str, depth: int = 0) -> Iterator[tuple[str, Json]]:
    """Every object inside another, with where it is; manifests are no deeper than this."""
    if depth > 40:
        return
    if type(value) is dict:
        yield path, value
        for name, inner in value.items():
            if name not in ("metadata", "status"):
                yield from _dicts(inner, f"{path}.{name}" if path else str(name), depth + 1)
    elif type(value) is list:
        for index, inner in enumerate(value):
            yield from _dicts(inner, f"{path}[{index}]", depth + 1)


def _of_one(path: str, found: Json, facts: Around) -> Iterator[str]:
    if type(found.get("containers")) is list:
        yield from _of_pod(path, found, facts)
    if facts.mounts:
        return
    choices = found.get("authOptions")
    if type(choices) is dict and choices.get("enableK8sTokenAuth") is True:
        yield f"{path}.authOptions.enableK8sTokenAuth: {_READS_ITSELF}"
    text = found.get("runtimeEnvYAML")
    if isinstance(text, str) and not facts.has_podman and (named := IMAGE_IN_ENVIRONMENT.search(text)):
        yield f"{path}.runtimeEnvYAML: {named.group(1)} needs podman, which is not on this machine"


_READS_ITSELF = "Ray's daemons read the account's token at a path that they have built in, where nothing can be mounted"


def _of_pod(path: str, spec: Json, facts: Around) -> Iterator[str]:
    if spec.get("hostAliases") and not facts.mounts:
        yield f"{path}.hostAliases: a container has no /etc/hosts of its own"
    names = spec.get("dnsConfig")
    if type(names) is dict and names.get("nameservers"):
        yield f"{path}.dnsConfig.nameservers: programs ask the name servers of the machine"
    machines = _host_paths(spec)
    for part in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(_objects(spec.get(part))):
            yield from _of_container(f"{path}.{part}[{index}]", container, machines, facts)


def _of_container(path: str, container: Json, machines: dict[str, str], facts: Around) -> Iterator[str]:
    for index, port in enumerate(_objects(container.get("ports"))):
        for name in ("containerPort", "hostPort"):
            number = port.get(name)
            if type(number) is int and 0 < number < facts.lowest_port:
                yield (
                    f"{path}.ports[{index}].{name}: this user may not listen on port {number} of the machine; "
                    f"ports from {facts.lowest_port} on are free to use"
                )
    if container.get("volumeDevices"):
        yield f"{path}.volumeDevices: there are no block devices"
    if facts.mounts:
        return
    targets: list[str] = []
    for index, mount in enumerate(_objects(container.get("volumeMounts"))):
        target = os.path.normpath(str(mount.get("mountPath") or "/nowhere"))
        targets.append(target)
        if machines.get(str(mount.get("name"))) == target:
            continue  # the machine's own, where it is anyway
        if PROGRAMS.fullmatch(target) or SYSTEM_FILES.fullmatch(target):
            field = f"{path}.volumeMounts[{index}].mountPath"
            yield f"{field}: programs look for {target} themselves, and nothing can be mounted there"
    yield from _of_commands(path, container, targets, facts)
    for index, variable in enumerate(_objects(container.get("env"))):
        asked = str(variable.get("value") or "").lower() in ("true", "1")
        if variable.get("name") == "RAY_ENABLE_K8S_TOKEN_AUTH" and asked:
            yield f"{path}.env[{index}]: {_READS_ITSELF}"


def _of_commands(path: str, container: Json, targets: list[str], facts: Around) -> Iterator[str]:
    """A directory that would only be there because something is mounted below it."""
    above = {str(parent) for target in targets for parent in Path(target).parents} - {"/", RAY_HOME, *targets}
    for name in ("command", "args"):
        words = container.get(name)
        text = " ".join(map(str, words)) if type(words) is list else ""
        for directory in sorted(above):
            named = re.search(rf"(?<![\w.\-/]){re.escape(directory)}/?(?![\w.\-/])", text)
            if named and "mkdir" not in text and not facts.is_directory(directory):
                below = next(target for target in targets if target.startswith(f"{directory}/"))
                yield f"{path}.{name}: {directory} is not on this machine, and {below} cannot be mounted below it"


def _host_paths(spec: Json) -> dict[str, str]:
    """Volumes that are directories of the machine, by name."""
    found = {}
    for volume in _objects(spec.get("volumes")):
        place = volume.get("hostPath")
        if type(place) is dict and isinstance(place.get("path"), str):
            found[str(volume.get("name"))] = os.path.normpath(place["path"])
    return found


def _objects(value: object) -> list[Json]:
    return [one for one in value if type(one) is dict] if type(value) is list else []
