"""What the server refuses: wrong types, metadata, fields of built-in kinds. The verbs use `Checks`."""

from shoal.local.apiserver.validation.checks import Checks

__all__ = ["Checks"]
