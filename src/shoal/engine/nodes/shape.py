"""What a node must offer to one pod, reduced to what matters: pods of equal shape are interchangeable.

The room keeps one row of numbers per shape, so a thousand gangs of the same shape cost as much as one. Labels and pod
affinity are left out on purpose: a name in a label would make every gang its own kind.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shoal.api.labels import HOSTNAME
from shoal.engine.identity import by_identity
from shoal.engine.model import HostPort, NodeFact, PodSet, Taint, Toleration
from shoal.engine.nodes.selectors import NOT_READY, UNSCHEDULABLE, NodeTerm, parse_node_terms, tolerates, untolerated


class Shape(msgspec.Struct, frozen=True):
    requests: tuple[tuple[str, int], ...]
    """Sorted, without zeros, `pods: 1` included."""
    node_selector: tuple[tuple[str, str], ...] = ()
    node_terms: tuple[NodeTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    opaque: bool = False

    @property
    def hosts(self) -> list[str] | None:
        """The host names that every node term asks for, as gangs with places in a topology do; None: any may do."""
        if not self.node_terms:
            return None
        found: list[str] = []
        for term in self.node_terms:
            named = next((one for one in term.labels if one.key == HOSTNAME and one.operator == "In"), None)
            if named is None:
                return None
            found += named.values
        return found


@by_identity
def shape_of(pod_set: PodSet, node_selector: Mapping[str, str] | None) -> Shape:
    """The shape of one pod. `node_selector` is what the gang adds to it. Raises BadInput on an unreadable affinity."""
    requests = {resource: value for resource, value in pod_set.requests.items() if value > 0}
    requests["pods"] = 1
    return Shape(
        tuple(sorted(requests.items())),
        tuple(sorted({**(node_selector or {}), **pod_set.node_selector}.items()))
        if node_selector or pod_set.node_selector
        else (),
        parse_node_terms(pod_set.affinity) if pod_set.affinity else None,
        pod_set.tolerations,
        pod_set.host_ports,
        pod_set.opaque,
    )


def blocking_taint(shape: Shape, node: NodeFact) -> Taint | None:
    """The taint that keeps such pods off, or None. A node that is not ready counts as tainted."""
    taint = untolerated(shape.tolerations, node.taints, shape.opaque)
    if taint is None and not node.ready and not tolerates(shape.tolerations, NOT_READY):
        return NOT_READY
    return taint


def is_cordoned_for(shape: Shape, node: NodeFact) -> bool:
    return node.unschedulable and not tolerates(shape.tolerations, UNSCHEDULABLE)


def is_selected(shape: Shape, node: NodeFact) -> bool:
    labels = node.labels
    if any(labels.get(key) != value for key, value in shape.node_selector):
        return False
    return shape.node_terms is None or any(term.matches(node.name, labels) for term in shape.node_terms)


def is_eligible(shape: Shape, node: NodeFact) -> bool:
    """Could such a pod ever run there, were the node empty of other pods? Room and ports are not looked at."""
    return not is_cordoned_for(shape, node) and blocking_taint(shape, node) is None and is_selected(shape, node)


def ports_conflict(wanted: HostPort, taken: HostPort) -> bool:
    if wanted.port != taken.port or wanted.protocol != taken.protocol:
        return False
    return wanted.address == taken.address or "0.0.0.0" in (wanted.address, taken.address)
