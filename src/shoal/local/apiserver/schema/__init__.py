"""Structural schemas of custom kinds, compiled to closures: types, pruning, defaults, value rules."""

from shoal.local.apiserver.schema.structural import Structural, compiled

__all__ = ["Structural", "compiled"]
