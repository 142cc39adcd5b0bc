"""MCAD's `--dispatcher` and `--agentconfigs`: the agents that they name become members of this hub.

An entry is `FILE:MODE`, a kubeconfig and `uncordon` or `cordon`. Files without a folder are looked for where MCAD's
chart mounts them. Each becomes what `shoal cluster add` makes of it, named after its file, in one MultiKueueConfig.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from shoal.errors import BadInput
from shoal.kube.client import Client

CONFIG = "agents"
"""The MultiKueueConfig that names them."""
FOLDER = Path("/root/kubernetes")
MODES = ("uncordon", "cordon")


class AgentConfig(msgspec.Struct, frozen=True):
    name: str
    content: bytes
    is_cordoned: bool


def read(text: str, folder: Path = FOLDER) -> tuple[AgentConfig, ...]:
    """Raises BadInput for what is no list of kubeconfigs, with the entry at fault."""
    found: dict[str, AgentConfig] = {}
    for entry in filter(None, (one.strip() for one in text.split(","))):
        agent = _agent(entry, folder)
        if agent.name in found:
            raise BadInput(f"two agents are named {agent.name}: rename one of their files")
        found[agent.name] = agent
    return tuple(found.values())


def _agent(entry: str, folder: Path) -> AgentConfig:
    from shoal.cli.clusters import content_of

    file, colon, mode = entry.rpartition(":")
    if not colon:
        file, mode = entry, "uncordon"
    if mode not in MODES:
        raise BadInput(f"{entry!r}: the mode {mode!r} is none of {', '.join(MODES)}; write FILE:uncordon")
    path = Path(file) if "/" in file else folder / file
    if not path.is_file():
        raise BadInput(f"{entry!r}: there is no kubeconfig {path}")
    name = re.sub(r"[^a-z0-9-]+", "-", path.name.lower().removesuffix(".kubeconfig").removesuffix(".yaml")).strip("-")
    return AgentConfig(name[:63] or "agent", content_of(path, None), mode == "cordon")


async def register(client: Client, agents: tuple[AgentConfig, ...], namespace: str) -> None:
    """Make them members; again is harmless, and renews their credentials."""
    from shoal.cli import clusters, draining

    for agent in agents:
        await clusters.register(client, agent.name, agent.content, namespace)
        await draining.mark(client, agent.name, cordoned=agent.is_cordoned)
        await clusters.name_in_config(client, CONFIG, agent.name)
