"""MCAD's quota trees: QuotaSubtrees as facts, the labels that seat an AppWrapper in them, and what is used, published.

Labels: for every tree in force that an AppWrapper does not name, `<tree>: default` is written on it, as MCAD does.
Status: how much of each node is held, by how many gangs, written at most once in a while and only when it differs. A
QuotaSubtree is read by many tenants: their gangs are not named there, but to those who ask and may read them.
"""

from __future__ import annotations

import logging

from shoal.api.appwrapper import AppWrapper, QuotaSubtree
from shoal.api.codec import merge_patch, plain
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.quantity import amounts, show
from shoal.controllers.appwrapper.caches import WrapperCaches
from shoal.engine import Engine
from shoal.engine.mcad import NodeUse
from shoal.engine.model import Amounts, QuotaNode
from shoal.engine.model import QuotaSubtree as SubtreeFact
from shoal.kube.client import Client
from shoal.kube.errors import Conflict, KubeError, NotFound
from shoal.kube.writes import Writer

log = logging.getLogger(__name__)

TREE_LABEL = "tree"
DEFAULT_LEAF = "default"


def subtree_fact(key: str, subtree: QuotaSubtree) -> SubtreeFact:
    """Raises BadInput for an amount that cannot be read."""
    return SubtreeFact(
        key=key,
        tree=(subtree.metadata.labels or {}).get(TREE_LABEL, ""),
        parent=subtree.spec.parent,
        nodes=tuple(
            QuotaNode(
                name=child.name,
                quota=amounts(child.quotas.requests),
                hard=child.quotas.hard_limit,
                disabled=child.quotas.disabled,
            )
            for child in subtree.spec.children or ()
        ),
    )


def missing_labels(wrapper: AppWrapper, trees: tuple[str, ...]) -> dict[str, str]:
    """The designations this AppWrapper lacks."""
    known = wrapper.metadata.labels or {}
    return {tree: DEFAULT_LEAF for tree in trees if tree not in known}


class QuotaStatus:
    """Publishes what the engine knows of each quota node."""

    def __init__(self, writer: Writer, caches: WrapperCaches, engine: Engine) -> None:
        self._writer = writer
        self._caches = caches
        self._engine = engine
        self._with_subresource: set[Kind] = set()

    async def publish(self) -> bool:
        """Bring every QuotaSubtree's status up to date; False when one could not be written."""
        use = self._engine.quota_use()
        done = True
        for kind, cache in self._caches.subtrees.items():
            for subtree in cache.list():
                done = await self._publish(kind, subtree, use) and done
        return done

    async def _publish(self, kind: Kind, subtree: QuotaSubtree, use: dict[tuple[str, str], NodeUse]) -> bool:
        tree = (subtree.metadata.labels or {}).get(TREE_LABEL, "")
        change = merge_patch(plain(subtree.status), status_of(subtree, tree, use))
        if not change:
            return True
        try:
            stored = await self._write(kind, subtree, change)
        except NotFound:
            return True
        except Conflict:
            return False
        except KubeError as error:
            log.warning("quota status of %s/%s: %s", subtree.metadata.namespace, subtree.metadata.name, error)
            return False
        self._caches.subtrees[kind].note_write(stored)
        return True

    async def _write(self, kind: Kind, subtree: QuotaSubtree, change: Json) -> QuotaSubtree:
        """Through the endpoint that this cluster's definition offers: the object itself, or its status."""
        metadata = subtree.metadata
        body = {"metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version}, "status": change}
        if kind not in self._with_subresource:
            stored = await self._send(kind, subtree, body, None)
            if stored.status != subtree.status:
                return stored
            self._with_subresource.add(kind)
        return await self._send(kind, subtree, body, "status")

    async def _send(self, kind: Kind, subtree: QuotaSubtree, body: Json, subresource: str | None) -> QuotaSubtree:
        name, namespace = subtree.metadata.name, subtree.metadata.namespace

        async def write(server: Client) -> QuotaSubtree:
            stored: QuotaSubtree = await server.patch(
                kind, name, namespace, body, subresource=subresource, type=QuotaSubtree
            )
            return stored

        return await self._writer.send(write)


def status_of(subtree: QuotaSubtree, tree: str, use: dict[tuple[str, str], NodeUse]) -> Json:
    """Per child: what is allocated below it, what of that is borrowed from above it, and by how many gangs."""
    children = []
    total: Amounts = {}
    for child in subtree.spec.children or ():
        found = use.get((tree, child.name), NodeUse())
        for resource, amount in found.allocated.items():
            total[resource] = total.get(resource, 0) + amount
        entry: Json = {"name": child.name, "allocated": {"requests": _shown(found.allocated)}}
        if child.namespace:
            entry["namespace"] = child.namespace
        if found.borrowed:
            entry["borrowed"] = {"requests": _shown(found.borrowed)}
        if found.holders:
            entry["consumerCount"] = len(found.holders)
        children.append(entry)
    status: Json = {"children": children} if children else {}
    if total:
        status["totalAllocation"] = {"allocated": {"requests": _shown(total)}}
    return status


def consumers(subtree: QuotaSubtree, use: dict[tuple[str, str], NodeUse]) -> dict[str, tuple[str, ...]]:
    """Per child: keys of the gangs that are charged there, largest first."""
    tree = (subtree.metadata.labels or {}).get(TREE_LABEL, "")
    return {child.name: use.get((tree, child.name), NodeUse()).holders for child in subtree.spec.children or ()}


def _shown(held: Amounts) -> dict[str, str]:
    return {resource: show(resource, amount) for resource, amount in sorted(held.items()) if amount}
