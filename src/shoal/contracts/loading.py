"""An object by its import path, `package.module:object`; a class is made into an object."""

from __future__ import annotations

import importlib
from typing import Any

from shoal.errors import BadInput


def load(path: str) -> Any:
    module, colon, name = path.partition(":")
    if not colon:
        raise BadInput(f"{path!r} must read package.module:object")
    try:
        found = getattr(importlib.import_module(module), name)
        return found() if isinstance(found, type) else found
    except (ImportError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        raise BadInput(f"{path} cannot be loaded: {error}") from error
