"""What an API server asks before it stores something, and the answer.

Apart from the server that is called (`webhooks`): those who only judge need neither sockets nor certificates.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.api.meta import Json


class GroupVersionKind(msgspec.Struct, frozen=True):
    group: str = ""
    version: str = ""
    kind: str = ""


class User(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class AdmissionRequest(msgspec.Struct, rename="camel", frozen=True):
    """What the API server asks. `object` is missing for deletes, `old_object` for creates."""

    uid: str
    kind: GroupVersionKind = GroupVersionKind()
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    user_info: User = User()
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None
    dry_run: bool | None = None
    options: dict[str, Any] | None = None


class AdmissionVerdict(msgspec.Struct, frozen=True):
    """Allowed as it is, allowed as `changed`, or refused with a message that the user reads."""

    allowed: bool = True
    message: str = ""
    code: int = 403
    reason: str = "Forbidden"
    changed: Json | None = None
    warnings: tuple[str, ...] = ()
