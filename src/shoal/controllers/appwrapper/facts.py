"""From stored AppWrappers to the engine's facts, and from its plans to what is stored.

What was decided is read back from the status alone (`canrun`, `state`, `phase`, `admission`), so that a restarted
controller tells the engine exactly what the last one knew. Demand is read once per generation of a spec.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

from shoal.api.appwrapper import CONTROLLER_NAME, AppWrapper, dialect, wrapped_items
from shoal.api.gang import SUPPLY
from shoal.api.labels import FENCED, GATED, KUEUE_QUEUE
from shoal.api.times import parse_time
from shoal.controllers.appwrapper.settings import AppWrapperSettings
from shoal.controllers.appwrapper.status import admission as admissions
from shoal.controllers.appwrapper.status.admission import Name, StoredAdmission
from shoal.controllers.appwrapper.v1beta1 import status as statuses
from shoal.controllers.appwrapper.wrapped import gang_key, wrapped_names
from shoal.controllers.demand.app_wrapper import UNREADABLE, component_pod_sets, pod_sets
from shoal.controllers.demand.devices import tolerating
from shoal.controllers.demand.pod_defaults import NOTHING, Defaults
from shoal.controllers.planning.creators import Creator, creator_of
from shoal.controllers.planning.rights import UNSTAMPED
from shoal.engine.model import Admit, Gang, PodSet, State, Supply
from shoal.errors import BadInput

NONE_GONE: Mapping[int, int] = {}
NEITHER = "exactly one of spec.resources (v1beta1) and spec.components (v1beta2) must be set"


class Demand(msgspec.Struct, frozen=True):
    """What a spec asks for, or why that cannot be read."""

    generation: int
    pod_sets: tuple[PodSet, ...] = ()
    problem: str = ""
    defaults: Defaults = NOTHING


class AppWrapperFacts:
    """Gang facts of AppWrappers; remembers demand by UID and generation."""

    def __init__(
        self, settings: AppWrapperSettings, creator: Callable[[AppWrapper], Creator | None] = creator_of
    ) -> None:
        self.settings = settings
        self.ages = settings.dynamic_priority or settings.policy == "priority-slope"
        """Does a gang's own slope raise its priority while it waits?"""
        self.creator = creator
        self.defaults: Callable[[str], Defaults] = lambda namespace: NOTHING
        """What pods of a namespace are given where they do not say what they need."""
        self._demands: dict[str, Demand] = {}

    def gang(
        self,
        wrapper: AppWrapper,
        now: int,
        *,
        holds_objects: bool = False,
        idle: bool = False,
        gone: Mapping[int, int] = NONE_GONE,
    ) -> Gang:
        """The gang that this AppWrapper is. `holds_objects`: it has ended, and what it had is not all gone yet. `idle`:
        it runs or is on its way out, and none of its pods can ever come again. `gone`: by number of the item, how many
        pods that it wraps as they are have gone for good."""
        record = admissions.read(wrapper.status.admission)
        demand = self._demand(wrapper)
        state = _state(wrapper, record, now)
        if state == "finished" and holds_objects:
            state = "stopping"
        sets, problem = demand.pod_sets, demand.problem
        if state in ("admitted", "stopping") and record.generation not in (0, wrapper.metadata.generation):
            sets, problem = admissions.admitted_pod_sets(record), ""
        elif state in ("admitted", "stopping"):
            sets = admissions.as_admitted(sets, record)
        if state == "admitted" and idle:
            sets, problem = (), ""
        if state == "stopping" and idle:  # a gang that waits for it to stop need not wait for its rest
            state = "held"
        newer = record.format > admissions.FORMAT
        if state == "waiting" and not problem:
            problem = admissions.NEWER if newer else self.unstamped(wrapper)
        created = _moment(wrapper.metadata.creation_timestamp, now)
        gang = Gang(
            key=gang_key(wrapper),
            uid=wrapper.metadata.uid,
            namespace=wrapper.metadata.namespace,
            name=wrapper.metadata.name,
            dialect="mcad",
            priority=wrapper.spec.priority,
            priority_slope=wrapper.spec.priority_slope,
            created_at=created,
            queued_at=_moment(wrapper.status.controller_first_timestamp, created),
            pod_sets=sets,
            labels=dict(wrapper.metadata.labels or {}),
            supply=supply_of(wrapper, self.settings),
            node_selector=dict(wrapper.spec.scheduling_spec.node_selector or {}),
            state=state,
            admitted_at=record.at,
            seats=record.seats,
            assignment=admissions.assignment(record),
            gone={one.name: gone[item] for one in sets if (item := _item(one)) in gone},
            stopping_for=record.stopping_for,
            preemptable=not newer,
            problem=problem,
        )
        return tolerating(gang) if self.settings.device_tolerations else gang

    def priority(self, wrapper: AppWrapper, now: int) -> float:
        """What the queue goes by: as MCAD, its own, and with dynamic priority its slope for every second of age."""
        if not self.ages or not math.isfinite(wrapper.spec.priority_slope):
            return float(wrapper.spec.priority)
        age = max(0, now - _moment(wrapper.status.controller_first_timestamp, now))
        return wrapper.spec.priority + wrapper.spec.priority_slope * age / 1_000_000

    def unstamped(self, wrapper: AppWrapper) -> str:
        """What to do about an AppWrapper whose creator is not recorded; empty when it is, or when that is trusted."""
        return "" if self.settings.trust_unstamped or self.creator(wrapper) is not None else UNSTAMPED

    def forget(self, uid: str) -> None:
        self._demands.pop(uid, None)

    def _demand(self, wrapper: AppWrapper) -> Demand:
        known = self._demands.get(wrapper.metadata.uid)
        defaults = self.defaults(wrapper.metadata.namespace)
        if self.settings.ray_sidecars != defaults.sidecars:
            defaults = msgspec.structs.replace(defaults, sidecars=self.settings.ray_sidecars)
        if known is None or known.generation != wrapper.metadata.generation or known.defaults != defaults:
            known = self._demands[wrapper.metadata.uid] = self._read(wrapper, defaults)
        return known

    def _read(self, wrapper: AppWrapper, defaults: Defaults) -> Demand:
        generation = wrapper.metadata.generation
        kind = dialect(wrapper)
        if kind is None:
            return Demand(generation, problem=NEITHER)
        try:
            if kind == "v1beta2":
                return Demand(generation, component_pod_sets(wrapper, defaults), defaults=defaults)
            found = pod_sets(wrapper, self.settings.count_autoscaled_workers, defaults)
            return Demand(generation, found, defaults=defaults)
        except UNREADABLE as error:
            return Demand(generation, problem=str(error), defaults=defaults)


def admission_of(admit: Admit, wrapper: AppWrapper, now: int, added: tuple[Name, ...] = ()) -> StoredAdmission:
    """What is stored with an admission; `AppWrapperFacts.gang` reads it back."""
    creator = creator_of(wrapper)
    return StoredAdmission(
        generation=wrapper.metadata.generation,
        at=now,
        by=creator.user if creator else "",
        seats=dict(admit.seats),
        sets=admissions.given(admit.assignment),
        objects=(*wrapped_names(wrapper), *added),
    )


def supply_of(wrapper: AppWrapper, settings: AppWrapperSettings) -> Supply:
    chosen = (wrapper.metadata.annotations or {}).get(SUPPLY, "")
    match chosen:
        case "fit" | "aggregate":
            return chosen
    return settings.supply


def is_bound_whole(wrapper: AppWrapper, settings: AppWrapperSettings) -> bool:
    """Do its pods wait for each other? As in MCAD, not where the sums of the cluster were enough to start it."""
    return supply_of(wrapper, settings) == "fit"


def is_managed_here(wrapper: AppWrapper) -> bool:
    """False for a v1beta2 AppWrapper that names another controller: whatever it says, nothing is kept for it."""
    return wrapper.spec.managed_by in ("", CONTROLLER_NAME)


def is_queued_here(wrapper: AppWrapper) -> bool:
    """False for an AppWrapper that a queue of the other dialect starts and stops: in v1beta1 one that is suspended, or
    that such a queue has started. One that no such queue looks after waits in its own line, label or not."""
    if not (wrapper.metadata.labels or {}).get(KUEUE_QUEUE):
        return True
    return dialect(wrapper) == "v1beta1" and not wrapper.spec.suspend and not is_released(wrapper)


def is_released(wrapper: AppWrapper) -> bool:
    """Of v1beta1: has its queue said what its pod sets were given?"""
    return any(item.pod_set_infos is not None for item in wrapped_items(wrapper))


def is_suspended(wrapper: AppWrapper) -> bool:
    """Of v1beta1: held by a queue. MCAD itself knows no `suspend`."""
    return wrapper.spec.suspend and not is_queued_here(wrapper)


def is_gated(wrapper: AppWrapper) -> bool:
    """A copy that its hub has not released yet: nothing of it is started, and nothing is said of it."""
    labels = wrapper.metadata.labels or {}
    return labels.get("IsDispatched") == "true" and GATED in (wrapper.metadata.annotations or {})


def is_fenced(wrapper: AppWrapper) -> bool:
    """A copy whose hub was not heard for too long: it stops."""
    return is_gated(wrapper) and (wrapper.metadata.annotations or {}).get(GATED) == FENCED


def is_started(wrapper: AppWrapper) -> bool:
    """Runs, or is being taken back: not one that waits, or is admitted and has nothing yet."""
    state = _state(wrapper, admissions.read(wrapper.status.admission), 0)
    return state == "stopping" or (state == "admitted" and wrapper.status.state == "Running")


def _state(wrapper: AppWrapper, record: StoredAdmission, now: int) -> State:
    status = wrapper.status
    if dialect(wrapper) == "v1beta2":
        return _component_state(wrapper, record)
    if statuses.is_terminal(status):
        return "finished"
    if wrapper.metadata.deletion_timestamp:
        return "stopping"
    if status.can_run:
        return "admitted"
    if statuses.is_stopping(status):
        return "stopping"
    if not is_queued_here(wrapper):
        return "held" if wrapper.spec.suspend else "admitted"  # its own queue said yes
    return "held" if record.resume_at > now or is_gated(wrapper) else "waiting"


def _component_state(wrapper: AppWrapper, record: StoredAdmission) -> State:
    phase = wrapper.status.phase
    if not is_managed_here(wrapper):
        return "held"
    if phase in ("Succeeded", "Failed"):
        return "finished"
    if wrapper.metadata.deletion_timestamp or phase in ("Suspending", "Terminating"):
        return "stopping"
    if phase in ("Resuming", "Running", "Resetting"):
        return "admitted"
    if wrapper.spec.suspend:
        return "held"
    if not is_queued_here(wrapper):
        return "admitted"  # its own queue said yes
    return "waiting"


def _item(pods: PodSet) -> int:
    """Which item of its AppWrapper a pod set comes from: its name begins with that number."""
    number = pods.name.partition(".")[0]
    return int(number) if number.isdigit() else -1


def _moment(text: str | None, otherwise: int) -> int:
    try:
        return parse_time(text) if text else otherwise
    except BadInput:
        return otherwise
