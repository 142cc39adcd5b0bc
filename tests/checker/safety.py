"""Invariants on what gets out and what holds others up: I47, I50, I51, and I48 of what listens.

From stored objects, log lines and sockets alone. A secret is whatever a Secret holds or an AppWrapper wraps as one; who
reads statuses, events or logs must never find it there.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from tests.checker.gang_world import Change, Json

SHORTEST = 8
"""Shorter values are found everywhere by chance."""
PROMPT = 1_000_000
"""Microseconds within which a new AppWrapper hears something, whatever others sent."""
Address = tuple[str, int]


# --- I47


def planted(changes: Iterable[Change]) -> set[str]:
    """Every value of every Secret, as it is written and as it is meant."""
    found: set[str] = set()
    for change in changes:
        obj = change.obj
        if change.collection == "secrets":
            found |= _values(obj)
        if change.collection == "appwrappers":
            for template in _wrapped(obj):
                if template.get("kind") == "Secret":
                    found |= _values(template)
    return {value for value in found if len(value) >= SHORTEST}


def leaks(changes: Iterable[Change], lines: Iterable[str] = (), secrets: set[str] | None = None) -> list[str]:
    """I47: secrets that stand in a status, an event, an annotation of ours or a log line."""
    changes = list(changes)
    known = planted(changes) if secrets is None else secrets
    if not known:
        return []
    found = []
    for change in changes:
        public = msgspec.json.encode(_public(change)).decode()
        if any(value in public for value in known):
            name = change.obj["metadata"].get("name")
            found.append(f"I47: revision {change.revision}: {change.collection}/{name} tells a secret")
    found += [f"I47: the log tells a secret: {line[:80]}" for line in lines if any(value in line for value in known)]
    return found


def _public(change: Change) -> Any:
    """What others than its owner read of an object."""
    obj = change.new or {}
    if change.collection == "events":
        return obj
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    ours = {name: text for name, text in annotations.items() if name.startswith("shoal.dev/")}
    return [obj.get("status"), ours]


def _wrapped(obj: Json) -> Iterator[Json]:
    spec = obj.get("spec") or {}
    for item in (spec.get("resources") or {}).get("GenericItems") or ():
        yield item.get("generictemplate") or {}
    for component in spec.get("components") or ():
        yield component.get("template") or {}


def _values(secret: Json) -> set[str]:
    found = {str(text) for text in (secret.get("stringData") or {}).values()}
    for text in (secret.get("data") or {}).values():
        found.add(str(text))
        with suppress(binascii.Error, UnicodeDecodeError, ValueError):
            found.add(base64.b64decode(str(text), validate=True).decode())
    return found


# --- I50


def unanswered(changes: Iterable[Change], end: int, prompt: int = PROMPT) -> list[str]:
    """I50: gangs without a first status within the time, while users sent whatever they liked. For quiet networks."""
    born: dict[str, tuple[str, int]] = {}
    found = []
    for change in changes:
        if change.collection != "appwrappers":
            continue
        uid, name = change.obj["metadata"]["uid"], change.obj["metadata"]["name"]
        if change.old is None:
            born[uid] = (name, change.at)
        answered = change.new is None or bool((change.new.get("status") or {}).get("conditions"))
        if uid in born and answered:
            since = born.pop(uid)[1]
            if change.at - since > prompt:
                found.append(f"I50: {name} heard nothing for {(change.at - since) / 1e6:.1f} s")
    return found + [f"I50: {name} never heard anything" for name, since in born.values() if end - since > prompt]


# --- I48, I51


@contextmanager
def only_calling(allowed: Callable[[Address], bool]) -> Iterator[list[Address]]:
    """I51, for whatever runs in this process: who is called over the network is one of these."""
    strangers: list[Address] = []
    real, real_ex = socket.socket.connect, socket.socket.connect_ex

    def note(one: socket.socket, address: Any) -> None:
        if one.family in (socket.AF_INET, socket.AF_INET6) and not allowed((str(address[0]), int(address[1]))):
            strangers.append((str(address[0]), int(address[1])))

    def connect(self: socket.socket, address: Any) -> None:
        note(self, address)
        real(self, address)

    def connect_ex(self: socket.socket, address: Any) -> int:
        note(self, address)
        return real_ex(self, address)

    socket.socket.connect, socket.socket.connect_ex = connect, connect_ex  # type: ignore[method-assign]
    try:
        yield strangers
    finally:
        socket.socket.connect, socket.socket.connect_ex = real, real_ex  # type: ignore[method-assign]
    assert strangers == [], f"I51: called, and not one of those we may call: {strangers}"


def strange_sockets(pid: int, known: set[str]) -> list[str]:
    """I48 and I51 of a live process: it listens and talks on loopback and at these addresses only."""
    found = []
    for local, remote, state in _sockets(pid):
        if state == "0A" and not _is_near(local[0], known):
            found.append(f"I48: listens at {local[0]}:{local[1]}")
        elif state in ("01", "02") and not _is_near(remote[0], known):
            found.append(f"I51: talks to {remote[0]}:{remote[1]}")
    return found


def _is_near(address: str, known: set[str]) -> bool:
    return ipaddress.ip_address(address).is_loopback or address in known


def _sockets(pid: int) -> Iterator[tuple[Address, Address, str]]:
    """Local and remote address and the state of every TCP socket that this process has open."""
    own = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            own.add(str(link.readlink()))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if f"socket:[{fields[9]}]" in own:
                yield _address(fields[1]), _address(fields[2]), fields[3]


def _address(text: str) -> Address:
    """From the kernel's hexadecimal words, each in the machine's byte order."""
    words, _, port = text.partition(":")
    packed = b"".join(bytes.fromhex(words[start : start + 8])[::-1] for start in range(0, len(words), 8))
    found = ipaddress.ip_address(packed)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found), int(port, 16)
