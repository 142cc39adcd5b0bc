"""Object metadata, conditions and lists: the parts that every kind shares.

Typed kinds decode only what a controller reads. They are views: writes go out as patches of the fields that changed, so
what we never read is never altered.
"""

from __future__ import annotations

from typing import Any, dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Part(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, kw_only=True, gc=False):
    """Base of every typed shape: camelCase on the wire, defaults left out, frozen."""


class OwnerReference(Part):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Part):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    finalizers: tuple[str, ...] | None = None


class Object(Part):
    """Any object, decoded as far as its metadata. Typed kinds extend it with `spec` and `status`."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


class Condition(Part):
    """metav1.Condition."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0


class LabelRequirement(Part):
    key: str
    operator: str = ""
    values: tuple[str, ...] | None = None


class LabelSelector(Part):
    """metav1.LabelSelector. None of it set matches everything; a missing selector matches nothing."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[LabelRequirement, ...] | None = None


Json = dict[str, Any]
"""An object as decoded JSON, where all of it must survive."""


def controller_of(metadata: ObjectMeta) -> OwnerReference | None:
    """The one owner that controls this object, if any."""
    for reference in metadata.owner_references or ():
        if reference.controller:
            return reference
    return None
