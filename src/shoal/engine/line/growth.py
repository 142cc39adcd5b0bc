"""Pods that come on top of what their gang was admitted with, as far as quota has room for them.

Called at the end of a cycle: gangs that wait whole come before gangs that want more. What may come counts at once.
"""

from __future__ import annotations

import msgspec

from shoal.engine.line.state import LineState
from shoal.engine.model import Grow


def grow(state: LineState) -> tuple[Grow, ...]:
    """What is to be said of pods that wait to come, the oldest first; those that were held before only if what they
    lack is something else now."""
    pods = [state.ledger.pods[uid] for uid in state.ledger.growing_alone]
    found = []
    for pod in sorted(pods, key=lambda one: (one.grows_since, one.namespace, one.name, one.uid)):
        missing = state.room_to_grow(pod)
        if not missing:
            state.update(msgspec.structs.replace(pod, gated=False))
            state.ledger.settle()
            state.charge_growth()
        if missing != state.held_growth.get(pod.uid):
            key = state.keys.get(pod.gang, "")
            found.append(Grow(pod=pod.uid, gang=key, uid=pod.gang if key else "", shortfalls=missing))
        if missing:
            state.held_growth[pod.uid] = missing
    for uid in state.ledger.grew - state.ledger.growing:
        state.held_growth.pop(uid, None)
    state.ledger.grew.clear()
    return tuple(found)
