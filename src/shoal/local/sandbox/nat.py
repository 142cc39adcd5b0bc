"""A route out for pods in network namespaces: addresses translated at the machine's edge, where it forwards already.

Needs the `nft` tool and a machine that forwards (net.ipv4.ip_forward); neither is changed here. One table per cluster,
removed with it. It opens nothing inwards: what comes from other networks reaches a pod only as an answer.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from shoal.local.sandbox.networks import routes

FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


def obstacle() -> str:
    """Why pods get no route out; empty when they do."""
    if shutil.which("nft") is None:
        return "the nft tool is missing: install nftables"
    try:
        if FORWARDING.read_text().strip() != "1":
            return "the machine does not forward: sysctl -w net.ipv4.ip_forward=1"
    except OSError:
        return "the machine does not say whether it forwards"
    if not any(network.prefixlen == 0 for _, network in routes()):
        return "the machine has no route to other networks"
    return ""


def rules(mark: str, bridge: str, network: str) -> str:
    return f"""table ip shoal-{mark} {{
  chain out {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {network} oifname != "{bridge}" masquerade
  }}
  chain in {{
    type filter hook forward priority filter; policy accept;
    oifname "{bridge}" ct state established,related accept
    oifname "{bridge}" iifname != "{bridge}" drop
  }}
}}
"""


async def open_way(mark: str, bridge: str, network: str) -> str:
    """Let a cluster's pods out; empty, or why not."""
    if why := obstacle():
        return why
    await close_way(mark)
    return await _nft(rules(mark, bridge, network))


async def close_way(mark: str) -> None:
    if shutil.which("nft") is not None:
        await _nft(f"delete table ip shoal-{mark}\n")


async def _nft(text: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "nft",
        "-f",
        "-",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate(text.encode())
    return errors.decode().strip() if process.returncode else ""
