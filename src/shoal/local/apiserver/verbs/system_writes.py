"""What the server writes by itself: objects every cluster has, the used part of quotas, the end of custom kinds.

Goes through the same writing verbs as a client's request, as the administrator.
"""

from __future__ import annotations

import msgspec

from shoal.api.meta import Json
from shoal.kube.transport import Request
from shoal.local.apiserver.auth.authentication import ADMIN
from shoal.local.apiserver.auth.authorization import MASTERS
from shoal.local.apiserver.crd.serving import CLEANUP
from shoal.local.apiserver.kinds.resources import Registry, Resource
from shoal.local.apiserver.requests.call import Call
from shoal.local.apiserver.requests.route import RequestUser, Route
from shoal.local.apiserver.verbs.deleting import DeleteVerbs, Options
from shoal.local.apiserver.verbs.writing import WriteVerbs

SYSTEM = RequestUser(ADMIN, (MASTERS, "system:authenticated"))


class SystemWrites:
    def __init__(self, registry: Registry, writer: WriteVerbs, deleter: DeleteVerbs) -> None:
        self.registry = registry
        self.writer = writer
        self.deleter = deleter

    async def ensure(self, obj: Json) -> None:
        """Create an object that every cluster has, unless it is there."""
        group, _, version = obj["apiVersion"].rpartition("/")
        resource = self.registry.by_kind(group, obj["kind"])
        assert resource is not None
        metadata = obj["metadata"]
        if resource.collection.head(metadata.get("namespace", ""), metadata["name"]) is not None:
            return
        request = Request(method="POST", path="", body=msgspec.json.encode(obj))
        where = Route("create", group, version, resource.plural, metadata.get("namespace", ""))
        await self.writer.create(Call(request, SYSTEM, where, resource, resource.versions[version]))

    async def put(self, obj: Json) -> None:
        """Create an object, or make the one that is there say the same."""
        group, _, version = obj["apiVersion"].rpartition("/")
        resource = self.registry.by_kind(group, obj["kind"])
        assert resource is not None
        metadata = obj["metadata"]
        where = Route("update", group, version, resource.plural, metadata["namespace"], metadata["name"])
        call = Call(Request(method="PUT", path=""), SYSTEM, where, resource, resource.versions[version])

        def produce(old: Json | None) -> Json:
            return obj if old is None else {**old, **obj, "metadata": old["metadata"] | metadata}

        await self.writer.change(call, produce, create=True)

    async def write_quota_status(self, namespace: str, name: str, status: Json) -> None:
        resource = self.registry.find("", "resourcequotas")
        assert resource is not None
        where = Route("update", "", "v1", "resourcequotas", namespace, name, "status")
        call = Call(Request(method="PUT", path=""), SYSTEM, where, resource, resource.versions["v1"])

        def produce(old: Json | None) -> Json:
            assert old is not None
            return {**old, "status": status}

        await self.writer.change(call, produce)

    async def delete_all(self, resource: Resource) -> None:
        """For a custom kind that is going."""
        version = resource.versions[resource.storage_version]
        for record in list(resource.collection.records()):
            where = Route("delete", resource.group, version.name, resource.plural, record.namespace, record.name)
            call = Call(Request(method="DELETE", path=""), SYSTEM, where, resource, version)
            current = resource.collection.head(record.namespace, record.name)
            if current is not None:
                await self.deleter.delete_record(call, current, Options())

    async def release_definition(self, name: str) -> None:
        """The last object of a custom kind is gone: its definition may go."""
        resource = self.registry.find("apiextensions.k8s.io", "customresourcedefinitions")
        assert resource is not None
        where = Route("update", resource.group, "v1", resource.plural, "", name)
        call = Call(Request(method="PUT", path=""), SYSTEM, where, resource, resource.versions["v1"])

        def produce(old: Json | None) -> Json:
            assert old is not None
            old["metadata"]["finalizers"] = [one for one in old["metadata"].get("finalizers") or () if one != CLEANUP]
            return old

        await self.writer.change(call, produce)
