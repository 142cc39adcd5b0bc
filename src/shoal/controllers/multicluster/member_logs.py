"""Logs of the hub's gangs in one member, kept at the hub: read there when a container ends, before its copy may go.

The keeper is the one of the hub's own pods, with the member's client; what it keeps is found under the name of the gang
at the hub. A copy that has ended waits for it, for a bounded time. Reads only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.api.kinds import APP_WRAPPER
from shoal.api.objects import controller_of
from shoal.controllers.multicluster.hub import Hub
from shoal.controllers.planning.history.log_keeper import GangName, LogKeeper, Whose
from shoal.controllers.planning.pods import SeenPod
from shoal.kube.client import Client
from shoal.kube.errors import KubeError

if TYPE_CHECKING:
    from shoal.controllers.multicluster.member import Member

log = logging.getLogger(__name__)
TAKEN_SECONDS = 20.0
"""How long a copy that has ended waits for its logs to be read."""

KeeperFor = Callable[[Client, Whose], LogKeeper | None]


class MemberLogs:
    def __init__(self, member: Member, hub: Hub, keeper_for: KeeperFor) -> None:
        self._member, self._hub = member, hub
        self._keeper = keeper_for(member.client, self._whose)

    async def run(self) -> None:
        """Until cancelled, once the member's pods were read."""
        supply = self._member.supply
        if self._keeper is None or supply is None:
            return
        await self._keeper.begin()
        supply.pods.follow(self._keeper.changed)
        await self._keeper.run()

    async def taken(self) -> None:
        """Until what has ended there so far is read, for a bounded time."""
        if self._keeper is None or self._member.supply is None:
            return
        try:
            async with asyncio.timeout(TAKEN_SECONDS):
                await self._member.supply.pods.caught_up()
                await self._keeper.kept()
        except (TimeoutError, KubeError) as error:
            log.warning("cluster %s: logs are not all kept: %s", self._member.name, error or "they take too long")

    def _whose(self, pod: SeenPod) -> GangName | None:
        """The gang at the hub, as its users call it."""
        supply, wrappers = self._member.supply, self._member.wrappers
        uid = supply.pods.gang_of(pod) if supply is not None else ""
        if not uid:
            return None
        for copy in wrappers.of_gang(uid) if wrappers is not None else ():
            return GangName(APP_WRAPPER.kind, copy.metadata.name, uid, 1)
        for workload in self._hub.workloads.by_index("uid", uid):
            if owner := controller_of(workload):
                return GangName(str(owner["kind"]), str(owner["name"]), str(owner["uid"]), 1)
        return None
