"""Requests of any shape from a seed, as five kinds of user: none gets a 500, none reaches past its own rights.

`python -m tests.attacks.fuzz --requests 1000000` for a long look; the suite sends 20,000. Goes through the server's
whole way but the sockets. A finding prints the request and the seed that makes it again.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from typing import Any

import msgspec

from shoal.api.kind import Kind
from shoal.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CONFIG_MAP,
    CRD,
    DEPLOYMENT,
    JOB,
    NAMESPACE,
    POD,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    SERVICE_ACCOUNT,
)
from shoal.kube.client import Client
from shoal.kube.transport import Request, Response
from shoal.local.apiserver import Server
from shoal.local.apiserver.auth.authentication import AUTHENTICATED
from shoal.local.apiserver.auth.gate import SUBRESOURCE_VERBS
from shoal.local.apiserver.primitives import builtin_types
from shoal.local.apiserver.requests.call import StreamAnswer
from shoal.local.apiserver.requests.route import RequestUser
from shoal.local.apiserver.storage.collection import StoredEvent
from tests.unit.apiserver.builders import pod, widget_definition

RBAC = "rbac.authorization.k8s.io"
HOME = "red"
GROUPS = ("system:serviceaccounts", f"system:serviceaccounts:{HOME}", AUTHENTICATED)
ADMIN = RequestUser("system:admin", ("system:masters", AUTHENTICATED))
USERS = {
    "administrator": ADMIN,
    "administrator of one namespace": RequestUser(f"system:serviceaccount:{HOME}:chief", GROUPS),
    "reader": RequestUser("reader", (AUTHENTICATED,)),
    "holder of subresources": RequestUser(f"system:serviceaccount:{HOME}:parts", GROUPS),
    "actor for others": RequestUser("actor", (AUTHENTICATED,)),
}
WRITES = frozenset(("administrator", "administrator of one namespace", "holder of subresources"))
METHODS = ("GET", "GET", "HEAD", *("POST",) * 3, *("PUT",) * 2, *("PATCH",) * 3, "DELETE", "OPTIONS", "X")
PATCHES = (
    "application/merge-patch+json",
    "application/json-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
BODIES = ("application/json", "application/json", "application/json", "application/yaml", "")
ODD_CONTENT = (
    "application/vnd.kubernetes.protobuf",
    "text/plain",
    "application/json; charset=x",
    "x",
    *PATCHES,
    *BODIES,
)
FORMS = "application/json;as={};v=v1;g=meta.k8s.io"
ACCEPT = ("", "", "", "", "application/json", "application/yaml", "*/*", FORMS.format("Table"),
          FORMS.format("PartialObjectMetadata"), FORMS.format("PartialObjectMetadataList"), "text/html")  # fmt: skip
NAMES = ("target", "target", "target", "target", "target", "other", "other", "x", "", "A_b", "a" * 300, "..", "%2e%2e",
         "a%2fb", "é", "\x00", "system:x")  # fmt: skip
NAMESPACES = (HOME, HOME, HOME, HOME, HOME, HOME, "blue", "kube-system", "", "none", "namespaces", "*", "..")
QUERY = {
    "watch": ("1", "true", "0", "x"),
    "timeoutSeconds": ("1", "-1", "x", "99999999999999999999"),
    "limit": ("1", "0", "-1", "x"),
    "continue": ("x", "eyJ2IjoxfQ", "%00"),
    "labelSelector": ("a=b", "a in (b", "!a", "=,"),
    "fieldSelector": ("metadata.name=target", "spec.x=1", "==", "metadata.name"),
    "dryRun": ("All", "None", ""),
    "fieldManager": ("f", "", "x" * 200, "\n"),
    "force": ("true", "x"),
    "fieldValidation": ("Strict", "Warn", "x"),
    "propagationPolicy": ("Foreground", "Orphan", "x"),
    "gracePeriodSeconds": ("0", "-5", "x", "1"),
    "resourceVersion": ("0", "1", "x", "99999999"),
    "resourceVersionMatch": ("Exact", "NotOlderThan", "x"),
    "sendInitialEvents": ("true", "false"),
    "allowWatchBookmarks": ("true",),
    "includeObject": ("Object", "None", "x"),
    "container": ("main", "x"),
    "tailLines": ("1", "x", "-1"),
    "follow": ("true",),
    "sinceTime": ("x", "2024"),
    "command": ("sh",),
    "orphanDependents": ("true", "x"),
}
HEADERS = {
    "impersonate-user": (
        f"system:serviceaccount:{HOME}:chief",
        "reader",
        "system:admin",
        "system:serviceaccount::",
        "\xff",
    ),
    "impersonate-group": ("system:masters", "g\nh", ""),
    "impersonate-uid": ("x",),
    "impersonate-extra-a%2fb": ("x",),
    "user-agent": ("kubectl/v1", "\xff", "", "a" * 500),
    "if-none-match": ("x",),
}
ODD = (None, True, 0, -1, 2**63, 2**70, 1.5, 1e308, "", "50%", "a b", "\x00", "é", [], {}, [None], {"a": None}, [[]],
       "x" * 300)  # fmt: skip
GOOD: dict[str, tuple[Any, ...]] = {
    "string": ("", "x", "Always", "target"),
    "bool": (True, False),
    "int32": (0, 1, -1, 80),
    "int64": (0, 30),
    "Quantity": ("1", "1Gi", 2),
    "IntOrString": (1, "25%"),
    "Time": ("2024-01-01T00:00:00Z",),
    "bytes": ("YQ==",),
}
RAW = (b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}" * 50, b"[" * 300, b'{"a":' * 200, b"a: &a [*a]", b"- a\n- b",
       b"k8s\x00\n\x03abc", b"--- x", b'{"metadata":{"name":1e999}}', b'{"a":1,"a":2}', b"? {}\n: {}")  # fmt: skip
PLACES = ("/metadata/labels", "/metadata/name", "/spec", "/spec/a", "", "/status", "/metadata/finalizers/-", "x")
DOCUMENTS = ("/", "/api", "/apis", "/openapi/v2", "/openapi/v3", "/healthz", "//")


def _template(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


class World:
    """One server with everything that users of several kinds could try to reach."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.server = Server(None, chance=random.Random(chance.random()))
        self.resources: list[tuple[str, Kind]] = []
        self.written: list[tuple[str, StoredEvent]] = []
        self.counts: dict[int, int] = {}

    async def start(self) -> None:
        await self.server.start()
        client = Client(self.server.transport())
        for name in (HOME, "blue"):
            await client.create(NAMESPACE, {"metadata": {"name": name}})
        spec = {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "text": {"type": "string", "pattern": "^(a|b)*$", "maxLength": 20},
                "replicas": {"type": "integer"},
                "items": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            },
            "x-kubernetes-validations": [{"rule": "!has(self.a) || self.a < 5"}],
        }
        await client.create(CRD, widget_definition(spec=spec, scale=True))
        for namespace in (HOME, "blue"):
            await client.create(POD, pod("target"), namespace)
            await client.create(SERVICE_ACCOUNT, {"metadata": {"name": "target"}}, namespace)
        for kind, body in (
            (CONFIG_MAP, {"data": {"a": "b"}}),
            (SERVICE, {"spec": {"ports": [{"port": 80}]}}),
            (DEPLOYMENT, {"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": _template()}}),
            (JOB, {"spec": {"template": _template(restartPolicy="Never")}}),
            (Kind("example.com", "v1", "Widget", "widgets"), {"spec": {"a": 1, "replicas": 1}}),
        ):
            named = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "target"}}
            await client.create(kind, {**named, **body}, HOME)
        await self._grant(client)
        for resource in self.server.registry.all():
            for version in resource.versions:
                self.resources.append((version, resource.versions[version].kind))
        for collection in self.server.storage.collections.values():
            collection.listeners.append(lambda event, name=collection.name: self.written.append((name, event)))

    async def _grant(self, client: Client) -> None:
        chief, parts = USERS["administrator of one namespace"], USERS["holder of subresources"]
        every = ["*"]
        subresources = [f"*/{name}" for name in SUBRESOURCE_VERBS]
        subresources += [f"{plural}/{name}" for plural in ("pods", "namespaces") for name in SUBRESOURCE_VERBS]
        await client.create(
            ROLE,
            {"metadata": {"name": "parts"}, "rules": [{"verbs": every, "apiGroups": every, "resources": subresources}]},
            HOME,
        )
        for name, role, user in (("chief", "admin", chief), ("parts", "parts", parts)):
            kind = "ClusterRole" if role == "admin" else "Role"
            await client.create(
                ROLE_BINDING,
                {
                    "metadata": {"name": name},
                    "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
                    "subjects": [{"kind": "User", "name": user.name, "apiGroup": RBAC}],
                },
                HOME,
            )
        rule = {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["reader"]}
        await client.create(CLUSTER_ROLE, {"metadata": {"name": "as-reader"}, "rules": [rule]})
        for name, role in (("reader", "view"), ("actor", "as-reader")):
            await client.create(
                CLUSTER_ROLE_BINDING,
                {
                    "metadata": {"name": name},
                    "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
                    "subjects": [{"kind": "User", "name": name, "apiGroup": RBAC}],
                },
            )

    # --- one request

    def value(self, type_name: str, odd: float, depth: int = 0) -> Any:
        """Something that mostly has its type."""
        chance = self.chance
        if depth > 6 or chance.random() < odd:
            return chance.choice(ODD)
        fields = builtin_types.fields(type_name)
        if not fields:
            return chance.choice(GOOD.get(type_name, ("x", "target", 1)))
        found: dict[str, Any] = {}
        for field in fields.values():
            if chance.random() > (0.3 if depth < 3 else 0.15):
                continue
            if field.shape == "list":
                found[field.name] = [self.value(field.type, odd, depth + 1) for _ in range(chance.randint(0, 2))]
            elif field.shape == "map":
                found[field.name] = {chance.choice(("a", "b", "")): self.value(field.type, odd, depth + 1)}
            else:
                found[field.name] = self.value(field.type, odd, depth + 1)
        return found

    def manifest(self, kind: Kind) -> Any:
        chance = self.chance
        type_name = builtin_types.type_of(kind)
        if kind.kind == "Pod" and chance.random() < 0.7:
            spec = self.value("core.v1.PodSpec", 0.01, 3)
            found: Any = {"spec": {**_template()["spec"], **(spec if isinstance(spec, dict) else {})}}
        elif type_name:
            found = self.value(type_name, chance.choice((0.0, 0.01, 0.05)), 1 if chance.random() < 0.5 else 3)
        else:
            spec = {"a": chance.choice((1, 1, 9, "x")), "text": "ab" * chance.randint(0, 9), "replicas": 1}
            found = {"spec": spec, "status": chance.choice(ODD)}
        if isinstance(found, dict):
            if chance.random() < 0.95:
                found["apiVersion"], found["kind"] = kind.api_version, kind.kind
            if chance.random() < 0.9:
                metadata = (
                    found["metadata"] if chance.random() < 0.2 and isinstance(found.get("metadata"), dict) else {}
                )
                found["metadata"] = {**metadata, "name": chance.choice(NAMES[:7])}
        return found

    def operation(self, op: Any) -> dict[str, Any]:
        choose = self.chance.choice
        return {"op": op, "path": choose(PLACES), "from": choose(PLACES), "value": choose(ODD)}

    def body(self, kind: Kind, content: str) -> bytes:
        chance = self.chance
        if chance.random() < 0.05:
            return chance.choice(RAW)
        if content == "application/json-patch+json" and chance.random() < 0.9:
            ops = ("add", "remove", "replace", "copy", "move", "test", 1)
            return msgspec.json.encode([self.operation(chance.choice(ops)) for _ in range(chance.randint(0, 4))])
        return msgspec.json.encode(self.manifest(kind))

    def path(self, version: str, kind: Kind, method: str) -> str:
        chance = self.chance
        if chance.random() < 0.02:
            return chance.choice(DOCUMENTS)
        path = f"/apis/{kind.group}/{version}" if kind.group else f"/api/{version}"
        if chance.random() < 0.02:
            path += "/watch"
        if kind.namespaced is (chance.random() < 0.93):
            path += f"/namespaces/{chance.choice(NAMESPACES)}"
        path += f"/{kind.plural}"
        if chance.random() < (0.25 if method == "POST" else 0.9):
            path += f"/{'other' if kind.plural == 'namespaces' else chance.choice(NAMES)}"
            if chance.random() < (0.9 if method == "POST" else 0.35):
                path += f"/{chance.choice((*SUBRESOURCE_VERBS, 'status', 'status', 'x', ''))}"
                if chance.random() < 0.05:
                    path += "/more"
        return path.replace("/", "//") if chance.random() < 0.01 else path

    def part(self) -> Request:
        """A subresource that exists, of an object that may, with a body that is nearly right."""
        chance = self.chance
        resource = chance.choice([one for one in self.server.registry.all() if one.has_status or one.subresources])
        name = chance.choice(sorted({**resource.subresources, **({"status": ""} if resource.has_status else {})}))
        verb = chance.choice((*SUBRESOURCE_VERBS[name], *SUBRESOURCE_VERBS[name], "delete", "create", "update", "get"))
        method = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}.get(verb, "GET")
        spec: dict[str, Any] = {
            "replicas": chance.choice((1, *ODD)),
            "audiences": chance.choice((["x"], [chance.choice(ODD)], *ODD)),
            "expirationSeconds": chance.choice((600, 600, *ODD)),
            "boundObjectRef": chance.choice(({"kind": "Pod", "name": "target"}, {"kind": chance.choice(ODD)}, *ODD)),
        }
        kept = {key: spec[key] for key in chance.sample(sorted(spec), chance.randint(0, 2))}
        target = chance.choice(({"name": "n"}, {"name": "n", "kind": chance.choice(ODD)}, *ODD))
        body = {"metadata": {"name": "target"}, "spec": kept, "target": target, "deleteOptions": chance.choice(ODD)}
        if name not in ("token", "binding", "eviction", "scale") or method == "PUT":
            found = self.manifest(resource.versions[resource.storage_version].kind)
            body = {**body, **found} if isinstance(found, dict) else body
        version = resource.storage_version
        path = f"/apis/{resource.group}/{version}" if resource.group else f"/api/{version}"
        path += f"/namespaces/{HOME}" if resource.namespaced else ""
        content = chance.choice(PATCHES) if method == "PATCH" else "application/json"
        return Request(
            method=method,
            path=f"{path}/{resource.plural}/target/{name}",
            query={"fieldManager": "f"} if method == "PATCH" else {},
            headers={"content-type": content},
            body=msgspec.json.encode(body) if method != "GET" else b"",
        )

    def request(self) -> Request:
        chance = self.chance
        if chance.random() < 0.2:
            return self.part()
        version, kind = chance.choice(self.resources)
        method = chance.choice(METHODS)
        content = chance.choice(PATCHES if method == "PATCH" else BODIES)
        if chance.random() < 0.05:
            content = chance.choice(ODD_CONTENT)
        asked = chance.sample(sorted(QUERY), chance.choice((0, 0, 0, 1, 2)))
        query = {name: chance.choice(QUERY[name]) for name in asked}
        if content == PATCHES[3]:
            query.setdefault("fieldManager", "f")
        headers = {"content-type": content, "accept": chance.choice(ACCEPT)}
        if chance.random() < 0.1:
            name = chance.choice(sorted(HEADERS))
            headers[name] = chance.choice(HEADERS[name])
        body = self.body(kind, content) if method not in ("GET", "HEAD") or chance.random() < 0.05 else b""
        return Request(method=method, path=self.path(version, kind, method), query=query, headers=headers, body=body)

    async def send(self, who: str, request: Request) -> str:
        """What is wrong with how it was answered, or nothing."""
        self.written.clear()
        answer = await self.server.handle(request, USERS[who])
        status = answer.status if isinstance(answer, (Response, StreamAnswer)) else 101
        self.counts[status] = self.counts.get(status, 0) + 1
        if isinstance(answer, StreamAnswer):
            close = getattr(answer.chunks, "aclose", None)
            if close is not None:
                await close()
        if isinstance(answer, Response) and status >= 500 and status not in (503, 504):
            return f"{status}: {answer.body.decode(errors='replace')[:2000]}"
        if who != "administrator":
            for collection, event in self.written:
                if event.record.namespace != HOME and not (collection == "namespaces" and event.record.name == HOME):
                    return f"it wrote {collection} {event.record.namespace}/{event.record.name}"
            if self.written and who not in WRITES:
                return f"it wrote {self.written[0][0]}"
        return ""

    async def stop(self) -> None:
        await self.server.stop()


async def run(seed: int, count: int, *, told: bool = False) -> dict[int, int]:
    """Send so many requests. Raises AssertionError for the first that is answered wrongly."""
    world = World(random.Random(seed))
    await world.start()
    try:
        names = [*USERS, "administrator", "administrator of one namespace", "administrator", "administrator"]
        for number in range(count):
            who = names[number % len(names)]
            request = world.request()
            wrong = await world.send(who, request)
            if wrong:
                raise AssertionError(
                    f"seed {seed}, request {number}, as {who}: {request.method} {request.path} {request.query} "
                    f"{request.headers} {request.body[:3000]!r}\n{wrong}"
                )
            if number % 2000 == 1999:  # what has piled up is not what is looked for
                await _tidy(world)
                if told:
                    print(f"{number + 1} requests, answers by code: {dict(sorted(world.counts.items()))}", flush=True)
        return world.counts
    finally:
        await world.stop()


async def _tidy(world: World) -> None:
    """Only what the fuzz made goes; the users and their rights stay."""
    for collection in list(world.server.storage.collections.values()):
        if (
            collection.name in ("namespaces", "customresourcedefinitions.apiextensions.k8s.io")
            or RBAC in collection.name
        ):
            continue
        for record in list(collection.records()):
            if len(collection) > 50 and record.name != "target":
                revision = world.server.storage.next_revision()
                await world.server.storage.remove(collection, record, revision, record.raw)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        counts = asyncio.run(run(options.seed, options.requests, told=True))
    except AssertionError as error:
        sys.exit(str(error))
    print(f"{options.requests} requests as {len(USERS)} kinds of user: no 500, nothing out of reach; {counts}")


if __name__ == "__main__":
    main()
