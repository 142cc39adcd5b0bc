"""What a declared node offers. Apart from the agent that serves it, so that reading flags loads nothing else."""

from __future__ import annotations

from typing import Literal

import msgspec

RuntimeName = Literal["process", "simulated"]


class NodeShape(msgspec.Struct, frozen=True, kw_only=True):
    """One declared node."""

    name: str
    capacity: dict[str, str]
    labels: dict[str, str] = {}
    taints: tuple[dict[str, str], ...] = ()
    runtime: RuntimeName = "process"
