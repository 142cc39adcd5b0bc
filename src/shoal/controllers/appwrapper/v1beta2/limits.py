"""How patient a v1beta2 AppWrapper is: graces, retries, exit codes.

Pure: read from annotations, within what the installation allows. A malformed value counts as not given, a negative one
as zero, and nothing exceeds the maximum.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from shoal.api.appwrapper import AppWrapper

PREFIX = "workload.codeflare.dev.appwrapper/"
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|s|us|µs|ns)")


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, and how often to try again."""

    admission: Seconds = 60.0
    """For all pods to exist after the components were created."""
    warm_up: Seconds = 300.0
    """For all pods to be ready once they exist."""
    failure: Seconds = 60.0
    """For failed pods to be replaced."""
    retry_pause: Seconds = 90.0
    """Before the components are created again after a reset."""
    retry_limit: Annotated[int, msgspec.Meta(ge=0)] = 3
    """How often a gang is reset before it fails."""
    forced_deletion: Seconds = 600.0
    """For deleted components to go, before their pods are deleted by force."""
    deletion_on_failure: Seconds = 0.0
    """For which the components of a failed gang are kept."""
    success_ttl: Seconds = 168 * 3600.0
    """For which an AppWrapper that succeeded is kept."""
    maximum: Seconds = 24 * 3600.0
    """Upper limit for what the annotations of one AppWrapper may ask for."""
    terminal_exit_codes: frozenset[int] = frozenset()
    """Exit codes of a container that fail the gang at once."""
    retryable_exit_codes: frozenset[int] | None = None
    """Exit codes that lead to another try; every other code fails the gang. Not set: all codes lead to another try."""

    @property
    def problem(self) -> str:
        """What makes no sense about it, or an empty text."""
        graces = ("admission", "warm_up", "failure", "retry_pause", "forced_deletion", "deletion_on_failure")
        for name in graces:
            if getattr(self, name) > self.maximum:
                return f"{name} is longer than maximum ({self.maximum:g} s)"
        if self.admission > self.warm_up:
            return f"admission ({self.admission:g} s) is longer than warm_up ({self.warm_up:g} s)"
        return "" if self.success_ttl > 0 else "success_ttl must be more than 0"


def patience_of(wrapper: AppWrapper, base: Patience) -> Patience:
    """The installation's patience, changed by what this object's annotations say."""
    notes = wrapper.metadata.annotations or {}

    def seconds(suffix: str, default: float) -> float:
        found = parse_duration(notes.get(PREFIX + suffix, ""))
        return default if found is None else min(max(0.0, found), base.maximum)

    retries = _number(notes.get(PREFIX + "retryLimit", ""))
    ttl = parse_duration(notes.get(PREFIX + "successTTLDuration", ""))
    retryable = notes.get(PREFIX + "retryableExitCodes")
    return msgspec.structs.replace(
        base,
        admission=seconds("admissionGracePeriodDuration", base.admission),
        warm_up=seconds("warmupGracePeriodDuration", base.warm_up),
        failure=seconds("failureGracePeriodDuration", base.failure),
        retry_pause=seconds("retryPausePeriodDuration", base.retry_pause),
        retry_limit=base.retry_limit if retries is None else max(0, retries),
        forced_deletion=seconds("forcefulDeletionGracePeriodDuration", base.forced_deletion),
        deletion_on_failure=seconds("deletionOnFailureGracePeriodDuration", base.deletion_on_failure),
        success_ttl=base.success_ttl if ttl is None else min(max(0.0, ttl), base.success_ttl),
        terminal_exit_codes=_codes(notes.get(PREFIX + "terminalExitCodes", "")),
        retryable_exit_codes=None if retryable is None else _codes(retryable),
    )


def parse_duration(text: str) -> float | None:
    """Seconds of a Go duration such as `1h30m` or `-5s`; None when it is none."""
    sign, rest = (-1.0, text[1:]) if text[:1] == "-" else (1.0, text.removeprefix("+"))
    if rest == "0":
        return 0.0
    position, total = 0, 0.0
    while position < len(rest):
        part = _PART.match(rest, position)
        if part is None:
            return None
        total += float(part.group(1)) * _UNITS[part.group(2)]
        position = part.end()
    return sign * total if position else None


def duration_text(seconds: float) -> str:
    """As Go writes it: `168h0m0s`, `1m30s`, `1.5s`, `300ms`."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    whole, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(whole), 60)
    parts = [f"{hours}h"] if hours else []
    parts += [f"{minutes}m"] if hours or minutes else []
    return "".join(parts) + f"{rest:.9f}".rstrip("0").rstrip(".") + "s"


def is_final(exit_codes: list[int], patience: Patience) -> bool:
    """Does one of these exit codes forbid another try?"""
    for code in exit_codes:
        if code == 0:
            continue
        if code in patience.terminal_exit_codes:
            return True
        if patience.retryable_exit_codes is not None and code not in patience.retryable_exit_codes:
            return True
    return False


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else None


def _codes(text: str) -> frozenset[int]:
    found = (_number(part.strip()) for part in text.split(","))
    return frozenset(code for code in found if code is not None)
