"""One client that sends as fast as it can on many connections, as a process of its own: it must not share our loop."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time

import aiohttp


async def run(url: str, token: str, connections: int, seconds: float) -> dict[int, int]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it need not know its server
    counts: dict[int, int] = {}
    until = time.monotonic() + seconds
    headers = {"Authorization": f"Bearer {token}"}

    async def hammer(session: aiohttp.ClientSession) -> None:
        while time.monotonic() < until:
            async with session.get(url, headers=headers) as answer:
                await answer.read()
                counts[answer.status] = counts.get(answer.status, 0) + 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=0)) as session:
        await asyncio.gather(*(hammer(session) for _ in range(connections)))
    return counts


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))))
