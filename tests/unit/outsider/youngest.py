"""A policy as another package would bring it: one file, named by its import path."""

from __future__ import annotations

from typing import Any


class Youngest:
    name = "youngest-first"

    def order(self, gang: Any) -> tuple[Any, ...]:
        return (-gang.queued_at, gang.uid)

    def may_preempt(self, preemptor: Any, victim: Any) -> bool:
        return False
