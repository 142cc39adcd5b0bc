"""How an attack is written down: who tries what, and what must come of it.

An attack is an asynchronous function with `@attack(...)`. It tries, and returns in a few words how it was refused; it
raises `Succeeded` when it was not. A room of attacks is a module beside this one that names its own world: something
that is started once for all of them. Rooms are listed in `rooms.py`; `python -m tests.attacks` runs them all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec


class Succeeded(AssertionError):
    """The attack worked."""


class Unable(Exception):
    """It cannot be tried on this machine; the message says what is missing."""


Try = Callable[[Any], Awaitable[str]]


class Attack(msgspec.Struct, frozen=True):
    who: str
    what: str
    carry_out: Try


class Room:
    """Attacks on one thing, in one world."""

    def __init__(self, name: str, world: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self.name = name
        self.world = world
        self.attacks: list[Attack] = []

    def attack(self, who: str, what: str) -> Callable[[Try], Try]:
        def note(carry_out: Try) -> Try:
            self.attacks.append(Attack(who, what, carry_out))
            return carry_out

        return note

    async def carry_out(self) -> AsyncIterator[tuple[Attack, str, bool]]:
        """Each attack with how it ended, and whether it was held off."""
        async with self.world() as world:
            for one in self.attacks:
                try:
                    yield one, await one.carry_out(world), True
                except Unable as error:
                    yield one, f"not tried: {error}", True
                except Succeeded as error:
                    yield one, f"SUCCEEDED: {error}", False
                except Exception as error:  # an attack that ends in an unforeseen way has found something
                    yield one, f"FAILED: {type(error).__name__}: {error}", False
