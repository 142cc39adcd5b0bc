"""The kinds that Shoal reads and writes: typed shapes, exact amounts, CRDs. No I/O, nothing from other rooms.

Start at: `kinds` (names), `registry` (types by name), `codec` (typed and raw), `quantity` and `pods` (amounts),
`times`, `manifests` and `strict` (whole files), `crds` (what gets installed). One module per API group holds its types.
"""

from shoal.api.kind import Key, Kind
from shoal.api.meta import Condition, Json, Object, ObjectMeta

__all__ = ["Condition", "Json", "Key", "Kind", "Object", "ObjectMeta"]
