"""From the engine's state to what a search for help needs to know: which gangs run, which quotas could grow, how.

Called by `Engine.explain`. Reads the state of either dialect, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec

from shoal.engine.explain.helps import Case, QuotaPlace, labels_for, units_of
from shoal.engine.kueue import ClusterQueue, Cohort
from shoal.engine.kueue.facts import FlavorQuota, Limits, ResourceGroup
from shoal.engine.line.queues import QueueFact, Queues
from shoal.engine.line.state import LineState, wants_room
from shoal.engine.model import Amounts, Explanation, Gang, QuotaSubtree
from shoal.engine.nodes.fit import demand_of


def case_of(gang: Gang, found: Explanation, state: LineState, queues: Queues) -> Case:
    others = [other for other in state.gangs.values() if other.uid != gang.uid]
    moving = [other for other in others if other.state in ("waiting", "stopping") or wants_room(other)]
    waiting = [gang, *(other for other in others if other.state == "waiting" or wants_room(other))]
    most: Amounts = {}
    for other in waiting:
        for resource, amount in demand_of(other.pod_sets).items():
            most[resource] = most.get(resource, 0) + amount
    timeless = getattr(state.policy, "timeless", False) or state.policy.name == "priority-slope"
    return Case(
        gang=gang,
        running=[other for other in others if other.state == "admitted" or (other.state == "reserved")],
        alone=not moving,
        shares=queues.kueue.settings.fair_sharing or not timeless,
        places=list(_places(gang, found, most, state, queues)),
        units=units_of(state.gangs.values(), _quotas(state, queues)),
        suggested=found.release,
        labels=labels_for(gang),
        most=most,
    )


def _places(gang: Gang, found: Explanation, most: Amounts, state: LineState, queues: Queues) -> Iterator[QuotaPlace]:
    known = found.least_increase
    if gang.dialect == "kueue":
        member = queues.kueue.members.get(gang.key)
        fact = queues.facts.get(f"ClusterQueue/{member.queue}") if member is not None and not member.holds else None
        if isinstance(fact, ClusterQueue):
            for place in _of_queue(fact, most):
                yield place._replace(estimate=known.amounts if known is not None and known.place == place.name else {})
        return
    if not state.settings.quota or gang.dialect != "mcad":
        return
    for tree in state.forest.trees:
        leaf = state.forest.tree(tree).leaf(gang.labels.get(tree, "default"))
        for node in leaf.path() if leaf is not None else ():
            name = f"{tree}/{node.name}"
            for subtree in state.forest.subtrees:
                if subtree.tree == tree and any(one.name == node.name for one in subtree.nodes):
                    estimate = known.amounts if known is not None and known.place == name else {}
                    over = {one: max(0, used - node.quota.get(one, 0)) for one, used in node.allocated.items()}
                    enough = {one: amount + over.get(one, 0) for one, amount in most.items()}
                    yield QuotaPlace(name, subtree, estimate, enough, partial(raised_subtree, node.name))
                    break


def raised_subtree(name: str, subtree: QuotaSubtree, more: Amounts) -> QuotaSubtree:
    """The subtree with more quota at one of its nodes."""
    replace = msgspec.structs.replace
    nodes = tuple(
        replace(node, quota={**node.quota, **{one: node.quota.get(one, 0) + amount for one, amount in more.items()}})
        if node.name == name
        else node
        for node in subtree.nodes
    )
    return replace(subtree, nodes=nodes)


def _of_queue(fact: ClusterQueue, most: Amounts) -> Iterator[QuotaPlace]:
    for group in fact.groups:
        for flavor in group.flavors:
            enough = {resource: amount for resource, amount in most.items() if resource in flavor.limits}
            yield QuotaPlace(f"{fact.name}/{flavor.name}", fact, {}, enough, partial(raised_queue, flavor.name))


def raised_queue(flavor: str, fact: ClusterQueue, more: Amounts) -> ClusterQueue:
    """The ClusterQueue with more nominal quota on one flavor."""
    return msgspec.structs.replace(fact, groups=tuple(_raised_group(group, flavor, more) for group in fact.groups))


def _raised_group(group: ResourceGroup, flavor: str, more: Amounts) -> ResourceGroup:
    return ResourceGroup(
        group.resources,
        tuple(
            FlavorQuota(one.name, {name: _raised(limits, more.get(name, 0)) for name, limits in one.limits.items()})
            if one.name == flavor
            else one
            for one in group.flavors
        ),
    )


def _raised(limits: Limits, more: int) -> Limits:
    return msgspec.structs.replace(limits, nominal=limits.nominal + more)


def _quotas(state: LineState, queues: Queues) -> Iterator[Amounts]:
    if any(gang.supply == "aggregate" for gang in state.gangs.values()):  # sums over nodes decide, whatever these are
        yield from (fact.allocatable for fact in state.ledger.room.facts)
        yield from (pod.requests for pod in state.ledger.pods.values())
    for subtree in state.forest.subtrees:
        for node in subtree.nodes:
            yield node.quota
    for fact in queues.facts.values():
        yield from _limits_of(fact)


def _limits_of(fact: QueueFact) -> Iterator[Amounts]:
    if not isinstance(fact, (ClusterQueue, Cohort)):
        return
    for group in fact.groups:
        for flavor in group.flavors:
            for resource, limits in flavor.limits.items():
                for amount in (limits.nominal, limits.borrowing, limits.lending):
                    if amount:
                        yield {resource: amount}
