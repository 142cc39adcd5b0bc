"""When a Ray node is up, and when it is gone although its `ray start` is still there.

`ray start --block` stays for ever when its raylet ended by SIGTERM (a `ray stop` by someone else, a drained node), so
its being alive says nothing. The node's agent lives and dies with the raylet: its port tells.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from shoal.kube.clock import Clock
from shoal.local.nodes.runtime import rayenv
from shoal.local.nodes.runtime.probes import Prober
from shoal.local.nodes.sandbox import Sandbox, SandboxAddress

DRAINED = b"The node is drained"
"""What a raylet logs last when it was asked to drain and has."""
LAST_WORDS = 64 << 10

MISSES = 3
"""Refused connections in a row until a node counts as gone."""


async def until_up(prober: Prober, port: int, clock: Clock) -> None:
    """Back when the node's agent says that its raylet is well."""
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            status, body = await prober.fetch("localhost", port, rayenv.HEALTH_PATH, {}, 2.0, False)
            if status == 200 and b"success" in body:
                return
        await clock.sleep(1.0)


async def until_gone(sandbox: Sandbox, address: SandboxAddress, port: int, clock: Clock, period: float) -> None:
    """Back when nothing listens any more. A machine that is merely slow refuses nothing."""
    refused = 0
    while refused < MISSES:
        await clock.sleep(period)
        try:
            (await sandbox.connect(address, "localhost", port)).close()
            refused = 0
        except ConnectionRefusedError:
            refused += 1
        except OSError:
            refused = 0


def was_drained(temporary: Path) -> bool:
    """Did the raylet whose files lie in this Ray directory end because it was asked to drain?

    The files are the container's: opened without following a link, and only their end is read.
    """
    sessions = sorted(temporary.glob("session_2*"), key=lambda path: path.name)  # named by their time
    if not sessions:
        return False
    with contextlib.suppress(OSError):
        held = os.open(sessions[-1] / "logs" / "raylet.out", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(held, "rb") as file:
            file.seek(max(0, os.fstat(held).st_size - LAST_WORDS))
            return DRAINED in file.read(LAST_WORDS)
    return False
