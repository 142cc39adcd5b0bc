"""How long to wait before trying again: doubling, capped, jittered, and never less than the server asked for."""

from __future__ import annotations

from random import Random

from shoal.kube.errors import ApiError


class Backoff:
    """One row of failures. `reset()` after a success."""

    def __init__(self, random: Random, *, first: float = 0.1, cap: float = 10.0) -> None:
        self._random = random
        self._first = first
        self._cap = cap
        self.failures = 0

    def after(self, error: BaseException | None = None) -> float:
        """Seconds to wait after one more failure: between half and all of the doubled step, so that clients spread."""
        step = min(self._cap, self._first * 2.0 ** min(self.failures, 30))
        self.failures += 1
        wait = step * (0.5 + 0.5 * self._random.random())
        return max(wait, asked_to_wait(error))

    def reset(self) -> None:
        self.failures = 0


def asked_to_wait(error: BaseException | None) -> float:
    """The server's Retry-After, or zero."""
    if isinstance(error, ApiError) and error.retry_after is not None:
        return max(0.0, error.retry_after)
    return 0.0
