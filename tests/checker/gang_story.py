"""The history of an embedded server as the judge of gangs reads it: every change of every collection, in order."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.checker.gang_world import Change


def changes_of(server: Any) -> list[Change]:
    """From the server's own record of the recent past, which watches read too. Times are not kept there."""
    found = []
    for collection in server.storage.collections.values():
        plural = collection.name.split(".")[0].rsplit("/", 1)[-1]
        for event in collection.events:
            record = event.record
            old = msgspec.json.decode(event.previous.raw) if event.previous is not None else None
            new = None if record.removed else msgspec.json.decode(record.raw)
            if old is not None or new is not None:
                found.append(Change(record.revision, plural, old, new))
    return sorted(found, key=lambda one: one.revision)
