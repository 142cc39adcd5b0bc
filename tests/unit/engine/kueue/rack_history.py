"""Random histories as in `history`, of queues whose flavors have a topology of racks: nodes come, go and change, other
pods take their room, and gangs ask for racks in every way."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from shoal.api.labels import HOSTNAME
from shoal.engine.kueue import Flavor
from shoal.engine.kueue.facts import TopologyFact
from shoal.engine.model import Gang, NodeFact, PodFact, PodSet
from tests.unit.engine.kueue.history import DEEDS, History
from tests.unit.engine.kueue.topology.build import RACK
from tests.unit.engine.kueue.world import CPU

replace = msgspec.structs.replace
WISHES: tuple[dict[str, Any], ...] = (
    {"required": RACK}, {"required": RACK}, {"required": HOSTNAME}, {"preferred": RACK}, {"unconstrained": True}, {},
    {"required": RACK, "podSetGroupName": "ray"},
)  # fmt: skip


class RackHistory(History):
    def __init__(self, seed: int, **how: Any) -> None:
        super().__init__(seed, **how)
        self.nodes: dict[str, NodeFact] = {}
        self.strangers: list[str] = []
        self.kueue.update(TopologyFact(name="racks", levels=(RACK, HOSTNAME)))
        flavors = [fact for fact in self.facts if isinstance(fact, Flavor)] or [Flavor(name="default")]
        for fact in flavors:
            if self.dice.random() < 0.8:
                self.kueue.update(replace(fact, topology="racks"))
        for _ in range(self.dice.randint(2, 5)):
            self._node(0, random.Random(self.dice.random()))

    def step(self) -> str:
        self.now += self.dice.randint(1, 2_000_000)
        deed, pick = self.dice.choice((*DEEDS, "node", "stranger", "leave")), self.dice.random()
        getattr(self, f"_{deed}")(pick, random.Random(self.dice.random()))
        return deed

    def _update(self, one: Gang) -> None:
        if one.key not in self.gangs:
            dice = random.Random(one.name)
            one = replace(one, pod_sets=tuple(_wishing(pod_set, dice) for pod_set in one.pod_sets))
        super()._update(one)

    def _node(self, pick: float, dice: random.Random) -> None:
        """One more, or one that has another size, stands in another rack, is closed or open again."""
        name = f"n{dice.randint(0, 5)}"
        offered = {"cpu": dice.randint(1, 6) * CPU, "memory": dice.randint(0, 9), "gpu": dice.randint(0, 3), "pods": 9}
        rack = "ab"[int(name[1]) % 2] if dice.random() < 0.8 else "c"
        closed = dice.random() < 0.2
        fact = NodeFact(name=name, labels={HOSTNAME: name, RACK: rack}, allocatable=offered, unschedulable=closed)
        self.nodes[name] = fact
        self.kueue.update(fact)

    def _stranger(self, pick: float, dice: random.Random) -> None:
        """A pod that no topology placed runs on a node."""
        if not self.nodes:
            return
        self.number += 1
        uid = f"stranger{self.number}"
        self.strangers.append(uid)
        node = sorted(self.nodes)[int(pick * len(self.nodes))]
        self.kueue.update(PodFact(uid=uid, name=uid, namespace="default", node=node, requests={"cpu": 2 * CPU}))

    def _leave(self, pick: float, dice: random.Random) -> None:
        """Such a pod ends, or a node is gone."""
        if self.strangers:
            self.kueue.remove(PodFact(uid=self.strangers.pop(int(pick * len(self.strangers)))))
        elif self.nodes and pick < 0.3:
            self.kueue.remove(self.nodes.pop(sorted(self.nodes)[0]))


def _wishing(pod_set: PodSet, dice: random.Random) -> PodSet:
    return replace(pod_set, topology_request=dice.choice(WISHES))
