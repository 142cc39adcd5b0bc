"""Which sandbox pods get: the one that was asked for, or the best that the machine allows."""

from __future__ import annotations

from pathlib import Path

from shoal.errors import BadInput, ShoalError
from shoal.local import machine
from shoal.local.nodes.sandbox import Sandbox
from shoal.local.nodes.sandbox.loopback import LoopbackSandbox
from shoal.local.nodes.sandbox.netns import NetnsSandbox
from shoal.local.nodes.sandbox.outward import Outward


def choose_sandbox(
    wanted: str, cluster: str, api: tuple[str, int] | None, pods: Path, outward: Outward | None = None
) -> Sandbox:
    """`auto`, `netns` or `loopback`."""
    if wanted not in ("auto", "netns", "loopback"):
        raise BadInput(f"sandbox {wanted!r} must be auto, netns or loopback")
    able = machine.may_use_namespaces() if wanted != "loopback" else False
    if wanted == "netns" and not able:
        raise ShoalError(
            "this machine does not allow network namespaces: shoal doctor says what is missing; "
            "or use --sandbox loopback"
        )
    return NetnsSandbox(cluster, api, outward) if able else LoopbackSandbox(cluster, api, pods)
