"""A Workload's status while it is being thought about: conditions in, one patch out.

Made from the stored object at the start of a look and thrown away after its write. It is plain JSON, because fields
that no type knows must survive the patch. Times of conditions change only with their status, never run backwards and
never lie before the object was made.
"""

from __future__ import annotations

from typing import Any, Literal

from shoal.api.codec import copied, difference
from shoal.api.kueue_names import bounded
from shoal.api.meta import Json
from shoal.api.times import parse_time, seconds_text
from shoal.controllers.queues.stored import StoredWorkload

SECOND = 1_000_000
EventType = Literal["Normal", "Warning"]


class Draft:
    def __init__(self, obj: Json, now: int) -> None:
        self.obj = obj
        self.now = now
        self.before: Json = obj.get("status") or {}
        self.status: Json = copied(self.before) if self.before else {}
        self.annotations: dict[str, str] = {}
        """What is stored of this change beside the status, and before it."""
        self.told: list[tuple[EventType, str, str]] = []
        """Events that tell of these changes, once they are stored."""

    @property
    def change(self) -> Json:
        """The merge patch of the status; empty when nothing changed."""
        return difference(self.before, self.status)

    # --- conditions

    def condition(self, kind: str) -> Json | None:
        for one in self.status.get("conditions") or ():  # asked dozens of times in a look
            if one.get("type") == kind:
                found: Json = one
                return found
        return None

    def is_true(self, kind: str) -> bool:
        found = self.condition(kind)
        return found is not None and found.get("status") == "True"

    def reason(self, kind: str) -> str:
        return str((self.condition(kind) or {}).get("reason") or "")

    def message(self, kind: str) -> str:
        return str((self.condition(kind) or {}).get("message") or "")

    def since(self, kind: str) -> int:
        """When the condition took its present status."""
        text = (self.condition(kind) or {}).get("lastTransitionTime")
        return parse_time(text) if text else 0

    def put(self, kind: str, holds: bool, reason: str, message: str) -> None:
        status = "True" if holds else "False"
        found = self.condition(kind)
        when = found.get("lastTransitionTime") if found and found.get("status") == status else None
        made = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": bounded(message),
            "lastTransitionTime": when or self.moment(found),
            "observedGeneration": self.obj["metadata"].get("generation", 1),
        }
        if found is not None:
            same = all(found.get(name) == made[name] for name in ("status", "reason", "message"))
            if not same:
                found.clear()
                found.update(made)
        else:
            self.status.setdefault("conditions", []).append(made)

    def drop(self, kind: str) -> None:
        kept = [one for one in self.status.get("conditions") or () if one.get("type") != kind]
        self.set("conditions", kept)

    def moment(self, found: Json | None = None) -> str:
        """Now, but not before what was written here last, nor before the object was made."""
        texts = [(found or {}).get("lastTransitionTime"), self.obj["metadata"].get("creationTimestamp")]
        return seconds_text(max([self.now, *(parse_time(text) for text in texts if text)]))

    def tell(self, type: EventType, reason: str, message: str) -> None:
        """Tell people once this is stored, and only then."""
        self.told.append((type, reason, message))

    # --- anything else

    def set(self, name: str, value: Any) -> None:
        """Empty values are left out."""
        if value:
            self.status[name] = value
        else:
            self.status.pop(name, None)

    def get(self, name: str) -> Any:
        return self.status.get(name)


class WorkloadDraft(Draft):
    """The same with the Workload itself, as it is stored."""

    def __init__(self, workload: StoredWorkload, now: int) -> None:
        super().__init__(workload.raw, now)
        self.workload = workload
        self.preempted_by = ""
        """The ClusterQueue of the gang that it makes way for, where that was decided just now."""
        self.preemptor: Json | None = None
        """The Workload that it makes way for, where that was decided just now."""
