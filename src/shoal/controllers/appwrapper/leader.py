"""The loop that owns the engine, as the desk of questions sees it: facts, plans, and who knows what is asked about."""

from __future__ import annotations

from typing import Any

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.controllers.appwrapper.controller import AppWrapperController
from shoal.controllers.appwrapper.subjects import wrapper_subject
from shoal.controllers.planning.questions.alone import subject_alone
from shoal.controllers.planning.questions.desk import Desk
from shoal.controllers.planning.questions.subject import Subject
from shoal.controllers.planning.stamps import Stamps
from shoal.engine import Engine
from shoal.kube.cache import Cache
from shoal.kube.client import Client


def desk_of(controller: AppWrapperController, client: Client) -> Desk:
    return Desk(client, controller.clock, Leader(controller, client))


class Leader:
    """What the desk of questions is given: the engine's loop, and the dialects that know what is asked about."""

    def __init__(self, controller: AppWrapperController, client: Client) -> None:
        self._controller = controller
        self._client = client

    @property
    def engine(self) -> Engine:
        return self._controller.engine

    @property
    def stamps(self) -> Stamps:
        return self._controller.world.stamps

    @property
    def turn(self) -> int:
        return self._controller.turn

    def replan_now(self) -> int:
        return self._controller.replan_now()

    def caches(self) -> list[Cache[Any]]:
        guest = self._controller.guest
        return [*self._controller.world.caches, *(guest.caches() if guest is not None else ())]

    def known_as(self, key: str) -> str:
        return self._controller.world.known_as(key)

    async def subject(self, group: str, kind: str, key: Key) -> Subject | None:
        """A queue's word comes before that of an AppWrapper, and both before what its pods tell."""
        controller = self._controller
        found = controller.guest.subject(group, kind, key) if controller.guest is not None else None
        if found is None and kind == kinds.APP_WRAPPER.kind:
            found = wrapper_subject(controller.world, controller.planner, group, key)
        return found or await subject_alone(self._client, group, kind, key, controller.world.pods_below)
