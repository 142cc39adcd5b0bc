"""May these pods go on that flavor? Taints and node labels only; quota is not asked here.

Called for every flavor the assignment looks at. Pure. As Kueue: selectors and affinity count only for the label keys
that the flavor itself names; what a flavor does not speak of, the pod's node may still have.
"""

from __future__ import annotations

from shoal.engine.kueue.demand import Constraints, PodDemand
from shoal.engine.kueue.facts import Flavor
from shoal.engine.model import Taint
from shoal.engine.nodes.selectors import NodeTerm, untolerated


def objection(constraints: Constraints, flavor: Flavor) -> str:
    """Why the flavor is out of the question, in Kueue's words; empty when it is not."""
    if flavor.taints:
        taint = untolerated(constraints.tolerations + flavor.tolerations, flavor.taints)
        if taint is not None:
            return f"untolerated taint {_shown(taint)} in flavor {flavor.name}"
    if not _labels_match(constraints, flavor.labels):
        return f"flavor {flavor.name} doesn't match node affinity"
    return ""


def kept_elsewhere(demand: PodDemand, resource: str, flavor: str) -> str:
    """Why another flavor is out of the question for a slice of a job that runs; empty when it is not."""
    kept = demand.kept.get(resource, flavor)
    if kept == flavor:
        return ""
    return f"could not assign {flavor} flavor since the original workload is assigned: {kept}"


def _labels_match(constraints: Constraints, labels: dict[str, str]) -> bool:
    for key, value in constraints.node_selector.items():
        if key in labels and labels[key] != value:
            return False
    if not constraints.terms:
        return True
    return any(_term_matches(term, labels) for term in constraints.terms)


def _term_matches(term: NodeTerm, labels: dict[str, str]) -> bool:
    """A term none of whose keys the flavor names matches everything."""
    return all(requirement.matches(labels) for requirement in term.labels if requirement.key in labels)


def _shown(taint: Taint) -> str:
    return f"{{{taint.key} {taint.value} {taint.effect} <nil>}}"
