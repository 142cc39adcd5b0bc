"""Pods as the scheduler and the node autoscaler keep them: small, because there may be ten thousand.

The spec stays as the bytes that came; it is opened for pods that wait, and once for each that is bound.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.api.meta import Json, Object, Part

TERMINAL = ("Succeeded", "Failed")


class SeenCondition(Part):
    type: str = ""
    status: str = ""
    message: str = ""


class TrackedStatus(Part):
    phase: str = ""
    conditions: tuple[SeenCondition, ...] | None = None

    def turned_away(self) -> str | None:
        """Why the scheduler found no node; None when it did not say so."""
        for one in self.conditions or ():
            if one.type == "PodScheduled" and one.status == "False":
                return one.message
        return None


class TrackedPod(Object):
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: TrackedStatus = TrackedStatus()

    @property
    def is_terminal(self) -> bool:
        return self.status.phase in TERMINAL

    @property
    def node(self) -> str:
        return _WHERE.decode(self.spec).node_name or ""

    def opened(self) -> Json:
        """As the API server would show metadata and spec; the status is left out."""
        return {"apiVersion": "v1", "kind": "Pod", "metadata": self.head(), "spec": self.whole_spec()}

    def head(self) -> Json:
        found: Json = msgspec.to_builtins(self.metadata)
        return found

    def whole_spec(self) -> Json:
        found: Any = msgspec.json.decode(self.spec)
        return found if isinstance(found, dict) else {}


class _Where(Part):
    node_name: str | None = None


_WHERE = msgspec.json.Decoder(_Where)
