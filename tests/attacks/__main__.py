"""Carry out every attack and print what was tried and what came of it. Ends with 1 if one succeeded."""

from __future__ import annotations

import asyncio
import sys
import time

from tests.attacks.rooms import ROOMS


async def run() -> int:
    tried = lost = 0
    for room in ROOMS:
        print(f"— {room.name}")
        start = time.monotonic()
        async for attack, ending, held in room.carry_out():
            tried += 1
            lost += not held
            print(f"  {attack.who}: {attack.what}\n      {ending}", flush=True)
        print(f"  ({time.monotonic() - start:.0f} s)")
    print(f"{tried} attacks, {lost} succeeded")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run()))
