"""Packages that the core package leaves out, and that a server of our own cannot do without."""

from __future__ import annotations

from importlib.util import find_spec

LOCAL_PACKAGES = {"cel_expr_python": "cel-expr-python", "re2": "google-re2", "rich": "rich"}
"""Modules, and the packages that bring them."""


def missing_packages() -> list[str]:
    return [package for module, package in LOCAL_PACKAGES.items() if find_spec(module) is None]
