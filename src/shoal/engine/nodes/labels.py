"""Node labels and taints as arrays, so that selectors and tolerations are answered for all nodes at once.

Owned by the room. Only label keys that a pod asked about have a column. It knows nothing of amounts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.api.labels import HOSTNAME
from shoal.engine.model import NodeFact
from shoal.engine.nodes.selectors import Requirement
from shoal.engine.nodes.shape import Shape, blocking_taint, is_cordoned_for, is_eligible
from shoal.engine.nodes.slot import Slot

Mask = NDArray[np.bool_]
_FEW = 16
"""Host names up to which nodes are looked at one by one."""
NO_NODES: frozenset[int] = frozenset()


class Labels:
    def __init__(self, width: int) -> None:
        self._width = width
        self._columns: dict[str, tuple[NDArray[np.int32], dict[str, int]]] = {}
        self._standing: NDArray[np.int32] = np.full(width, -1, dtype=np.int32)
        """Per node the number of its taints, cordon and readiness taken together (-1: no node)."""
        self._standings: dict[object, int] = {}
        self._examples: list[NodeFact] = []
        """By that number: a node that stands so."""
        self._hosts: dict[int, set[int]] = {}
        """Of the column of host names, once there is one: by the number of a name the nodes that have it."""

    def eligible(self, shape: Shape, slots: Sequence[Slot], alive: Mask) -> Mask:
        """Which nodes such pods could ever run on, were they empty. Room and ports are not looked at."""
        named = self._named(shape, slots)
        if named is not None:
            few: Mask = np.zeros(self._width, dtype=bool)
            for index in named:
                fact = slots[index].fact
                few[index] = fact is not None and is_eligible(shape, fact)
            return few
        open_to = [not is_cordoned_for(shape, one) and blocking_taint(shape, one) is None for one in self._examples]
        mask: Mask = np.array([*open_to, False], dtype=bool)[self._standing]
        for key, value in shape.node_selector:
            mask &= self._satisfies(Requirement(key, "In", (value,)), slots)
        if shape.node_terms is not None:
            terms = np.zeros_like(mask)
            for term in shape.node_terms:
                if not term.labels and not term.fields:
                    continue
                matched = alive.copy()
                for requirement in term.labels:
                    matched &= self._satisfies(requirement, slots)
                for requirement in term.fields:
                    named = [slot.fact is not None and requirement.accepts(slot.name) for slot in slots]
                    matched[: len(named)] &= np.array(named, dtype=bool)
                terms |= matched
            mask &= terms
        return mask

    def _named(self, shape: Shape, slots: Sequence[Slot]) -> list[int] | None:
        """The nodes that such pods ask for by host name, where these are few."""
        hosts = shape.hosts
        return None if hosts is None or len(hosts) > _FEW else self.of_hosts(hosts, slots)

    def of_hosts(self, hosts: Iterable[str], slots: Sequence[Slot]) -> list[int]:
        """The nodes that have one of these host names, in order."""
        _, values = self.column(HOSTNAME, slots)
        found: set[int] = set()
        for host in hosts:
            found |= self._hosts.get(values.get(host, -1), NO_NODES)
        return sorted(found)

    def _satisfies(self, requirement: Requirement, slots: Sequence[Slot]) -> Mask:
        ids, values = self.column(requirement.key, slots)
        if requirement.operator == "In":
            accepted = [values[value] for value in requirement.values if value in values]
        else:
            accepted = [number for value, number in values.items() if requirement.accepts(value)]
        mask: Mask = ids == accepted[0] if len(accepted) == 1 else np.isin(ids, np.array(accepted, dtype=np.int32))
        if requirement.accepts(None):
            mask |= ids < 0
        return mask

    def column(self, key: str, slots: Sequence[Slot]) -> tuple[NDArray[np.int32], dict[str, int]]:
        """A label key as numbers: per node the id of its value (-1: absent), and the ids by value."""
        found = self._columns.get(key)
        if found is None:
            ids = np.full(self._width, -1, dtype=np.int32)
            found = self._columns[key] = (ids, {})
            for slot in slots:
                self._write(slot, key)
        return found

    def note(self, slot: Slot) -> None:
        """The node's labels or taints are not what they were."""
        for key in self._columns:
            self._write(slot, key)
        fact = slot.fact
        self._standing[slot.index] = -1 if fact is None else self._stands(fact)

    def _stands(self, fact: NodeFact) -> int:
        about = (fact.taints, fact.unschedulable, fact.ready)
        number = self._standings.get(about)
        if number is None:
            number = self._standings[about] = len(self._examples)
            self._examples.append(fact)
        return number

    def _write(self, slot: Slot, key: str) -> None:
        ids, values = self._columns[key]
        value = None if slot.fact is None else slot.fact.labels.get(key)
        number = -1 if value is None else values.setdefault(value, len(values))
        if key == HOSTNAME:
            self._hosts.get(int(ids[slot.index]), set()).discard(slot.index)
            if number >= 0:
                self._hosts.setdefault(number, set()).add(slot.index)
        ids[slot.index] = number

    def widen(self, width: int) -> None:
        self._width = width
        self._standing = _wider(self._standing, width)
        for key, (ids, values) in self._columns.items():
            self._columns[key] = (_wider(ids, width), values)


def _wider(ids: NDArray[np.int32], width: int) -> NDArray[np.int32]:
    found = np.full(width, -1, dtype=np.int32)
    found[: ids.shape[0]] = ids
    return found
