"""How a field of a typed kind says what its CRD schema promises, and the field types that many kinds share.

A `Rule` travels in `Annotated[...]`: the CRD generator and the strict checker read it, decoding ignores it. That is on
purpose: a stored object that breaks a rule must still decode, so that it can be reported instead of stopping a watch.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from shoal.api.meta import Condition, Part


class Rule:
    """Keywords of the CRD schema for one field, for example `Rule(minimum=0, default=1)`.

    `x_kubernetes_…` names become `x-kubernetes-…`. `cel` is a list of (rule, message) pairs. `required` puts the field
    into its parent's required list although decoding tolerates its absence. `shape` names the built-in type inside a
    raw field, so that the strict checker knows its fields although the CRD leaves them open.
    """

    __slots__ = ("cel", "keywords", "required", "shape")

    def __init__(
        self, *, required: bool = False, cel: tuple[tuple[str, str], ...] = (), shape: str = "", **keywords: Any
    ) -> None:
        self.required = required
        self.cel = cel
        self.shape = shape
        self.keywords = {_keyword(name): value for name, value in keywords.items()}


def _keyword(name: str) -> str:
    if name.startswith("x_kubernetes_"):
        return name.replace("_", "-")
    head, *rest = name.rstrip("_").split("_")
    return head + "".join(part.capitalize() for part in rest)


class PartialMeta(Part):
    """The labels and annotations of a template; nothing else of its metadata is read."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


ABSENT = msgspec.Raw()
"""Default of every raw field: falsy, and left out when encoded."""

QUANTITY_PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)

Amount = Annotated[
    str | int | float,
    Rule(
        any_of=[{"type": "integer"}, {"type": "string"}],
        pattern=QUANTITY_PATTERN,
        x_kubernetes_int_or_string=True,
    ),
]
"""A quantity as written; `shoal.api.quantity` reads it. A YAML number arrives as a number."""

Resources = dict[str, Amount]
"""A ResourceList."""

IntOrString = Annotated[
    str | int, Rule(any_of=[{"type": "integer"}, {"type": "string"}], x_kubernetes_int_or_string=True)
]

OpaqueMap = Annotated[msgspec.Raw, Rule(type="object", x_kubernetes_preserve_unknown_fields=True)]
"""An object kept as bytes: stored whole, not read here."""

OpaqueList = Annotated[
    msgspec.Raw,
    Rule(type="array", items={"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""A list of objects kept as bytes."""

StringList = Annotated[msgspec.Raw, Rule(type="array", items={"type": "string"})]
"""A list of strings kept as bytes."""

PodTemplate = Annotated[
    msgspec.Raw, Rule(type="object", x_kubernetes_preserve_unknown_fields=True, shape="PodTemplateSpec")
]
"""A PodTemplateSpec kept as bytes. The CRD leaves it open; `shoal.api.strict` knows its fields."""

Embedded = Annotated[
    msgspec.Raw,
    Rule(type="object", x_kubernetes_preserve_unknown_fields=True, x_kubernetes_embedded_resource=True, shape="Object"),
]
"""A whole object of any kind kept as bytes; the API server asks for its apiVersion and kind."""

Timestamp = Annotated[str, Rule(format="date-time")]
Int32 = Annotated[int, Rule(format="int32")]
Int64 = Annotated[int, Rule(format="int64")]

Conditions = Annotated[
    tuple[Condition, ...],
    Rule(max_items=16, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["type"]),
]
"""Standard conditions, one per type."""

Immutable = (("self == oldSelf", "field is immutable"),)
"""The CEL rule of a field that keeps its first value."""

__all__ = [
    "ABSENT",
    "Amount",
    "Conditions",
    "Embedded",
    "Immutable",
    "Int32",
    "Int64",
    "IntOrString",
    "OpaqueList",
    "OpaqueMap",
    "PartialMeta",
    "PodTemplate",
    "Resources",
    "Rule",
    "StringList",
    "Timestamp",
]
