"""Every room of attacks. Add a module with a `Room` and name it here."""

from __future__ import annotations

from tests.attacks import apiserver, hub, member, pods, tenant
from tests.attacks.attack import Room

ROOMS: tuple[Room, ...] = (apiserver.ROOM, tenant.ROOM, member.ROOM, hub.ROOM, hub.SENDING_ROOM, *pods.ROOMS)
