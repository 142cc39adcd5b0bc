"""How far a rolling exchange may go next. Pure: counts in, wanted sizes out."""

from __future__ import annotations

from typing import Any, NamedTuple

from shoal.api.meta import Json


class RolloutShare(NamedTuple):
    """One ReplicaSet's part: the pods it is asked for, those that are available, and the most that all sets together
    were allowed when it was last resized (nought where that was not recorded)."""

    replicas: int
    available: int
    most: int = 0


def bounds(spec: Json) -> tuple[int, int]:
    """The surge and the unavailability that a rolling update may use, in pods."""
    wanted = _whole(spec)
    update = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    surge = part_of(update.get("maxSurge", "25%"), wanted, up=True)
    missing = part_of(update.get("maxUnavailable", "25%"), wanted, up=False)
    return (surge, 1) if surge == 0 and missing == 0 else (surge, missing)


def next_scale(
    spec: Json, current: RolloutShare, old: list[RolloutShare], old_pods_left: bool
) -> dict[int | None, int]:
    """New sizes: None names the current set, numbers name the old ones. Only what changes is named."""
    wanted = _whole(spec)
    if (spec.get("strategy") or {}).get("type") == "Recreate":
        shrink: dict[int | None, int] = {place: 0 for place, one in enumerate(old) if one.replicas}
        if shrink or old_pods_left:
            return shrink
        return {None: wanted} if current.replicas != wanted else {}
    return _rolling(spec, wanted, current, old)


def _rolling(spec: Json, wanted: int, current: RolloutShare, old: list[RolloutShare]) -> dict[int | None, int]:
    surge, missing = bounds(spec)
    sizes: dict[int | None, int] = {}
    total = current.replicas + sum(one.replicas for one in old)
    now = current.replicas
    if now > wanted:
        now = wanted
    elif now < wanted and total < wanted + surge:
        now = min(wanted, now + wanted + surge - total)
    if now != current.replicas:
        sizes[None] = now
        total += now - current.replicas
    least = wanted - missing
    room = total - least - max(0, now - current.available)
    if room <= 0:
        return sizes
    left = {place: one.replicas for place, one in enumerate(old) if one.replicas}
    for place in left:  # what is not available anyway goes first
        gone = min(left[place] - min(left[place], old[place].available), room)
        left[place] -= gone
        room -= gone
    spare = current.available + sum(min(left[place], old[place].available) for place in left) - least
    for place in left:
        gone = max(0, min(left[place], spare, room))
        left[place] -= gone
        spare -= gone
        room -= gone
    sizes.update({place: size for place, size in left.items() if size != old[place].replicas})
    return sizes


def rescaled(spec: Json, current: RolloutShare | None, old: list[RolloutShare], total: int) -> dict[int | None, int]:
    """Sizes after the wanted number itself changed in the middle of an exchange: each set grows by its share.

    `old` is from the oldest to the newest; `total` is how many pods there were, for sets that do not say.
    """
    wanted = _whole(spec)
    sets: dict[int | None, RolloutShare] = dict(enumerate(old))
    if current is not None:
        sets[None] = current
    active = {place: one for place, one in sets.items() if one.replicas}
    if len(active) <= 1:
        only = next(iter(active), None if current is not None else len(old) - 1)
        return {only: wanted}
    if current is not None and current.replicas == current.available == wanted:
        return {place: 0 for place in active if place is not None}
    if (spec.get("strategy") or {}).get("type") == "Recreate":
        return {}
    allowed = wanted + bounds(spec)[0] if wanted else 0
    change = allowed - sum(one.replicas for one in active.values())
    newest_first = list(reversed(active)) if change > 0 else list(active)
    order = sorted(newest_first, key=lambda place: -active[place].replicas)
    sizes = {place: one.replicas for place, one in active.items()}
    left = change
    for place in order:
        one = active[place]
        fair = round(one.replicas * allowed / (one.most or total or one.replicas)) - one.replicas
        share = min(fair, left) if change > 0 else max(fair, left)
        sizes[place] += share
        left -= share
    sizes[order[0]] = max(0, sizes[order[0]] + left)
    return sizes


def _whole(spec: Json) -> int:
    found = spec.get("replicas")
    return found if isinstance(found, int) else 1


def part_of(written: Any, wanted: int, *, up: bool) -> int:
    """A number of pods, or a percentage of those wanted, rounded up or down."""
    if isinstance(written, int):
        return written
    text = str(written).removesuffix("%")
    share = int(text) if text.isdecimal() else 0
    return -(-wanted * share // 100) if up else wanted * share // 100
