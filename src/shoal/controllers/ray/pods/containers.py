"""Small edits of a container: a variable added unless the user has it, a volume mounted unless something is there.

Called by the builders of pods, sidecars and jobs. All of them change the container they are given, which must be a
copy.
"""

from __future__ import annotations

from shoal.api.meta import Json


def field(path: str) -> Json:
    return {"fieldRef": {"fieldPath": path}}


def secret(name: str, key: str) -> Json:
    return {"secretKeyRef": {"name": name, "key": key}}


def has_env(container: Json, variable: str) -> bool:
    return any(entry.get("name") == variable for entry in container.get("env") or ())


def put_env(container: Json, variable: str, value: str | Json) -> None:
    """Set a variable that is ours: it replaces whatever was there under that name."""
    kept = [entry for entry in container.get("env") or [] if entry.get("name") != variable]
    container["env"] = [*kept, _entry(variable, value)]


def keep_env(container: Json, variable: str, value: str | Json) -> None:
    """Set a variable unless the user already did."""
    if not has_env(container, variable):
        put_env(container, variable, value)


def mounted_at(container: Json, path: str) -> str | None:
    """The name of the volume mounted at a path."""
    for mount in container.get("volumeMounts") or ():
        if str(mount.get("mountPath") or "").rstrip("/") == path:
            return str(mount.get("name"))
    return None


def mount(container: Json, volume: str, path: str, **more: object) -> None:
    """Mount a volume at a path, unless something is mounted there."""
    if mounted_at(container, path) is None:
        container["volumeMounts"] = [
            *(container.get("volumeMounts") or []),
            {"name": volume, "mountPath": path, **more},
        ]


def add_volume(pod_spec: Json, volume: Json) -> None:
    """Add a volume, unless one of that name exists."""
    volumes = pod_spec.get("volumes") or []
    if all(existing.get("name") != volume["name"] for existing in volumes):
        pod_spec["volumes"] = [*volumes, volume]


def _entry(variable: str, value: str | Json) -> Json:
    return {"name": variable, "value": value} if isinstance(value, str) else {"name": variable, "valueFrom": value}


def same_limits(amounts: dict[str, str]) -> Json:
    """Resources of a container that gets what it asks for and no more."""
    return {"limits": dict(amounts), "requests": dict(amounts)}
