"""Public names of a folder that are loaded when they are used.

For an `__init__` whose folder holds both small parts that many import and a large one that few run: importing a part
runs the `__init__`, and must not load the rest. Names of modules inside the folder are found by Python itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for `package`: each name and the module that it comes from."""

    def found(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return found
