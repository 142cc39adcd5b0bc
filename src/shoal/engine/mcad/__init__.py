"""MCAD's quota: a forest of trees in which a running gang has one seat per tree.

`Forest` seats, moves and evicts; `quota_use` tells people what each node carries.
"""

from shoal.engine.mcad.forest import Consumer, Forest, Seating
from shoal.engine.mcad.quota_view import NodeUse, quota_use

__all__ = ["Consumer", "Forest", "NodeUse", "Seating", "quota_use"]
