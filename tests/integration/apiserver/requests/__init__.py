"""The same requests, good and bad, for the embedded server and the real one: a room for each topic.

Names may repeat across steps: order matters, both servers get the same sequence.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.integration.apiserver.requests import (
    access,
    applying,
    basics,
    corners,
    custom,
    deletion,
    judged,
    lifecycle,
    odd,
    parts,
    patching,
    pods,
    rights,
    schemas,
    services,
    workloads,
)
from tests.integration.apiserver.requests.step import Step, post

PARTS = (
    basics.basics,
    basics.metadata_rules,
    basics.selectors,
    basics.lists,
    basics.patches,
    basics.apply,
    pods.pods,
    workloads.workloads,
    services.services,
    custom.custom,
    deletion.deletion,
    deletion.subresources,
    access.access,
    odd.odd_paths,
    odd.formats,
    odd.odd_objects,
    applying.applying,
    patching.patching,
    schemas.schemas,
    lifecycle.lifecycle,
    parts.parts,
    judged.judged,
    corners.corners,
    rights.rights,
)

__all__ = ["Step", "steps"]


def steps() -> Iterator[Step]:
    yield post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "diff"}})
    for part in PARTS:
        yield from part()
