"""What a gang lacks, as fields of stored and answered explanations: amounts as people write them."""

from __future__ import annotations

from shoal.api.quantity import show
from shoal.engine.model import Shortfall


def fields_of(shortfall: Shortfall) -> dict[str, str]:
    """Everything but the message. `fragmentation` counts pods that find no node."""
    name = "pods" if shortfall.kind == "fragmentation" else shortfall.resource
    amounts = (shortfall.needed, shortfall.available, shortfall.missing)
    needed, available, missing = (show(name, value) for value in amounts) if name else ("", "", "")
    return {
        "kind": shortfall.kind,
        "resource": name,
        "needed": needed,
        "available": available,
        "missing": missing,
        "place": shortfall.place,
    }
