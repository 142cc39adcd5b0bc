"""`kubectl exec` over a WebSocket: the channel protocol of Kubernetes on one side, a running program on the other.

The node agent registers how to start a program inside a pod; this moves its bytes. Nothing here knows
pods or processes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import msgspec

from shoal.api.meta import Json
from shoal.local.apiserver.primitives.status import Refused, bad_request

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
TEXT, BINARY = 1, 2
"""Kinds of WebSocket messages, as RFC 6455 numbers them."""
_PATIENCE = 10.0
"""Seconds for a program that was killed to be gone."""
SEPARATOR = "\0"  # between the words of a command in a request's query: no word can hold it


class ExecOptions(msgspec.Struct, frozen=True):
    """What a client asks for."""

    container: str
    command: tuple[str, ...]
    stdin: bool = False
    tty: bool = False


class Program(Protocol):
    """Something that runs in a pod."""

    async def write(self, data: bytes) -> None: ...

    async def close_input(self) -> None: ...

    async def resize(self, width: int, height: int) -> None: ...

    def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """Chunks with their channel (STDOUT or STDERR), until both are closed."""
        ...

    async def wait(self) -> int:
        """The exit code."""
        ...

    async def kill(self) -> None: ...


Start = Callable[[Json, ExecOptions], Awaitable[Program]]
"""Start a program in a pod. Raises Refused when that cannot be."""


class _Size(msgspec.Struct, rename={"width": "Width", "height": "Height"}):
    width: int = 80
    height: int = 24


def options(pod: Json, query: dict[str, str], attaching: bool = False) -> ExecOptions:
    """From the query of the request; refuses what names no container, or no command where one is to run."""
    spec = pod["spec"]
    names = [one["name"] for one in spec.get("containers") or ()]
    others = [one["name"] for part in ("initContainers", "ephemeralContainers") for one in spec.get(part) or ()]
    container = query.get("container") or (names[0] if names else "")
    if container not in (*names, *others):
        raise bad_request(f"container {container} is not valid for pod {pod['metadata']['name']}")
    command = tuple(word for word in query.get("command", "").split(SEPARATOR) if word)
    if not command and not attaching:
        raise bad_request("you must specify at least one command for the container")
    return ExecOptions(container, command, query.get("stdin") == "true", query.get("tty") == "true")


def stream_names(query: dict[str, str]) -> frozenset[str]:
    """The streams that a client of this request opens where each has a name of its own."""
    tty = query.get("tty") == "true"
    named = {name for name in ("stdin", "stdout", "stderr") if query.get(name) == "true"}
    return frozenset({*named - ({"stderr"} if tty else set()), "error", *({"resize"} if tty else ())})


async def run(start: Start, pod: Json, query: dict[str, str], socket: Any, attaching: bool = False) -> None:
    """Talk until the program ends or the client goes."""
    try:
        program = await start(pod, options(pod, query, attaching))
    except Refused as refusal:
        await socket.send_bytes(bytes([ERROR]) + refusal.encoded())
        return
    listening = asyncio.ensure_future(_listen(program, socket))
    reporting = asyncio.ensure_future(_report(program, socket))
    try:
        await asyncio.wait((listening, reporting), return_when=asyncio.FIRST_COMPLETED)
        if not reporting.done():
            gone = listening.result()
            if gone:  # no reader is left: the program must not stay behind
                await program.kill()
            await reporting
    finally:
        over = reporting.done() and not reporting.cancelled() and reporting.exception() is None
        for task in (listening, reporting):
            task.cancel()
        await asyncio.gather(listening, reporting, return_exceptions=True)
        if not over:  # the connection broke, and took us along
            await program.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(program.wait(), _PATIENCE)


async def _report(program: Program, socket: Any) -> None:
    """Output to the client, then how it ended."""
    async for channel, chunk in program.output():
        if not socket.closed:
            await socket.send_bytes(bytes([channel]) + chunk)
    code = await program.wait()
    if not socket.closed:
        await socket.send_bytes(bytes([ERROR]) + msgspec.json.encode(ended(code)))


async def _listen(program: Program, socket: Any) -> bool:
    """Input from the client. True when the client is gone."""
    async for message in socket:
        if message.type == TEXT:
            data = message.data.encode()
        elif message.type == BINARY:
            data = message.data
        else:
            continue
        if not data:
            continue
        match data[0]:
            case 0:
                await program.write(data[1:])
            case 4:
                try:
                    size = msgspec.json.decode(data[1:], type=_Size)
                except msgspec.MsgspecError:
                    continue
                await program.resize(size.width, size.height)
            case 255 if data[1:2] == bytes([STDIN]):
                await program.close_input()
    return True


def ended(code: int) -> Json:
    """The Status that tells a client the exit code."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit code {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
