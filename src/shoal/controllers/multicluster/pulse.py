"""Is another cluster there, is it the one we know, and does it take our credential?

Asked again and again by one task per member. A missed answer is no loss: only silence beyond a limit is shown, and a
rejected credential at once. It never decides what becomes of the gangs there.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shoal.api import kinds
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.errors import Forbidden, KubeError, Unauthorized

SYSTEM = "kube-system"
LONGEST_UID = 64
"""What another cluster answers is stored here: never more of it than a UID has."""


class Health(msgspec.Struct, frozen=True):
    connected: bool
    reason: str
    message: str
    identity: str = ""
    """UID of its `kube-system` namespace; empty where we may not read it."""


class Pulse:
    def __init__(
        self,
        name: str,
        client: Client,
        settings: ClusterSettings,
        clock: Clock,
        changed: Callable[[], None],
        excess: Callable[[], str] = lambda: "",
        returned: Callable[[], None] = lambda: None,
    ) -> None:
        """`returned()`: it answers again, after it did not."""
        self.health: Health | None = None
        """None until it has answered, or has been silent for too long."""
        self._name = name
        self._client = client
        self._settings = settings
        self._clock = clock
        self._changed = changed
        self._excess, self._returned = excess, returned
        self._missed = False
        self._answered = clock.monotonic()

    async def run(self) -> None:
        while True:
            await self._ask()
            await self._clock.sleep(self._settings.probe_seconds)

    async def identity(self) -> str:
        """Of the cluster that answers right now. Raises KubeError."""
        try:
            found = await self._client.get(kinds.NAMESPACE, SYSTEM)
        except Forbidden:
            return ""
        return str(found["metadata"]["uid"])[:LONGEST_UID]

    async def _ask(self) -> None:
        try:
            identity = await self.identity()
        except Unauthorized as error:
            self._say(Health(False, "ClientConnectionFailed", f"the credential is rejected: {error}; renew it"))
        except KubeError as error:
            self._missed = True
            if self._clock.monotonic() - self._answered >= self._settings.silent_seconds:
                self._say(Health(False, "ClientConnectionFailed", f"it does not answer: {error}"))
        else:
            self._answered = self._clock.monotonic()
            if self._missed:
                self._missed = False
                self._returned()
            if excess := self._excess():
                self._say(Health(False, "TooMuch", excess, identity))
            else:
                self._say(Health(True, "Active", "Connected", identity))

    def _say(self, health: Health) -> None:
        before, self.health = self.health, health
        if before is None or (before.connected, before.reason, before.identity) != (
            health.connected,
            health.reason,
            health.identity,
        ):
            self._changed()
