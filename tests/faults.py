"""The fault rows: how a test says which row it proves, and how that proof is made.

A fault test is named `test_f017_…`; its docstring reads `F17: trigger. Holds: what stays true.` and
`@proven(without=…)` names the switch that takes its protection away. `make faults-proof` runs each such test with
the protection removed and expects it to fail; `make faults` writes docs/internals/faults.md from the docstrings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

F = TypeVar("F", bound=Callable[..., Any])
Switch = Callable[[pytest.MonkeyPatch], None]


def proven(*, without: Switch) -> Callable[[F], F]:
    """Declare the switch that removes the protection: a function that monkeypatches it away."""

    def mark(test: F) -> F:
        test.shoal_without = without  # type: ignore[attr-defined]
        return test

    return mark
