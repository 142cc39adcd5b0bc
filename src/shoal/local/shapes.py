"""What a declared node offers. Apart from the agent that serves it, so that reading flags loads nothing else."""

from __future__ import annotations

from typing import Literal

import msgspec

RuntimeName = Literal["process", "simulated"]


UNLESS_DECLARED = {"pods": "110", "hugepages-1Gi": "0", "hugepages-2Mi": "0", "ephemeral-storage": "100Gi"}
"""What every node offers besides what is declared, as real ones do."""


class NodeShape(msgspec.Struct, frozen=True, kw_only=True):
    """One declared node."""

    name: str
    capacity: dict[str, str]
    labels: dict[str, str] = {}
    taints: tuple[dict[str, str], ...] = ()
    runtime: RuntimeName = "process"

    @property
    def offers(self) -> dict[str, str]:
        return {**UNLESS_DECLARED, **self.capacity}
