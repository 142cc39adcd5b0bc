"""What Kubernetes' texts and objects are made of: names, patterns, formats, paths, the fields of built-in kinds, and
the words for what is wrong with them. Knows nothing else of the server.
"""

from shoal.local.apiserver.primitives.field_errors import InvalidField
from shoal.local.apiserver.primitives.status import Refused
from shoal.local.apiserver.primitives.values import clone, mark, same

__all__ = ["InvalidField", "Refused", "clone", "mark", "same"]
