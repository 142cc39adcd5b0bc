"""Whether a creator's stamp may be believed: was the admission that writes it in force when the object was made?

The embedded server stamps by itself, always. On any other cluster the annotation is a text like any other unless our
mutating webhook stood in front of it: a stamp on an object that is not younger than that webhook may be forged, and
counts as none. Both times are the API server's. Where a stamp counts as none, the creator that the import record names
for this very UID counts: only an administrator of the controller's namespace can write that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.planning import imports
from shoal.controllers.planning.creators import Creator, creator_of
from shoal.kube.cache import Cache, Change
from shoal.kube.client import Client
from shoal.kube.clock import Clock
from shoal.kube.trouble import Trouble

By = Literal["server", "webhook"]
CONFIGURATION = "shoal"
STAMPING = "stamp.shoal.dev"
"""Names of the webhook configuration and of the webhook in it, as `shoal install` writes them."""


class Stamps:
    """`run` it while the controller runs, where `cache` is not None."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        by: By,
        report: Callable[[Kind], Callable[[Trouble], None]],
        namespace: str = "",
    ) -> None:
        """`report` gives, for a kind, what hears that it cannot be read. `namespace` holds the import record; without
        one there is none."""
        self.cache: Cache[Json] | None = None
        self.record: Cache[Json] | None = None
        self._subscribers: list[Callable[[], None]] = []
        if by == "webhook":
            name = f"metadata.name={CONFIGURATION}"
            self.cache = Cache(
                client, kinds.MUTATING_WEBHOOK, field_selector=name, clock=clock, report=report(kinds.MUTATING_WEBHOOK)
            )
            self.cache.subscribe(self._heard)
        if by == "webhook" and namespace:
            name = f"metadata.name={imports.RECORD}"
            self.record = Cache(
                client,
                kinds.CONFIG_MAP,
                namespace=namespace,
                field_selector=name,
                clock=clock,
                report=report(kinds.CONFIG_MAP),
            )
            self.record.subscribe(lambda change: self._tell())

    @property
    def caches(self) -> list[Cache[Json]]:
        return [one for one in (self.cache, self.record) if one is not None]

    def is_imported(self, uid: str) -> bool:
        """Has an administrator given the object with this UID to us?"""
        return imports.is_imported(self._recorded(), uid)

    def creator(self, wrapper: AppWrapper) -> Creator | None:
        """The user that answers for this AppWrapper; None when nothing recorded it, or anyone could have."""
        if self.cache is None:
            return creator_of(wrapper)
        since = min((_since(one) for one in self.cache.list() if _stamps(one)), default="")
        created = wrapper.metadata.creation_timestamp or ""
        stamped = creator_of(wrapper) if since and created > since else None
        return stamped or imports.imported_creator(self._recorded(), wrapper.metadata.uid)

    def _recorded(self) -> Json | None:
        return next(iter(self.record.list()), None) if self.record is not None else None

    def subscribe(self, function: Callable[[], None]) -> None:
        """Call `function` when other stamps are believed than before."""
        self._subscribers.append(function)

    def _heard(self, change: Change) -> None:
        old, new = (change.old or {}).get("webhooks"), (change.new or {}).get("webhooks")
        if change.old is None or change.new is None or old != new:
            self._tell()

    def _tell(self) -> None:
        for function in self._subscribers:
            function()


def _stamps(configuration: Json) -> bool:
    """Does it stamp whatever comes, or nothing gets in?"""
    return any(
        one.get("name") == STAMPING and one.get("failurePolicy") == "Fail"
        for one in configuration.get("webhooks") or ()
    )


def _since(configuration: Json) -> str:
    return str(configuration["metadata"].get("creationTimestamp") or "")
