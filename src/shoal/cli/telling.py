"""How commands that follow a gang speak: one line per change to standard error, its log to standard output.

What comes from pods and objects is shown, never obeyed: at a terminal, control characters are made visible. Files and
pipes get the bytes as they are.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shoal.api.kind import Kind
from shoal.api.log_text import headline
from shoal.api.meta import Json
from shoal.cli import exits, show
from shoal.sdk import gangs
from shoal.sdk.connecting import ClusterChoice, default_namespace

if TYPE_CHECKING:
    from shoal.kube.client import Client
    from shoal.sdk.following import GangView
    from shoal.sdk.logs import LogSource

T = TypeVar("T")
_COLOUR = re.compile(r"(\x1b\[[0-9;]{0,20}m)")


async def gang(client: Client, text: str, namespace: str, *, all_kinds: bool = False) -> tuple[Kind, Json]:
    """The gang that `[KIND/]NAME` means; with `all_kinds` also a pod, a JobSet, or anything else that can wait."""
    from shoal.sdk.explaining import find, searched_kinds

    word, _, name = text.rpartition("/")
    searched = await searched_kinds(client, word, namespace, all_kinds=all_kinds)
    return await find(client, searched, name, namespace)


def change(view: GangView) -> None:
    """One line for people who wait."""
    if view.trouble:
        said = f"the server does not answer: {view.trouble}"
    elif view.gone:
        said = "was deleted"
    else:
        said = f"{view.state}: {headline(view.reason, gangs.LONGEST_REASON)}" if view.reason else view.state
    line = show.harmless(said).replace("\n", " ")
    click.echo(f"{time.strftime('%H:%M:%S')} {view.kind.kind} {view.name}: {line}", err=True)


class LogWriter:
    """Log lines to standard output; with several pods each line names its own."""

    def __init__(self, *, named: bool = False, out: Any = None, terminal: bool | None = None) -> None:
        self._out = out or sys.stdout.buffer
        self._terminal = sys.stdout.isatty() if terminal is None else terminal
        self._named = named
        self._rest: dict[str, bytes] = {}

    def write(self, source: LogSource, chunk: bytes) -> None:
        if not self._named:
            self._send(chunk, source.pod)
            return
        *lines, rest = (self._rest.get(source.pod, b"") + chunk).split(b"\n")
        self._rest[source.pod] = rest
        for line in lines:
            self._send(f"[{source.pod}] ".encode() + line + b"\n", source.pod)

    def close(self) -> None:
        for pod, rest in self._rest.items():
            if rest:
                self._send(f"[{pod}] ".encode() + rest + b"\n", pod)
        self._rest.clear()

    def _send(self, data: bytes, pod: str) -> None:
        self._out.write(visible(data) if self._terminal else data)
        self._out.flush()


def visible(data: bytes) -> bytes:
    """For a terminal: colours stay, every other control character is shown. A lone carriage return begins a line."""
    text = data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    parts = _COLOUR.split(text)
    return "".join(part if _COLOUR.fullmatch(part) else show.harmless(part) for part in parts).encode()


def run(work: Coroutine[Any, Any, T], detached: Callable[[], str] | None = None) -> T:
    """Run until done. Ctrl-C leaves the gang alone, says how to come back, and ends with code 130."""
    import asyncio

    done: list[T] = []

    async def kept() -> None:
        """Not as the task's own result: at its end asyncio asks the signal module about a handler that holds the task,
        and that prints all of it into an error that is thrown away."""
        done.append(await work)

    try:
        asyncio.run(kept())
        return done[0]
    except KeyboardInterrupt:
        said = detached() if detached is not None else ""
        if said:
            click.echo(f"\n{said}", err=True)
        sys.exit(exits.DETACHED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(exits.ERROR)


def where_words(where: tuple[Any, ...], namespace: str) -> str:
    """The flags that lead another command to the same place."""
    kubeconfig, context, name = where
    words = [f"--kubeconfig {kubeconfig}"] if kubeconfig else []
    words += [f"--context {context}"] if context else []
    words += [f"--name {name}"] if name else []
    choice = ClusterChoice(kubeconfig=kubeconfig, context=context, name=name)
    words += [f"-n {namespace}"] if namespace != default_namespace(choice) else []
    return "".join(f" {word}" for word in words)
