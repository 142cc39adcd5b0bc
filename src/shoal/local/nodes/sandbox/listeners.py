"""Whose a listening port is: read from the kernel's tables and from what the processes of a pod hold open.

In the loopback sandbox pods share the machine's network. A connection that is made for a user of the API may lead to
the pod alone, never to another program of the machine that listens on all addresses or on 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from shoal.local.nodes.runtime.shim.kernel import descendants

_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_LISTENS = "0A"
_ANY = ("00000000", "0" * 32)
_MAPPED = "0000000000000000FFFF0000"


def listener(ip: str, port: int, tables: Iterable[str] = _TABLES) -> tuple[int, bool] | None:
    """The socket that a connection to ip:port leads to: its inode, and whether it listens there alone."""
    wanted = _hexadecimal(ip)
    anywhere: int | None = None
    for address, inode in _listening(port, tables):
        if address in (wanted, _MAPPED + wanted):
            return inode, True
        if address in _ANY:
            anywhere = inode
    return None if anywhere is None else (anywhere, False)


def holds(pod: Path, inode: int) -> bool:
    """Whether a process of a container of this pod (its directory) has that socket open."""
    target = f"socket:[{inode}]"
    for first in _first_processes(pod):
        for pid in (first, *descendants(first)):
            with contextlib.suppress(OSError):
                for name in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        if os.readlink(f"/proc/{pid}/fd/{name}") == target:
                            return True
    return False


def _first_processes(pod: Path) -> Iterator[int]:
    """Everything that a container started is below these."""
    for run in pod.glob("containers/*/*/state.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            yield int(json.loads(run.read_bytes())["inner"])


def _listening(port: int, tables: Iterable[str]) -> Iterator[tuple[str, int]]:
    ending = f":{port:04X}"
    for table in tables:
        with contextlib.suppress(OSError), open(table, encoding="ascii") as file:
            for line in file:
                fields = line.split()
                if len(fields) > 9 and fields[3] == _LISTENS and fields[1].endswith(ending):
                    yield fields[1].partition(":")[0], int(fields[9])


def _hexadecimal(ip: str) -> str:
    """As the kernel's tables have an address of version 4."""
    return socket.inet_aton(ip)[::-1].hex().upper()
