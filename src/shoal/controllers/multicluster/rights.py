"""No right is lent across clusters: an AppWrapper is sent to a member only with what its creator may create at the hub.

A member creates the wrapped objects with the rights of the hub's credential; the hub is the only one that knows the
creator. It asks when a gang is first offered and again directly before it is released, so that a right that was
revoked meanwhile stops it. Reads only; nothing here talks to a member.
"""

from __future__ import annotations

from shoal.api.appwrapper import AppWrapper
from shoal.api.appwrapper_rules import wrapped_templates
from shoal.api.codec import typed
from shoal.api.kind import Kind
from shoal.api.kinds import APP_WRAPPER
from shoal.api.meta import Json
from shoal.controllers.multicluster.settings import ClusterSettings
from shoal.controllers.planning.rights import UNSTAMPED, Rights, SendableKinds, not_allowed, refused_kind
from shoal.controllers.planning.stamps import Stamps
from shoal.kube.client import Client


class CreatorRights:
    def __init__(self, client: Client, stamps: Stamps, settings: ClusterSettings) -> None:
        self._stamps, self._trusts = stamps, settings.trust_unstamped
        self._kinds = SendableKinds(client, settings.unserved_kinds)
        self._rights = Rights(client)

    async def refusal(self, kind: Kind, job: Json) -> str:
        """Why its creator may not have this sent; empty where all is allowed. Jobs that wrap nothing are their own
        proof: the API server asked when they were created."""
        if kind.kind != APP_WRAPPER.kind:
            return ""
        wanted: list[Kind] = []
        for path, template in wrapped_templates(job):
            named = str(template.get("apiVersion") or ""), str(template.get("kind") or "")
            group = named[0].rpartition("/")[0]
            if why := refused_kind(group, named[1]) or await self._unknown(*named, wanted):
                return f"{path}: {why}"
        if not wanted:
            return ""
        creator = self._stamps.creator(typed(job, AppWrapper))
        if creator is None:
            return "" if self._trusts else UNSTAMPED
        namespace = str(job["metadata"]["namespace"])
        missing = await self._rights.missing(creator, wanted, namespace)
        return not_allowed(creator, missing, namespace) if missing is not None else ""

    async def _unknown(self, api_version: str, name: str, wanted: list[Kind]) -> str:
        """Adds the kind to what is asked for, or says why it is not sent."""
        kind = await self._kinds.kind_of(api_version, name)
        if kind is None:
            return (
                f"the hub serves no {name} in {api_version}, so the right to create one is not known: install its CRD "
                f"at the hub, or list it with --set clusters.unserved_kinds=PLURAL.GROUP/{name}"
            )
        if not kind.namespaced:
            return f"{kind.kind} is cluster-scoped; an AppWrapper wraps objects of its namespace"
        wanted.append(kind)
        return ""
