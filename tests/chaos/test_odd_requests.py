"""Whatever is sent, the answer is never a 500 and the server goes on (I50)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.kube.client import Client
from shoal.kube.transport import Request, Response
from shoal.local.apiserver import Server
from shoal.local.apiserver.requests.call import StreamAnswer
from shoal.local.apiserver.requests.route import RequestUser
from tests.unit.apiserver.builders import widget_definition

ADMIN = RequestUser("system:admin", ("system:masters", "system:authenticated"))

words = st.sampled_from(
    [
        "metadata",
        "spec",
        "status",
        "name",
        "namespace",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
        "uid",
        "resourceVersion",
        "generateName",
        "managedFields",
        "data",
        "stringData",
        "containers",
        "initContainers",
        "template",
        "selector",
        "matchLabels",
        "replicas",
        "resources",
        "limits",
        "requests",
        "cpu",
        "memory",
        "tolerations",
        "key",
        "operator",
        "effect",
        "ports",
        "port",
        "image",
        "rules",
        "verbs",
        "roleRef",
        "subjects",
        "hard",
        "webhooks",
        "clientConfig",
        "versions",
        "schema",
        "openAPIV3Schema",
        "type",
        "properties",
        "group",
        "names",
        "kind",
        "apiVersion",
        "target",
        "value",
        "op",
        "path",
        "from",
        "deletionTimestamp",
        "a",
        "",
        "$patch",
        "$setElementOrder/containers",
        "x-kubernetes-validations",
        "rule",
        "message",
        "items",
        "conditions",
        "priorityClassName",
        "affinity",
        "volumes",
        "env",
    ]
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    words,
    st.text(max_size=8),
    st.sampled_from(
        [
            "1",
            "500m",
            "2Gi",
            "v1",
            "Pod",
            "Exists",
            "self.a > 1",
            "2020-01-01T00:00:00Z",
            "replace",
            "add",
            "remove",
            "/metadata/name",
        ]
    ),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(words, st.text(max_size=5)), inner, max_size=5)
    ),
    max_leaves=25,
)
objects = st.dictionaries(words, values, max_size=6)

KINDS = [
    ("/api/v1/namespaces/default/configmaps", "v1", "ConfigMap"),
    ("/api/v1/namespaces/default/pods", "v1", "Pod"),
    ("/api/v1/namespaces/default/services", "v1", "Service"),
    ("/api/v1/namespaces/default/secrets", "v1", "Secret"),
    ("/api/v1/nodes", "v1", "Node"),
    ("/api/v1/namespaces/default/events", "v1", "Event"),
    ("/api/v1/namespaces/default/resourcequotas", "v1", "ResourceQuota"),
    ("/api/v1/namespaces/default/limitranges", "v1", "LimitRange"),
    ("/apis/apps/v1/namespaces/default/deployments", "apps/v1", "Deployment"),
    ("/apis/batch/v1/namespaces/default/jobs", "batch/v1", "Job"),
    ("/apis/example.com/v1/namespaces/default/widgets", "example.com/v1", "Widget"),
    ("/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", "rbac.authorization.k8s.io/v1", "Role"),
    ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    ("/apis/scheduling.k8s.io/v1/priorityclasses", "scheduling.k8s.io/v1", "PriorityClass"),
    ("/apis/coordination.k8s.io/v1/namespaces/default/leases", "coordination.k8s.io/v1", "Lease"),
    ("/apis/authorization.k8s.io/v1/subjectaccessreviews", "authorization.k8s.io/v1", "SubjectAccessReview"),
    ("/apis/events.k8s.io/v1/namespaces/default/events", "events.k8s.io/v1", "Event"),
]


class World:
    """One server for a whole run of examples, on a loop of its own: Hypothesis is not asynchronous."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.server = Server(None)
        self.loop.run_until_complete(self._prepare())

    async def _prepare(self) -> None:
        await self.server.start()
        client = Client(self.server.transport())
        from shoal.api.kinds import CRD

        size = {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "items": {"type": "array", "items": {"type": "string"}}},
            "x-kubernetes-validations": [{"rule": "!has(self.a) || self.a < 5"}],
        }
        await client.create(CRD, widget_definition(spec=size, scale=True))

    def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        content: str = "application/json",
        query: dict[str, str] | None = None,
    ) -> int:
        request = Request(method=method, path=path, query=query or {}, headers={"content-type": content}, body=body)
        answer = self.loop.run_until_complete(self.server.handle(request, ADMIN))
        assert isinstance(answer, (Response, StreamAnswer))
        if isinstance(answer, Response) and answer.status >= 500 and answer.status != 504:
            raise AssertionError(f"{method} {path} {query} {body[:2000]!r}\n{answer.body.decode()}")
        return answer.status

    def close(self) -> None:
        self.loop.run_until_complete(self.server.stop())
        self.loop.close()


def fuzz(test: Any, *strategies: Any, examples: int) -> int:
    """Try the examples; a 500 is told with the request that led to it. How the server answers after all of them."""
    world = World()
    try:
        decorated = settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )(given(st.tuples(*strategies))(lambda drawn: test(world, *drawn)))
        decorated()
        return world.send("GET", "/api/v1/namespaces")
    finally:
        world.close()


def test_created_objects_of_any_shape() -> None:
    def test(world: World, where: tuple[str, str, str], obj: dict[str, Any], metadata: Any) -> None:
        path, version, kind = where
        body = {**obj, "apiVersion": version, "kind": kind}
        if isinstance(metadata, dict):
            body["metadata"] = {"name": "fuzz", **metadata}
        world.send("POST", path, msgspec.json.encode(body))
        world.send("PUT", f"{path}/fuzz", msgspec.json.encode(body))
        world.send("DELETE", f"{path}/fuzz")

    assert fuzz(test, st.sampled_from(KINDS), objects, values, examples=400) == 200


def test_pods_with_odd_insides() -> None:
    def test(world: World, spec: dict[str, Any], container: dict[str, Any]) -> None:
        body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i", **container}], **spec}}
        world.send("POST", "/api/v1/namespaces/default/pods", msgspec.json.encode(body))
        world.send("GET", "/api/v1/namespaces/default/pods")
        world.send("DELETE", "/api/v1/namespaces/default/pods/p", query={"gracePeriodSeconds": "0"})

    assert fuzz(test, objects, objects, examples=250) == 200


def test_patches_of_any_shape() -> None:
    def test(world: World, where: tuple[str, str, str], content: str, patch: Any, subresource: str) -> None:
        path = where[0]
        world.send(
            "POST",
            path,
            msgspec.json.encode({"apiVersion": where[1], "kind": where[2], "metadata": {"name": "target"}}),
        )
        world.send("PATCH", f"{path}/target{subresource}", msgspec.json.encode(patch), content, {"fieldManager": "f"})

    operation = st.fixed_dictionaries(
        {
            "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "x"]),
            "path": st.sampled_from(
                [
                    "",
                    "/",
                    "/metadata",
                    "/metadata/labels",
                    "/metadata/labels/a",
                    "/spec",
                    "/spec/containers/0",
                    "/spec/containers/-",
                    "/data/a~1b",
                    "x",
                    "/metadata/name",
                    "/metadata/finalizers/0",
                ]
            ),
        },
        optional={"value": values, "from": st.sampled_from(["/metadata", "/spec", ""])},
    )
    answer = fuzz(
        test,
        st.sampled_from(KINDS),
        st.sampled_from(
            [
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/strategic-merge-patch+json",
                "application/apply-patch+yaml",
            ]
        ),
        st.one_of(values, objects, st.lists(operation, max_size=4)),
        st.sampled_from(["", "/status", "/scale"]),
        examples=400,
    )
    assert answer == 200


def test_bytes_as_bodies() -> None:
    def test(world: World, where: tuple[str, str, str], body: bytes, content: str) -> None:
        for method, path in (("POST", where[0]), ("PUT", f"{where[0]}/x"), ("DELETE", f"{where[0]}/x")):
            world.send(method, path, body, content)
        world.send("POST", where[0], b"k8s\x00\n" + body, "application/vnd.kubernetes.protobuf")

    answer = fuzz(
        test,
        st.sampled_from(KINDS),
        st.binary(max_size=200),
        st.sampled_from(["application/json", "application/yaml", "application/vnd.kubernetes.protobuf", ""]),
        examples=250,
    )
    assert answer == 200


def test_paths_and_queries() -> None:
    part = st.one_of(
        st.sampled_from(
            [
                "api",
                "apis",
                "v1",
                "namespaces",
                "default",
                "pods",
                "apps",
                "deployments",
                "status",
                "scale",
                "watch",
                "..",
                "%2F",
                "",
                "log",
                "exec",
                "binding",
                "openapi",
                "v3",
                "v2",
                "example.com",
                "widgets",
                "token",
            ]
        ),
        st.text(max_size=6),
    )
    option = st.dictionaries(
        st.sampled_from(
            [
                "labelSelector",
                "fieldSelector",
                "limit",
                "continue",
                "resourceVersion",
                "resourceVersionMatch",
                "watch",
                "timeoutSeconds",
                "dryRun",
                "fieldManager",
                "force",
                "pretty",
                "sendInitialEvents",
                "allowWatchBookmarks",
                "tailLines",
                "gracePeriodSeconds",
                "propagationPolicy",
            ]
        ),
        st.one_of(
            st.sampled_from(
                ["1", "0", "true", "-1", "All", "a=b", "a in (b)", "metadata.name=x", "Exact", "NotOlderThan", "Orphan"]
            ),
            st.text(max_size=8),
        ),
        max_size=4,
    )

    def test(world: World, method: str, parts: list[str], query: dict[str, str]) -> None:
        world.send(method, "/" + "/".join(parts), b"", "", query)

    answer = fuzz(
        test,
        st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"]),
        st.lists(part, max_size=8),
        option,
        examples=400,
    )
    assert answer == 200
