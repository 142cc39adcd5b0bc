"""Patches that cannot be applied, and the refusals that the server answers them with."""

from __future__ import annotations

from shoal.errors import ShoalError
from shoal.local.apiserver.primitives.status import Refused, apply_conflict, cause, invalid

_REFUSED = "the server rejected our request due to an error in our request"


class PatchError(ShoalError):
    """A patch that cannot be applied: `code` and `reason` are those of the Status to answer with."""

    def __init__(self, code: int, reason: str, message: str, causes: list[dict[str, str]] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = causes or []


def malformed(message: str) -> PatchError:
    """The patch itself is not one: 400."""
    return PatchError(400, "BadRequest", message)


def inapplicable(message: str) -> PatchError:
    """A good patch that does not fit this object: 422."""
    return PatchError(422, "Invalid", f"{_REFUSED}: {message}")


def patch_unfit(message: str) -> Refused:
    """A patch whose outcome is not an object of this kind: 422, as Kubernetes answers."""
    return invalid("", "", "", [cause("FieldValueInvalid", f"Invalid value: {message}", "patch")])


def patch_refused(error: PatchError) -> Refused:
    if error.reason == "Conflict":
        return apply_conflict(error.message, list(error.causes))
    if error.reason == "Invalid":
        return Refused(
            error.code, error.reason, error.message, details={"causes": error.causes} if error.causes else {}
        )
    return Refused(error.code, error.reason, error.message)
