"""The engine, fed once from a list of everything: for questions, not for decisions.

`shoal why` asks it with the asker's own rights; the controller never uses it (it keeps its engine up to date by
watches).
"""

from __future__ import annotations

import asyncio

from shoal.api import kinds
from shoal.api.appwrapper import AppWrapper, QuotaSubtree, dialect
from shoal.api.codec import typed
from shoal.api.gang import GANG_UID
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.appwrapper.facts import Facts
from shoal.controllers.appwrapper.quota import subtree_fact
from shoal.controllers.appwrapper.settings import AppWrapperSettings
from shoal.controllers.appwrapper.wrapped import gang_key
from shoal.engine import Engine, Settings
from shoal.engine.facts import node_fact, pod_fact
from shoal.kube.client import Client
from shoal.kube.errors import NotFound


async def survey(client: Client, obj: Json, now: int) -> tuple[Engine, str]:
    """An engine that knows what the asker may read, planned once, and the key of this AppWrapper in it."""
    nodes, pods, wrappers, legacy, subtrees = await asyncio.gather(
        _all(client, kinds.NODE, dict),
        _all(client, kinds.POD, dict),
        _all(client, kinds.APP_WRAPPER, AppWrapper),
        _all(client, kinds.APP_WRAPPER_LEGACY, AppWrapper),
        _all(client, kinds.QUOTA_SUBTREE, QuotaSubtree),
    )
    engine = Engine(Settings(quota=True))
    facts = Facts(AppWrapperSettings(trust_unstamped=True))
    for node in nodes:
        engine.update(node_fact(node))
    known = {wrapper.metadata.uid for wrapper in (*wrappers, *legacy)}
    for pod in pods:
        marked = (pod["metadata"].get("annotations") or {}).get(GANG_UID, "")
        engine.update(pod_fact(pod, gang=marked if marked in known else ""))
    for subtree in subtrees:
        engine.update(subtree_fact(f"{subtree.metadata.namespace}/{subtree.metadata.name}", subtree))
    for wrapper in (*wrappers, *legacy):
        if dialect(wrapper) is not None:
            engine.update(facts.gang(wrapper, now))
    engine.plan(now)
    return engine, gang_key(typed(obj, AppWrapper))


async def _all(client: Client, kind: Kind, type: type) -> list:  # type: ignore[type-arg]
    try:
        return await client.list(kind, type=type)
    except NotFound:
        return []
