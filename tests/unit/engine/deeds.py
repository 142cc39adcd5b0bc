"""Doing what an explanation says, and less than it says: what comes of it is the judge of the words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations

from shoal.engine.model import Explanation, Together

from .deeds_world import DeedsWorld

Deed = Callable[[DeedsWorld], None]


def waiting_in(world: DeedsWorld, most: int) -> list[str]:
    found = sorted(
        key for key, gang in world.gangs.items() if gang.state in ("waiting", "reserved") and not world.has_started(key)
    )
    return world.dice.sample(found, min(most, len(found)))


def comes_of(seed: int, key: str, deed: Deed, seen: Counter[str]) -> bool:
    """Does the gang run once this was done and everything is at rest? `seen` counts worlds that loop."""
    world = DeedsWorld(seed)
    deed(world)
    if world.settle():
        return world.has_started(key)
    seen["loops"] += 1
    return False


def judge(seed: int, seen: Counter[str], most: int) -> Iterator[str]:
    """Every lie that is told to so many gangs in the world of this seed. `seen` counts what was judged."""
    asked = DeedsWorld(seed)
    for key in waiting_in(asked, most):
        why = asked.engine.explain(key, asked.now)
        if why is None:
            yield f"{seed} {key}: nothing is said of it"
            continue
        seen["asked"] += 1
        seen[f"dialect {asked.gangs[key].dialect}"] += 1
        for claim, expected, deed in claims(why, seed):
            seen[claim.split()[0] + (" yes" if expected else " no")] += 1
            if comes_of(seed, key, deed, seen) is not expected:
                yield f"{seed} {key}: {claim}, but it {'does not start' if expected else 'starts'}; said: {why}"
        if not why.starts_by_itself and not (why.release or why.least_increase or why.new_nodes or why.together):
            seen["no help"] += 1


def claims(why: Explanation, seed: int) -> Iterator[tuple[str, bool, Deed]]:
    """What is claimed, whether the gang must start, and the deed that shows it."""
    if why.reason in ("bad-fact", "held"):
        return
    yield "itself", why.starts_by_itself, lambda world: None
    if why.release:
        yield f"ends {why.release}", True, lambda world: ends(world, why.release)
        shorter = [part for size in range(1, len(why.release)) for part in combinations(why.release, size)]
        for part in shorter if why.release_measure == "least" else ():
            yield f"ends, of {why.release} only {part}", False, lambda world, part=part: ends(world, part)
    more = why.least_increase
    if more is not None and more.place != "nodes":
        yield f"quota {more}", True, lambda world: world.raise_quota(more.place, more.amounts)
        for less in lesser(more.amounts) if more.measure == "least" else ():
            yield f"quota, only {less} of {more}", False, lambda world, less=less: world.raise_quota(more.place, less)
    fresh = why.new_nodes
    if fresh is not None:
        name = ("a", "m", "n1a", "z")[seed % 4]
        yield f"nodes {fresh}", True, lambda world: nodes(world, name, fresh.count, fresh.amounts, fresh.labels)
        for less in lesser(fresh.amounts) if fresh.measure == "least" else ():
            yield (
                f"nodes, only {less} of {fresh}",
                False,
                lambda world, less=less: nodes(world, name, fresh.count, less, fresh.labels),
            )
    both = why.together
    if both is not None:
        yield f"together {both}", True, lambda world: all_of(world, both, {})
        for place, resource in parts(both) if both.measure == "least" else ():
            yield (
                f"together, less {resource} at {place} of {both}",
                False,
                lambda world, part=(place, resource): all_of(world, both, {part: 1}),
            )


def parts(both: Together) -> Iterator[tuple[str, str]]:
    for one in both.quotas:
        yield from ((one.place, resource) for resource in one.amounts)
    if both.nodes is not None:
        yield from (("nodes", resource) for resource in both.nodes.amounts)


def all_of(world: DeedsWorld, both: Together, less: dict[tuple[str, str], int]) -> None:
    for one in both.quotas:
        amounts = {name: amount - less.get((one.place, name), 0) for name, amount in one.amounts.items()}
        world.raise_quota(one.place, amounts)
    if both.nodes is not None:
        amounts = {name: amount - less.get(("nodes", name), 0) for name, amount in both.nodes.amounts.items()}
        nodes(world, "m", both.nodes.count, amounts, both.nodes.labels)


def lesser(amounts: dict[str, int]) -> Iterator[dict[str, int]]:
    for resource, amount in amounts.items():
        for fewer in sorted({amount - 1, amount // 2, 0}):
            yield {**amounts, resource: fewer}


def ends(world: DeedsWorld, keys: tuple[str, ...]) -> None:
    for key in keys:
        world.end(key)


def nodes(world: DeedsWorld, name: str, count: int, amounts: dict[str, int], labels: dict[str, str]) -> None:
    for number in range(count):
        world.add_node(f"{name}{number}", amounts, labels)
