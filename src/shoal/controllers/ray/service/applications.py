"""Serve's applications as a dashboard reports them, and the configuration that is sent to it. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.api.log_text import headline
from shoal.api.meta import Json
from shoal.controllers.ray import guarded_yaml

RUNNING = "RUNNING"
UNNAMED = "default"
_MOST_TOLD, _LONGEST_REASON = 3, 200


def statuses(applications: Json) -> Json:
    """As they are stored, by name."""
    return {str(name or UNNAMED): _application(found) for name, found in applications.items()}


def is_ready(stored: Json) -> bool:
    """At least one application, and every one of them running; deployments do not count."""
    return bool(stored) and all(one.get("status") == RUNNING for one in stored.values())


def why_not_ready(stored: Json) -> str:
    """Which applications do not run, and why, for one line of a message; empty before Serve knows any."""
    waiting = [(name, one) for name, one in sorted(stored.items()) if one.get("status") != RUNNING]
    told = [
        f"{name} is {one.get('status') or 'unknown'}" + (f" ({why})" if (why := _first_words(one)) else "")
        for name, one in waiting[:_MOST_TOLD]
    ]
    if len(waiting) > _MOST_TOLD:
        told.append(f"{len(waiting) - _MOST_TOLD} more")
    return ", ".join(told)


def _first_words(stored: Json) -> str:
    return headline(str(stored.get("message") or ""), _LONGEST_REASON)


def must_submit(sent: str | None, wanted: str, applications: Json) -> bool:
    """`sent` is the text that this cluster got last, None when that is not known. Text is compared, not meaning."""
    return not sent or not applications or sent != wanted


def request_body(config: str, target_capacity: int | None = None) -> bytes:
    """The configuration as JSON. Raises BadInput with the line of what is not YAML."""
    data: dict[str, Any] = guarded_yaml.parse(config, "spec.serveConfigV2", may_be_empty=True).data
    if target_capacity is not None:
        data = {**data, "target_capacity": target_capacity}
    return msgspec.json.encode(data)


def _application(found: Any) -> Json:
    known = found if isinstance(found, dict) else {}
    deployments = known.get("deployments")
    stored = _told(known)
    if isinstance(deployments, dict) and deployments:
        stored["serveDeploymentStatuses"] = {
            str(name): _told(one if isinstance(one, dict) else {}) for name, one in deployments.items()
        }
    return stored


def _told(found: Json) -> Json:
    told: Json = {"status": str(found.get("status") or "")}
    if found.get("message"):
        told["message"] = str(found["message"])[:2000]
    return told
