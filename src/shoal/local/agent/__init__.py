"""The node agent: registers nodes, runs the pods bound to them, reports their status."""

from shoal.local.agent.agent import Agent
from shoal.local.agent.nodes import NodeKeeper, NodeShape

__all__ = ["Agent", "NodeKeeper", "NodeShape"]
