"""In-memory servers that begin with kinds defined: hundreds of tests start one, and defining takes longest.

The first server of a process is told of the definitions; those after it find them stored, as after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.api.kinds import CRD
from shoal.kube.transport import Request
from shoal.local.apiserver import Server
from shoal.local.apiserver.storage.collection import StoredObject

_stored: dict[tuple[bytes, ...], list[StoredObject]] = {}


async def start_with(server: Server, definitions: Sequence[bytes]) -> None:
    """Start it with these CRDs, each as JSON."""
    known = _stored.get(tuple(definitions))
    storage = server.storage
    for record in known or ():
        storage.collection(CRD.resource).load(record)
        storage.revision = storage.committed = storage.floor = max(storage.floor, record.revision)
    await server.start()
    if known is not None:
        return
    for definition in definitions:
        answer = await server.transport().send(Request(method="POST", path=CRD.path(), body=definition))
        assert answer.status == 201, answer.body
    _stored[tuple(definitions)] = storage.collection(CRD.resource).records()
