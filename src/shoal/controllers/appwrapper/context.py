"""What every part of the AppWrapper controller works with, in one place; it has no behaviour of its own."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from shoal.api.appwrapper import AppWrapper
from shoal.controllers.appwrapper.caches import WrapperCaches
from shoal.controllers.appwrapper.dispatch import Objects
from shoal.controllers.appwrapper.facts import AppWrapperFacts
from shoal.controllers.appwrapper.intake import Intake
from shoal.controllers.appwrapper.metrics import AppWrapperMetrics
from shoal.controllers.appwrapper.settings import AppWrapperSettings
from shoal.controllers.appwrapper.status import admission as admissions
from shoal.controllers.appwrapper.store import Store
from shoal.controllers.appwrapper.wrapped import gang_key
from shoal.controllers.planning.caches import SharedCaches
from shoal.controllers.planning.decisions import Decisions
from shoal.controllers.planning.loop import PlanningLoop
from shoal.controllers.planning.observations import Observation, Observations
from shoal.controllers.planning.other_clusters import OtherClusters
from shoal.controllers.planning.words import printable
from shoal.kube.clock import Clock
from shoal.kube.events import Recorder

SECOND = 1_000_000
LONGEST_SETBACK = 600.0


class WrapperContext(msgspec.Struct, frozen=True, kw_only=True):
    settings: AppWrapperSettings
    clock: Clock
    planning: PlanningLoop
    caches: WrapperCaches
    facts: AppWrapperFacts
    intake: Intake
    store: Store
    objects: Objects
    recorder: Recorder
    metrics: AppWrapperMetrics
    elsewhere: OtherClusters | None = None
    """Other clusters, where AppWrappers of v1beta1 may go."""
    observations: Observations
    """What reconcilers learn, for the planning loop."""

    @property
    def shared(self) -> SharedCaches:
        """Nodes, pods, limits and the objects between."""
        return self.planning.caches

    @property
    def decisions(self) -> Decisions:
        """What is decided and not stored yet."""
        return self.planning.decisions

    def note(self, kind: type[Observation], wrapper: AppWrapper, **learnt: Any) -> None:
        """Learnt of this AppWrapper."""
        self.observations.note(kind(gang=gang_key(wrapper), uid=wrapper.metadata.uid, **learnt))

    def tell_people(self, wrapper: AppWrapper, type: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        if self.settings.events:
            self.recorder.event(wrapper, type, reason, printable(message))

    def resume_at(self, wrapper: AppWrapper) -> int:
        """When to try again after a start that came to nothing: later each time."""
        setbacks = admissions.read(wrapper.status.admission).setbacks
        wait = min(LONGEST_SETBACK, self.settings.backoff_seconds * 2.0 ** min(setbacks, 20))
        return self.clock.now() + int(wait * SECOND)
