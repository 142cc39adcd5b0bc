"""The contract of a policy: an order that is total, the same at every look, and that ends.

Called by tests of packages that add a policy. It asks the policy about a few dozen gangs and lets the engine plan with
it; it never changes the policy.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from shoal.engine import Engine, EngineSettings
from shoal.engine.model import Gang, NodeFact, PodSet
from shoal.engine.policies import SHIPPED, Policy, load
from shoal.errors import BadInput

SECOND = 1_000_000


class _Equal:
    """A cluster in which every namespace holds the same."""

    def share(self, namespace: str) -> float:
        return 0.25


def missing_from_policy(path: str) -> list[str]:
    """What keeps the class or object at `package.module:object` from being a policy; empty when nothing does."""
    try:
        policy = load(path)
    except BadInput as error:
        return [str(error)]
    found: list[str] = []
    if not isinstance(policy.name, str) or not policy.name:
        found.append("`name` must be a text that says what the order is")
    elif ":" in path and policy.name in SHIPPED:
        found.append(f"`name` {policy.name!r} is that of a shipped policy; choose another")
    gangs = list(_gangs())
    try:
        found += _order(policy, gangs) or _rank(policy, gangs)
        found += _preemption(policy, gangs)
        found = found or _planning(path, gangs)
    except Exception as error:  # whatever a stranger's code raises is what is wrong with it
        found.append(f"it raised {type(error).__name__}: {error}")
    return found


def _gangs() -> Iterator[Gang]:
    """Different in every respect that an order may look at, some equal but for their names."""
    chance = random.Random(7)
    for number in range(24):
        name = f"gang-{number}"
        yield Gang(
            key=f"AppWrapper/team-{number % 3}/{name}",
            uid=f"uid-{number}",
            namespace=f"team-{number % 3}",
            name=name,
            priority=chance.choice((0, 0, 5, -3)),
            priority_slope=chance.choice((0.0, 1.5)),
            created_at=(number // 4) * SECOND,
            queued_at=(number // 4) * SECOND,
            pod_sets=(PodSet(name="worker", count=chance.choice((1, 2)), requests={"cpu": 1000}),),
            labels=chance.choice(({}, {"team": "a"})),
        )


def _order(policy: Policy, gangs: list[Gang]) -> list[str]:
    found = []
    ranks = {gang.uid: policy.order(gang) for gang in gangs}
    if any(not isinstance(rank, tuple) for rank in ranks.values()):
        return ["`order` must return a tuple"]
    for lane in {policy.lane(gang) for gang in gangs}:
        own = [ranks[gang.uid] for gang in gangs if policy.lane(gang) == lane]
        try:
            own.sort()
        except TypeError as error:
            return [f"`order` returns what cannot be compared: {error}"]
        if len(set(own)) < len(own):
            found.append("`order` gives two gangs the same place; end the tuple with `gang.uid`")
    if any(policy.order(gang) != ranks[gang.uid] for gang in gangs):
        found.append("`order` gives a gang another place when it is asked again")
    return sorted(set(found))


def _rank(policy: Policy, gangs: list[Gang]) -> list[str]:
    view = _Equal()
    early = [policy.rank(gang, view, 100 * SECOND) for gang in gangs]
    if len(set(early)) < len(early):
        return ["`rank` gives two gangs the same place; end the tuple with `gang.uid`"]
    sorted(early)
    late = [policy.rank(gang, view, 9000 * SECOND) for gang in gangs]
    if policy.timeless and early != late:
        return ["`rank` changes with time; set `timeless = False`"]
    for first, second in itertools.combinations(gangs, 2):
        if policy.lane(first) == policy.lane(second):
            by_order = policy.order(first) < policy.order(second)
            if by_order != (policy.rank(first, view, 100 * SECOND) < policy.rank(second, view, 100 * SECOND)):
                return [f"`rank` and `order` disagree about {first.name} and {second.name}, which share a lane"]
    return []


def _preemption(policy: Policy, gangs: list[Gang]) -> list[str]:
    for first, second in itertools.combinations_with_replacement(gangs, 2):
        if policy.may_preempt(first, second) and policy.may_preempt(second, first):
            return ["`may_preempt` lets two gangs take each other's room for ever; allow one direction at most"]
    return []


def _planning(path: str, gangs: list[Gang]) -> list[str]:
    """An engine that plans by it starts what fits, and comes to rest."""
    engine = Engine(EngineSettings(policy=path, preemption=True))
    engine.update(NodeFact(name="node", allocatable={"cpu": 8000, "memory": 64 << 30}))
    for gang in gangs:
        engine.update(gang)
    started: set[str] = set()
    for turn in range(50):
        plan = engine.plan((100 + turn) * SECOND)
        started |= {one.gang for one in plan.admits}
        if not plan.admits and not plan.preempts and not plan.unfinished:
            break
    else:
        return ["an engine that plans by it did not come to rest within 50 cycles"]
    return [] if started else ["an engine that plans by it started nothing on an empty node"]
