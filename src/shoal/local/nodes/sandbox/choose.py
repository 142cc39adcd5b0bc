"""Which sandbox pods get: the one that was asked for, or the best that the machine allows."""

from __future__ import annotations

from pathlib import Path

from shoal.errors import BadInput, ShoalError
from shoal.local import machine
from shoal.local.nodes.sandbox import Sandbox
from shoal.local.nodes.sandbox.loopback import LoopbackSandbox, MountsSandbox
from shoal.local.nodes.sandbox.netns import NetnsSandbox
from shoal.local.nodes.sandbox.outward import Outward
from shoal.local.settings import SANDBOXES


def choose_sandbox(
    wanted: str, cluster: str, api: tuple[str, int] | None, pods: Path, outward: Outward | None = None
) -> Sandbox:
    """`auto`, `netns`, `mounts` or `loopback`."""
    if wanted not in SANDBOXES:
        raise BadInput(f"sandbox {wanted!r} must be auto, netns, mounts or loopback")
    if wanted in ("auto", "netns") and machine.may_use_namespaces():
        return NetnsSandbox(cluster, api, outward)
    if wanted in ("auto", "mounts") and machine.may_use_mounts():
        return MountsSandbox(cluster, api, pods)
    if wanted not in ("auto", "loopback"):
        raise ShoalError(
            "this machine does not allow network namespaces: shoal doctor says what is missing; "
            "or use --sandbox loopback"
            if wanted == "netns"
            else "this machine does not allow mount namespaces: shoal doctor says what is missing; "
            "or use --sandbox loopback"
        )
    return LoopbackSandbox(cluster, api, pods)
