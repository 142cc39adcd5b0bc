"""The node agent: registers nodes, runs the pods bound to them, reports their status."""

from shoal.local.nodes.agent.agent import Agent
from shoal.local.nodes.agent.nodes import NodeKeeper
from shoal.local.shapes import NodeShape

__all__ = ["Agent", "NodeKeeper", "NodeShape"]
