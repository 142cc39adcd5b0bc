"""MCAD's quota: a forest of trees in which a running gang has one seat per tree.

`QuotaForest` seats, moves and evicts; `quota_use` tells people what each node carries.
"""

from shoal.engine.mcad.forest import Consumer, QuotaForest, Seating
from shoal.engine.mcad.quota_view import NodeUse, quota_use

__all__ = ["Consumer", "NodeUse", "QuotaForest", "Seating", "quota_use"]
