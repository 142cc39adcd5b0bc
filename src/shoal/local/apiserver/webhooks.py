"""Admission webhooks."""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.local.apiserver.call import Call


class Webhooks:
    mutating: tuple[Json, ...] = ()
    validating: tuple[Json, ...] = ()

    async def mutate(self, call: Call, obj: Json, old: Json | None) -> Json:
        return obj

    async def validate(self, call: Call, obj: Json | None, old: Json | None) -> None:
        return None
