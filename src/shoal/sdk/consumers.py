"""Which gangs use a quota tree, as far as the client's user may read them: asked of the leading controller.

The QuotaSubtree itself shows numbers alone, because tenants share it. Used by `shoal why quotasubtree/NAME`.
"""

from __future__ import annotations

from typing import Any

from shoal.api import kinds
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.errors import NotFound
from shoal.sdk import asking

QUOTAS = (kinds.QUOTA_SUBTREE, kinds.QUOTA_SUBTREE_LEGACY)


async def quota_consumers(client: Client, name: str, namespace: str, *, fresh: bool = False) -> dict[str, Any]:
    """By node of the tree: names of gangs, how many are hidden, how many more there are."""
    for kind in QUOTAS:
        try:
            await client.get(kind, name, namespace)
        except NotFound:
            continue
        try:
            answer = await asking.ask(client, kind, name, namespace, fresh=fresh, about="Consumers")
        except asking.NoAnswer as error:
            raise ShoalError(f"the gangs that use QuotaSubtree {name} are not known: {error}") from None
        named = {"consumers": answer.get("consumers") or [], "namedBy": answer.get("namedBy", "")}
        return {"kind": kind.kind, "namespace": namespace, "name": name, **named}
    raise ShoalError(f"there is no QuotaSubtree {name} in namespace {namespace}")
