"""What a cluster whose process was killed leaves behind: pods' processes, namespaces, the bridge.

Called by `shoal down`. Finds processes by their recorded pid and start time only.
"""

from __future__ import annotations

from shoal.local import machine
from shoal.local.home import Home
from shoal.local.nodes.runtime.limits import find_limits
from shoal.local.nodes.runtime.records import stop_stray
from shoal.local.nodes.sandbox.netns import NetnsSandbox

GRACE = 5.0


async def remove_all(home: Home) -> None:
    """End every process of every pod; their files stay for the next start."""
    pods = home.runtime / "pods"
    for directory in sorted(pods.iterdir()) if pods.is_dir() else ():
        await stop_stray(directory, GRACE)
    find_limits(home.identity).release()
    if machine.may_use_namespaces():
        await NetnsSandbox(home.identity).stop()
