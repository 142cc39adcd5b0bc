"""What a row of `shoal get` reads of an object, as the codec decodes it: everything else of a long list is passed over.

A list of thousands of gangs is mostly pod templates that no table shows. Each shape here is a plain dictionary with
fewer fields, so that the same functions read a whole object and a listed one. A field that `rows` begins to read must
be added here; `tests/unit/sdk/test_listed.py` compares rows of both.
"""

from __future__ import annotations

from typing import Any, TypedDict


class ListedMeta(TypedDict, total=False):
    """All but the server's record of who wrote which field."""

    name: Any
    namespace: Any
    uid: Any
    creationTimestamp: Any
    deletionTimestamp: Any
    generation: Any
    labels: Any
    annotations: Any
    ownerReferences: Any


class ListedSpec(TypedDict, total=False):
    """What a state or a priority depends on, of every kind of gang."""

    active: Any
    clusterSelector: Any
    enableInTreeAutoscaling: Any
    managedBy: Any
    nodeName: Any
    priority: Any
    queueName: Any
    schedulerName: Any
    suspend: Any


class Listed(TypedDict, total=False):
    """An object whose status is small beside its spec."""

    apiVersion: Any
    kind: Any
    metadata: ListedMeta
    spec: ListedSpec | None
    status: Any
