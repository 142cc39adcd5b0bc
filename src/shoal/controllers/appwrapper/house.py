"""What every part of the AppWrapper controller works with, in one place; it has no behaviour of its own."""

from __future__ import annotations

from typing import Literal

import msgspec

from shoal.api.appwrapper import AppWrapper
from shoal.controllers.appwrapper import admission as admissions
from shoal.controllers.appwrapper.dispatch import Objects
from shoal.controllers.appwrapper.facts import Facts
from shoal.controllers.appwrapper.intake import Intake
from shoal.controllers.appwrapper.metrics import Metrics
from shoal.controllers.appwrapper.planner import Planner
from shoal.controllers.appwrapper.settings import AppWrapperSettings
from shoal.controllers.appwrapper.store import Store
from shoal.controllers.appwrapper.world import World
from shoal.controllers.planning.words import printable
from shoal.kube.clock import Clock
from shoal.kube.events import Recorder

SECOND = 1_000_000
LONGEST_SETBACK = 600.0


class House(msgspec.Struct, frozen=True, kw_only=True):
    settings: AppWrapperSettings
    clock: Clock
    world: World
    facts: Facts
    planner: Planner
    intake: Intake
    store: Store
    objects: Objects
    recorder: Recorder
    metrics: Metrics

    def tell_people(self, wrapper: AppWrapper, type: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        if self.settings.events:
            self.recorder.event(wrapper, type, reason, printable(message))

    def resume_at(self, wrapper: AppWrapper) -> int:
        """When to try again after a start that came to nothing: later each time."""
        setbacks = admissions.read(wrapper.status.admission).setbacks
        wait = min(LONGEST_SETBACK, self.settings.backoff_seconds * 2.0 ** min(setbacks, 20))
        return self.clock.now() + int(wait * SECOND)
