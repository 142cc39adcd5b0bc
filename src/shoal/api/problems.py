"""What validation says about a field: where, what kind of problem, and what to do.

Every `validate_…` function returns a list of these, all problems and not only the first. Types are those of Kubernetes'
field errors, because other software reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from shoal.api.quantity import parse
from shoal.errors import BadInput

ProblemType = Literal["Invalid", "Required", "Duplicate", "NotSupported", "Forbidden", "NotFound", "TooMany", "Unknown"]


class FieldError(msgspec.Struct, frozen=True):
    """One problem: `path` as kubectl prints it, such as `spec.workerGroupSpecs[0].groupName`."""

    path: str
    message: str
    type: ProblemType = "Invalid"

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def check_amounts(path: str, resources: Mapping[str, Any] | None) -> list[FieldError]:
    """Every quantity of a ResourceList parses and is not negative."""
    errors = []
    for name, text in (resources or {}).items():
        errors += check_amount(f"{path}[{name}]", text)
    return errors


def check_amount(path: str, text: Any) -> list[FieldError]:
    try:
        negative = parse(text).nano < 0
    except BadInput as error:
        return [FieldError(path, str(error))]
    return [FieldError(path, "must be greater than or equal to 0")] if negative else []


def joined(errors: list[FieldError]) -> str:
    """All problems in one line, as conditions and events carry them."""
    return "; ".join(str(error) for error in errors)
