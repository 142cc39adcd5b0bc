"""Warnings about jobs that hold until something changes: told once as an event, and remembered for `why`."""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.controllers.queues.context import QueueContext


class Warnings:
    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self._told: dict[str, tuple[str, str]] = {}
        """The last warning about a job, by UID."""

    def tell(self, job: Json, reason: str, message: str) -> None:
        """Not repeated with every look."""
        if self._told.get(job["metadata"]["uid"]) != (reason, message):
            self._told[job["metadata"]["uid"]] = (reason, message)
            self._context.tell(job, "Warning", reason, message)

    def last(self, uid: str) -> str:
        """What keeps the job with this UID from being queued as it is written; empty where nothing does."""
        return self._told.get(uid, ("", ""))[1]

    def over(self, uid: str, reason: str) -> None:
        """What this reason told does not hold any more; if it comes again it is told again."""
        if self._told.get(uid, ("", ""))[0] == reason:
            self.forget(uid)

    def forget(self, uid: str) -> None:
        self._told.pop(uid, None)
