"""Why an AppWrapper waits, runs or ended, as plain data for `shoal why` and `shoal get`.

Asked on demand through the controller, which alone knows the queue. It reads and never changes anything. Whoever
serves it filters by what the asker may see: names of other namespaces' gangs are in `holders` and `release`.
"""

from __future__ import annotations

import msgspec

from shoal.api.appwrapper import AppWrapper
from shoal.api.meta import Json
from shoal.api.quantity import show
from shoal.controllers.appwrapper import admission as admissions
from shoal.controllers.appwrapper import monitor
from shoal.controllers.appwrapper.house import House
from shoal.controllers.appwrapper.words import why_waiting
from shoal.controllers.appwrapper.wrapped import gang_key
from shoal.engine.fit import demand_of
from shoal.engine.model import Explanation


class Explainer:
    def __init__(self, house: House) -> None:
        self.house = house

    def describe(self, key: str) -> Json | None:
        """All about one gang by its key (`AppWrapper/namespace/name`); None when there is none."""
        wrapper = self._wrapper(key)
        if wrapper is None:
            return None
        found = self._summary(wrapper)
        record = admissions.read(wrapper.status.admission)
        gang = self.house.planner.engine.gang(key)
        if gang is not None:
            found["demand"] = {name: show(name, value) for name, value in sorted(demand_of(gang.pod_sets).items())}
            found["supply"] = gang.supply
        if record.sets:
            found["nodes"] = {name: one.nodes for name, one in record.sets.items() if one.nodes}
        if record.seats:
            found["seats"] = {tree: seat.node for tree, seat in record.seats.items()}
        if record.setbacks:
            found["setbacks"] = record.setbacks
        explanation = self.house.planner.engine.explain(key, self.house.clock.now())
        if explanation is not None:
            found.update(told(explanation))
        return found

    def listing(self) -> list[Json]:
        """One short line per AppWrapper, in order of namespace and name."""
        wrappers = [wrapper for cache in self.house.world.wrappers.values() for wrapper in cache.list()]
        wrappers.sort(key=lambda one: (one.metadata.namespace, one.metadata.name))
        return [self._summary(wrapper) for wrapper in wrappers]

    def _summary(self, wrapper: AppWrapper) -> Json:
        status = wrapper.status
        counts = monitor.count(self.house.intake.pods(wrapper.metadata.uid))
        return {
            "key": gang_key(wrapper),
            "kind": "AppWrapper",
            "namespace": wrapper.metadata.namespace,
            "name": wrapper.metadata.name,
            "state": status.state or status.phase or "Pending",
            "queueState": status.queue_job_state,
            "since": _since(wrapper),
            "queuedAt": status.controller_first_timestamp or wrapper.metadata.creation_timestamp or "",
            "priority": wrapper.spec.priority,
            "reason": status.message,
            "pods": {
                "pending": counts.pending,
                "running": counts.running,
                "succeeded": counts.succeeded,
                "failed": counts.failed,
            },
        }

    def _wrapper(self, key: str) -> AppWrapper | None:
        address = self.house.intake.addresses.get(key)
        return self.house.world.wrapper(*address) if address is not None else None


def told(explanation: Explanation) -> Json:
    """An engine's explanation as plain data, amounts as people write them."""
    increase = explanation.least_increase
    return {
        "why": why_waiting(explanation),
        "position": explanation.position,
        "queueLength": explanation.queue_length,
        "shortfalls": [
            {
                **{name: value for name, value in msgspec.to_builtins(one).items() if value},
                "missing": show(one.resource, one.missing) if one.resource else "",
                "needed": show(one.resource, one.needed) if one.resource else "",
                "available": show(one.resource, one.available) if one.resource else "",
            }
            for one in explanation.shortfalls
        ],
        "holders": list(explanation.holders),
        "release": list(explanation.release),
        "leastIncrease": (
            {
                "place": increase.place,
                "amounts": {name: show(name, value) for name, value in increase.amounts.items()},
            }
            if increase is not None
            else None
        ),
    }


def _since(wrapper: AppWrapper) -> str:
    times = [
        one.last_transition_micro_time or one.last_transition_time or "" for one in wrapper.status.conditions or ()
    ]
    return max(times, default=wrapper.metadata.creation_timestamp or "")
