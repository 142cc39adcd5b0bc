"""A container's security context: what of it holds on this machine.

Users and groups can be changed only where this process is root over more than itself, and only for environments that
the other user can reach: a Python below root's home is no use to anyone else. What cannot be honoured is said.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from shoal.api.meta import Json
from shoal.local.images import Image


class ContainerUser(msgspec.Struct, frozen=True, kw_only=True):
    """The user of a container's processes. None: the agent's own."""

    user: int | None = None
    group: int | None = None
    groups: list[int] = []
    no_new_privileges: bool = False
    read_only_root: bool = False


def identity(pod: Json, container: Json, image: Image, own_root: bool) -> tuple[ContainerUser, str]:
    """What the manifest asks for as far as it can be, and why not where it cannot."""
    whole, own = pod["spec"].get("securityContext") or {}, container.get("securityContext") or {}
    user = own.get("runAsUser", whole.get("runAsUser"))
    group = own.get("runAsGroup", whole.get("runAsGroup"))
    extra = [*(whole.get("supplementalGroups") or ()), *([whole["fsGroup"]] if "fsGroup" in whole else ())]
    strict = own.get("allowPrivilegeEscalation") is False
    read_only = bool(own.get("readOnlyRootFilesystem")) and own_root
    plain = ContainerUser(no_new_privileges=strict, read_only_root=read_only)
    if user is None and group is None and not extra:
        return plain, ""
    if user == os.geteuid() and group in (None, os.getegid()) and not extra:
        return plain, ""
    if not own_root or mapped_users() < 65536 or os.geteuid() != 0:
        return plain, "only root, in the netns or mounts sandbox, can run containers as other users"
    if user not in (None, 0) and (closed := unreachable(image)):
        return plain, f"user {user} may not enter {closed}, where the environment of this image lies"
    chosen = ContainerUser(
        user=user,
        group=group if group is not None or user is None else 0,
        groups=[int(one) for one in extra],
        no_new_privileges=strict,
        read_only_root=read_only,
    )
    return chosen, ""


# fmt: off
DEFAULT_CAPABILITIES = frozenset((
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "NET_RAW",
    "SYS_CHROOT", "AUDIT_WRITE", "SETFCAP",
))
"""What root has in a container, as container runtimes give it, without the making of device nodes."""
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)
"""By their numbers in the kernel."""
# fmt: on


def capabilities(container: Json) -> list[int] | None:
    """Numbers of the capabilities that root keeps in a container; None for a privileged one, which keeps all."""
    own = container.get("securityContext") or {}
    if own.get("privileged"):
        return None
    asked = own.get("capabilities") or {}
    dropped = {str(name).upper().removeprefix("CAP_") for name in asked.get("drop") or ()}
    added = {str(name).upper().removeprefix("CAP_") for name in asked.get("add") or ()}
    kept = frozenset() if "ALL" in dropped else DEFAULT_CAPABILITIES - dropped
    kept |= frozenset(CAPABILITIES) if "ALL" in added else added
    return sorted(CAPABILITIES.index(name) for name in kept if name in CAPABILITIES)


def mapped_users() -> int:
    """How many users there are in our user namespace."""
    try:
        return sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    except (OSError, ValueError, IndexError):
        return 0


def unreachable(image: Image) -> str:
    """The directory that keeps others from an image's environment; empty when none does."""
    if image.family == "shell" and image.name != "python":
        return ""
    first = image.path.split(":")[0]
    for program in ("python3", "ray"):
        path = os.path.realpath(os.path.join(first, program))
        for place in (first, os.path.dirname(path)):
            above = Path(place)
            for directory in [above, *above.parents]:
                try:
                    if not directory.stat().st_mode & 0o001:
                        return str(directory)
                except OSError:
                    return str(directory)
    return ""
