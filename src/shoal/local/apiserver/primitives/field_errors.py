"""Field errors as Kubernetes words them: where, what kind of fault, and a message that a user can act on.

Made by schema and rule validation of custom kinds and by the checks of built-in kinds; the server turns a list of them
into the causes of an Invalid answer.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

FaultType = Literal["Required", "Invalid", "TypeInvalid", "NotSupported", "TooLong", "TooMany", "TooFew", "Duplicate",
                    "Forbidden", "NotFound", "InternalError"]  # fmt: skip

_WORDS: dict[str, str] = {
    "Required": "Required value", "Invalid": "Invalid value", "TypeInvalid": "Invalid value",
    "NotSupported": "Unsupported value", "TooLong": "Too long", "TooMany": "Too many", "TooFew": "Too few",
    "Duplicate": "Duplicate value", "Forbidden": "Forbidden", "NotFound": "Not found",
    "InternalError": "Internal error",
}  # fmt: skip

Path = tuple[Any, Any] | None
"""Where we are, as a chain of (parent, name or index): cheap to extend, written out only when something is wrong."""


class MapKey(str):
    """A step into a map, where keys are data: written in brackets."""


class OpenKey(str):
    """A step into a map as schema faults write it, with a dot; `bracketed` writes it as other faults do."""


class InvalidField(msgspec.Struct, frozen=True):
    """One fault. `message` has no path in it; `str()` puts it in front."""

    path: str
    type: FaultType
    message: str
    owner: tuple[Any, ...] = ()  # tokens of the value whose rule was broken: what ratcheting compares

    @property
    def reason(self) -> str:
        """The cause's reason in a Status."""
        return self.type if self.type == "InternalError" else f"FieldValue{self.type}"

    @property
    def cause(self) -> dict[str, str]:
        return {"reason": self.reason, "message": self.message, "field": self.path}

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def tokens(path: Path) -> tuple[Any, ...]:
    found = []
    while path is not None:
        path, token = path
        found.append(token)
    return tuple(reversed(found))


def text(path: Path) -> str:
    """`spec.items[0].name`; the root has no name, and Kubernetes prints `<nil>` for it."""
    written = ""
    for token in tokens(path):
        if isinstance(token, (int, MapKey)):
            written += f"[{token}]"
        else:
            written += f".{token}" if written else token
    return written or "<nil>"


def bracketed(path: Path) -> Path:
    if path is None:
        return None
    parent, token = path
    return bracketed(parent), MapKey(token) if isinstance(token, OpenKey) else token


def shown(value: Any) -> str:
    """A value inside a message: text quoted, the rest as JSON, never endless."""
    try:
        written = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    except (TypeError, ValueError):
        written = repr(value)
    return written if len(written) <= 1000 else written[:997] + "..."


def fault(
    path: Path, kind: FaultType, value: Any = None, detail: str = "", *, owner: Path | Literal[False] = False
) -> InvalidField:
    """An error in the words of its kind; `owner` is the value that broke the rule where that is not `path`."""
    return written_fault(text(path), kind, value, detail, owner=tokens(path if owner is False else owner))


def written_fault(
    path: str, kind: FaultType, value: Any = None, detail: str = "", *, owner: tuple[Any, ...] = ()
) -> InvalidField:
    """The same, for callers that have the path as text."""
    message = _WORDS[kind]
    if kind in ("Invalid", "TypeInvalid", "NotSupported", "Duplicate", "NotFound", "TooMany", "TooFew"):
        message += f": {shown(value)}"
    if detail:
        message += f": {detail}"
    return InvalidField(path, kind, message, owner)


def required(path: str, detail: str = "") -> InvalidField:
    return written_fault(path, "Required", detail=detail)


def invalid(path: str, value: Any, detail: str) -> InvalidField:
    return written_fault(path, "Invalid", value, detail)


def forbidden(path: str, detail: str) -> InvalidField:
    return written_fault(path, "Forbidden", detail=detail)


def duplicate(path: str, value: Any) -> InvalidField:
    return written_fault(path, "Duplicate", value)


def not_supported(path: str, value: Any, allowed: list[Any] | tuple[Any, ...]) -> InvalidField:
    return written_fault(path, "NotSupported", value, supported(allowed))


def too_long(path: str, most: int) -> InvalidField:
    return written_fault(path, "TooLong", detail=f"may not be more than {most} {'byte' if most == 1 else 'bytes'}")


def supported(allowed: list[Any] | tuple[Any, ...]) -> str:
    names = [value if isinstance(value, str) else shown(value) for value in allowed]
    return "supported values: " + ", ".join(json.dumps(name, ensure_ascii=False) for name in names)
