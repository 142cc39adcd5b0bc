"""Topology-aware scheduling: pods of a gang go to racks and blocks, not just to nodes with room.

    tree = TopologyTree("default", ("block", "rack", HOSTNAME), nodes)   # domains, and what is free in them
    Placer(tree).place([pods_to_place(…)])                                # pod set name to its places, or why none

Where things are: request (what pod sets ask for) · tree (domains) · spots (room, from the bottom up) · choose (domains
of the requested level) · spread (down to the lowest) · balanced, replace (the two other ways) · place (all of it) ·
assignment (the answer, and its stored form) · exclusions (why nodes are out).
"""

from shoal.engine.kueue.topology.assignment import read_placement, stored_placement
from shoal.engine.kueue.topology.place import PlaceOutcome, Placer, Repair
from shoal.engine.kueue.topology.request import PodsToPlace, TopologyWish, has_levels, pods_to_place, read_wish
from shoal.engine.kueue.topology.settings import TopologySettings
from shoal.engine.kueue.topology.tree import TopologyTree, belongs

__all__ = [
    "PlaceOutcome",
    "Placer",
    "PodsToPlace",
    "Repair",
    "TopologySettings",
    "TopologyTree",
    "TopologyWish",
    "belongs",
    "has_levels",
    "pods_to_place",
    "read_placement",
    "read_wish",
    "stored_placement",
]
