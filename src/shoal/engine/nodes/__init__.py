"""Where pods can go: what nodes offer, what is taken there, and what could still come.

`Room` is what is free on which node; `Ledger` charges pods and plans to it, each once. `place` and `place_pod` find
nodes for a gang or a pod, `Pools` thinks of nodes that could be added. Nothing here knows queues or quota.
"""

from shoal.engine.nodes.affinity import Resident, company_of
from shoal.engine.nodes.fit import Placement, Unplaced, demand_of, place, place_pod
from shoal.engine.nodes.ledger import Ledger
from shoal.engine.nodes.pools import Pools, Wanting
from shoal.engine.nodes.room import Room, is_accelerator
from shoal.engine.nodes.selectors import parse_selector, untolerated
from shoal.engine.nodes.to_come import pod_set_index

__all__ = [
    "Ledger",
    "Placement",
    "Pools",
    "Resident",
    "Room",
    "Unplaced",
    "Wanting",
    "company_of",
    "demand_of",
    "is_accelerator",
    "parse_selector",
    "place",
    "place_pod",
    "pod_set_index",
    "untolerated",
]
