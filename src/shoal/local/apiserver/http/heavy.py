"""What takes long, done beside the event loop: only its sender waits for it.

YAML takes seconds for what JSON takes milliseconds. A YAML body becomes JSON here, and everything after this reads
JSON; large bodies are looked through for repeated fields here, and large answers get the form that was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from shoal.local.apiserver.primitives.status import bad_request
from shoal.local.apiserver.requests.body import decode_yaml, encode, is_yaml
from shoal.local.apiserver.requests.call import Call
from shoal.local.apiserver.requests.repeats import repeated_fields

T = TypeVar("T")

SMALL_YAML = 2 << 10
"""Bytes that are read at once: that takes no longer than the way to another thread."""
SMALL = 64 << 10
"""The same of JSON."""


class Beside:
    """Few threads, started with the first piece of work: they share the interpreter with the loop."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[[], T]) -> T:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(2, "beside")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def prepare(self, call: Call) -> None:
        """Make a call's body one that is read quickly. Raises Refused."""
        request = call.request
        yaml = is_yaml(request.headers.get("content-type", "")) and not _is_json(request.body)
        if len(request.body) <= (SMALL_YAML if yaml else SMALL):
            return
        asked = request.query.get("fieldValidation") in ("Strict", "Warn")

        def read() -> tuple[bytes, list[str] | None]:
            body = request.body
            return _as_json(body) if yaml else body, repeated_fields(body) if asked else None

        body, call.repeats = await self.run(read)
        call.request = msgspec.structs.replace(request, body=body)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _is_json(body: bytes) -> bool:
    """Most of what is called YAML is JSON; what begins as JSON may still be YAML."""
    if body[:1] != b"{":
        return False
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _as_json(body: bytes) -> bytes:
    found = decode_yaml(body)
    if type(found) is not dict:
        raise bad_request("the body of the request is not an object")
    return encode(found)
