"""Bodies of requests and answers: JSON, small, and refused in words where they cannot be read."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from shoal.errors import BadInput


def reply(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json", charset="utf-8"
    )


def error(status: int, message: str) -> web.Response:
    return reply({"error": message}, status)


async def body(request: web.Request) -> dict[str, Any]:
    """A JSON object of a few bytes. Raises BadInput."""
    if request.content_type != "application/json":
        raise BadInput("send application/json")
    try:
        return msgspec.json.decode(await request.read(), type=dict[str, Any])
    except msgspec.MsgspecError as trouble:
        raise BadInput(f"the request cannot be read: {trouble}") from None
