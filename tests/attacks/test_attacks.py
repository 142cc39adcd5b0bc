"""Every attack is held off."""

from __future__ import annotations

import pytest

from tests.attacks.attack import Room
from tests.attacks.rooms import ROOMS


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
async def test_every_attack_is_held_off(room: Room) -> None:
    endings = [(attack.what, ending, held) async for attack, ending, held in room.carry_out()]
    assert len(endings) == len(room.attacks) > 0
    assert not [one for one in endings if not one[2]]
