"""What the planning loop is told about decisions, nodes and admission. Read once at the entry point and passed down."""

from __future__ import annotations

import msgspec

from shoal.controllers.planning.node_health import NodeHealth
from shoal.controllers.planning.stamps import By
from shoal.engine import EngineSettings
from shoal.engine.kueue import KueueSettings as QueueDecisions


class PlanningSettings(msgspec.Struct, frozen=True, kw_only=True):
    decisions: EngineSettings = EngineSettings()
    """Order, preemption and quota trees."""
    queues: QueueDecisions | None = None
    """How quota of queues is given; None where there are no queues."""
    provisioning: bool = False
    """Request nodes that a pool can still add, where a node autoscaler publishes its pools (the embedded cluster)."""
    node_health: NodeHealth = NodeHealth()
    """What labels about unwell devices mean."""
    stamps: By = "server"
    """What records the creator of an object: the embedded server by itself, or our webhook on any other cluster."""
    record_namespace: str = ""
    """Namespace of the import record; empty where there is none."""
