"""Which process is meant: its pid together with the moment it started.

Pids are reused; a pair of pid and start time is not. Everything in the agent that signals a process goes through
`signal_exactly`, which holds a pidfd before it compares, so that a stranger never gets our signal.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec


class ProcessIdentity(msgspec.Struct, frozen=True):
    pid: int
    start: int


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which the process started; None when there is no such process or only its corpse."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def alive(identity: ProcessIdentity) -> bool:
    return start_time(identity.pid) == identity.start


def hold(identity: ProcessIdentity) -> int | None:
    """A pidfd of exactly this process, or None when it is gone. The caller closes it."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except (ProcessLookupError, OSError):
        return None
    if start_time(identity.pid) != identity.start:
        os.close(descriptor)
        return None
    return descriptor


def signal_exactly(identity: ProcessIdentity, number: signal.Signals) -> bool:
    """Send the signal to this very process; False when it is gone."""
    descriptor = hold(identity)
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def boot_id() -> str:
    """Changes with every boot: start times of another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
