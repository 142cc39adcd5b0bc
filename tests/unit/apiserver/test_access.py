"""Who may do what: RBAC, impersonation, reviews, tokens, and what admission adds and refuses."""

from __future__ import annotations

import msgspec
import pytest

from shoal.api.gang import CREATED_BY
from shoal.api.kind import Kind
from shoal.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CONFIG_MAP,
    CRD,
    LIMIT_RANGE,
    NODE,
    POD,
    PRIORITY_CLASS,
    RESOURCE_QUOTA,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SELF_SUBJECT_ACCESS_REVIEW,
    SERVICE_ACCOUNT,
    SUBJECT_ACCESS_REVIEW,
    TOKEN_REVIEW,
)
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, Unauthorized
from shoal.kube.transport import Request, Response
from shoal.local.apiserver import Server
from tests.unit.apiserver.builders import config_map, pod
from tests.unit.apiserver.conftest import ManualClock, turns

RBAC = "rbac.authorization.k8s.io"


def as_user(server: Server, name: str, *groups: str) -> Client:
    return Client(server.transport(user=name, groups=groups))


async def grant(
    client: Client, user: str, verbs: list[str], resources: list[str], namespace: str = "default", group: str = ""
) -> None:
    name = f"{user}-{'-'.join(verbs)}{'.' + group if group else ''}".replace("*", "all")
    await client.create(
        ROLE,
        {"metadata": {"name": name}, "rules": [{"verbs": verbs, "apiGroups": [group], "resources": resources}]},
        namespace,
    )
    await client.create(
        ROLE_BINDING,
        {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC}],
        },
        namespace,
    )


async def test_nothing_is_allowed_that_no_rule_allows(server: Server, client: Client) -> None:
    ann = as_user(server, "ann")
    with pytest.raises(Forbidden) as caught:
        await ann.list(POD, "default")
    assert caught.value.message == (
        'pods is forbidden: User "ann" cannot list resource "pods" in API group "" in the namespace "default"'
    )
    await grant(client, "ann", ["list", "create"], ["configmaps"])
    await ann.create(CONFIG_MAP, config_map("a"), "default")
    assert len(await ann.list(CONFIG_MAP, "default")) == 1
    with pytest.raises(Forbidden):
        await ann.get(CONFIG_MAP, "a", "default")
    with pytest.raises(Forbidden):
        await ann.list(CONFIG_MAP, "kube-system")


async def test_who_may_read_one_object_may_list_and_watch_it_by_its_name(server: Server, client: Client) -> None:
    for name in ("mine", "other"):
        await client.create(SECRET, {"metadata": {"name": name}}, "default")
    rule = {"verbs": ["list", "watch"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"]}
    await client.create(ROLE, {"metadata": {"name": "r"}, "rules": [rule]}, "default")
    subject = {"kind": "User", "name": "ann", "apiGroup": RBAC}
    reference = {"apiGroup": RBAC, "kind": "Role", "name": "r"}
    await client.create(
        ROLE_BINDING, {"metadata": {"name": "r"}, "roleRef": reference, "subjects": [subject]}, "default"
    )
    ann = as_user(server, "ann")
    found = await ann.list(SECRET, "default", field_selector="metadata.name=mine")
    assert [one["metadata"]["name"] for one in found] == ["mine"]
    first = await anext(aiter(ann.watch(SECRET, "default", field_selector="metadata.name=mine")))
    assert msgspec.json.decode(first.object)["metadata"]["name"] == "mine"
    for selector in ("", "metadata.name=other", "metadata.name!=other", "metadata.name=mine=x", "metadata.name=mine/x"):
        with pytest.raises(Forbidden):
            await ann.list(SECRET, "default", field_selector=selector)
    both = "metadata.name=mine,metadata.name=other"
    assert await ann.list(SECRET, "default", field_selector=both) == []


async def test_an_account_that_is_acted_as_brings_only_its_own_groups(server: Server, client: Client) -> None:
    rule = {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["serviceaccounts"]}
    await client.create(CLUSTER_ROLE, {"metadata": {"name": "as"}, "rules": [rule]})
    subject = {"kind": "User", "name": "ann", "apiGroup": RBAC}
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "as"}
    await client.create(CLUSTER_ROLE_BINDING, {"metadata": {"name": "as"}, "roleRef": reference, "subjects": [subject]})
    transport = server.transport(user="ann", groups=())
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    headers = {"impersonate-user": "system:serviceaccount:default:bot", "content-type": "application/json"}
    answer = await transport.send(Request(method="POST", path=path, headers=headers, body=b"{}"))
    assert set(msgspec.json.decode(answer.body)["status"]["userInfo"]["groups"]) == {
        "system:serviceaccounts",
        "system:serviceaccounts:default",
        "system:authenticated",
    }
    headers["impersonate-group"] = "system:serviceaccounts:kube-system"
    assert (await transport.send(Request(method="POST", path=path, headers=headers, body=b"{}"))).status == 403


async def test_subresources_and_names_are_rights_of_their_own(server: Server, client: Client) -> None:
    await client.create(POD, pod("p"), "default")
    ann = as_user(server, "ann")
    await grant(client, "ann", ["patch"], ["pods/status"])
    await ann.patch(POD, "p", "default", {"status": {"phase": "Running"}}, subresource="status")
    with pytest.raises(Forbidden):
        await ann.patch(POD, "p", "default", {"metadata": {"labels": {"a": "b"}}})


async def test_no_user_grants_what_they_do_not_hold(server: Server, client: Client) -> None:
    await grant(client, "ann", ["create"], ["roles", "rolebindings"], group=RBAC)  # "*" would include escalate and bind
    ann = as_user(server, "ann")
    with pytest.raises(Forbidden, match="attempting to grant RBAC permissions not currently held"):
        await ann.create(
            ROLE,
            {"metadata": {"name": "more"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}]},
            "default",
        )
    with pytest.raises(Forbidden, match="not currently held"):
        await ann.create(
            ROLE_BINDING,
            {
                "metadata": {"name": "me"},
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "User", "name": "ann"}],
            },
            "default",
        )


async def test_impersonation_needs_its_own_right(server: Server, client: Client) -> None:
    with pytest.raises(Forbidden, match='cannot list resource "pods"'):
        await client.impersonating("ann").list(POD, "default")
    with pytest.raises(Forbidden, match='cannot impersonate resource "users"'):
        await as_user(server, "bob").impersonating("ann").list(POD, "default")
    await grant(client, "ann", ["list"], ["pods"])
    assert await client.impersonating("ann", groups=("team",)).list(POD, "default") == []


async def test_reviews_answer_as_the_server_would(server: Server, client: Client) -> None:
    await grant(client, "ann", ["get"], ["pods"])
    asked = {"spec": {"user": "ann", "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}}
    assert (await client.create(SUBJECT_ACCESS_REVIEW, asked))["status"]["allowed"] is True
    asked["spec"]["resourceAttributes"]["verb"] = "delete"
    assert (await client.create(SUBJECT_ACCESS_REVIEW, asked))["status"]["allowed"] is False
    own = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}}
    assert (await as_user(server, "ann").create(SELF_SUBJECT_ACCESS_REVIEW, own))["status"]["allowed"] is True
    who = Kind("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", namespaced=False)
    assert (await as_user(server, "ann").create(who, {}))["status"]["userInfo"]["username"] == "ann"


async def test_tokens_are_those_of_an_account_and_end_with_it(
    server: Server, client: Client, clock: ManualClock
) -> None:
    await client.create(SERVICE_ACCOUNT, {"metadata": {"name": "robot"}}, "default")
    asked = await client.create(
        SERVICE_ACCOUNT, {"spec": {"expirationSeconds": 600}}, "default", name="robot", subresource="token"
    )
    token = asked["status"]["token"]
    review = await client.create(TOKEN_REVIEW, {"spec": {"token": token}})
    assert review["status"]["user"]["username"] == "system:serviceaccount:default:robot"
    assert "system:serviceaccounts:default" in review["status"]["user"]["groups"]
    user = server.authenticator.user({"authorization": f"Bearer {token}"}, None)
    assert user is not None and user.name.endswith(":robot")
    assert server.authenticator.bearer(token[:-4] + "AAAA") is None
    await clock.advance(601)
    assert server.authenticator.bearer(token) is None
    fresh = (await client.create(SERVICE_ACCOUNT, {}, "default", name="robot", subresource="token"))["status"]["token"]
    await client.delete(SERVICE_ACCOUNT, "robot", "default")
    await client.create(SERVICE_ACCOUNT, {"metadata": {"name": "robot"}}, "default")
    assert server.authenticator.bearer(fresh) is None


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (POD, {"spec": {"containers": [{"name": "c", "image": "x"}]}}),
        (SECRET, {}),
        (NODE, {}),
    ],
)
async def test_a_token_ends_with_what_it_is_bound_to(server: Server, client: Client, kind: Kind, body: Json) -> None:
    await client.create(SERVICE_ACCOUNT, {"metadata": {"name": "robot"}}, "default")
    holder = {**body, "metadata": {"name": "holder"}}
    namespace = "default" if kind.namespaced else None
    await client.create(kind, holder, namespace)
    bound = {"apiVersion": "v1", "kind": kind.kind, "name": "holder"}  # without a uid: the one that is there now
    asked = {"spec": {"boundObjectRef": bound}}
    made = await client.create(SERVICE_ACCOUNT, asked, "default", name="robot", subresource="token")
    token = made["status"]["token"]
    assert server.authenticator.bearer(token) is not None
    await client.delete(kind, "holder", namespace, grace_seconds=0)
    assert server.authenticator.bearer(token) is None
    await client.create(kind, holder, namespace)
    assert server.authenticator.bearer(token) is None


async def test_no_client_is_served_without_a_name(server: Server) -> None:
    for path in ("/api", "/api/v1/pods", "/apis", "/openapi/v2", "/metrics", "/"):
        answer = await server.handle(Request(method="GET", path=path), None)
        assert isinstance(answer, Response) and answer.status == 401, path
    for path in ("/healthz", "/readyz", "/livez", "/version"):
        answer = await server.handle(Request(method="GET", path=path), None)
        assert isinstance(answer, Response) and answer.status == 200, path


async def test_app_wrappers_carry_their_creator_and_no_user_can_write_it(server: Server, client: Client) -> None:
    wrapper = Kind("workload.codeflare.dev", "v1beta1", "AppWrapper", "appwrappers")
    await client.create(
        CRD,
        {
            "metadata": {"name": "appwrappers.workload.codeflare.dev"},
            "spec": {
                "group": "workload.codeflare.dev",
                "scope": "Namespaced",
                "names": {"plural": "appwrappers", "kind": "AppWrapper"},
                "versions": [
                    {
                        "name": "v1beta1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                ],
            },
        },
    )
    await grant(client, "ann", ["*"], ["appwrappers"], group="workload.codeflare.dev")
    ann = as_user(server, "ann", "team")
    forged = {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": "w", "annotations": {CREATED_BY: '{"user":"root"}'}},
        "spec": {},
    }
    made = await ann.create(wrapper, forged, "default")
    stamp = msgspec.json.decode(made["metadata"]["annotations"][CREATED_BY])
    assert stamp["user"] == "ann" and "team" in stamp["groups"]
    for attempt in ({CREATED_BY: '{"user":"root"}'}, {CREATED_BY: None}):
        changed = await ann.patch(
            wrapper, "w", "default", {"metadata": {"annotations": attempt}, "spec": {"priority": 1}}
        )
        assert changed["metadata"]["annotations"][CREATED_BY] == made["metadata"]["annotations"][CREATED_BY]


# --- admission


async def test_pods_are_completed(client: Client) -> None:
    made = await client.create(POD, pod("p"), "default")
    spec = made["spec"]
    assert spec["serviceAccountName"] == "default" and spec["priority"] == 0
    assert {one["key"] for one in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }
    with pytest.raises(Forbidden, match='serviceaccount "ghost" not found'):
        await client.create(POD, pod("q", serviceAccountName="ghost"), "default")


async def test_priorities_come_from_their_class(client: Client) -> None:
    await client.create(PRIORITY_CLASS, {"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"})
    made = await client.create(POD, pod("p", priorityClassName="high"), "default")
    assert made["spec"]["priority"] == 1000 and made["spec"]["preemptionPolicy"] == "Never"
    with pytest.raises(Forbidden, match="no PriorityClass with name none was found"):
        await client.create(POD, pod("q", priorityClassName="none"), "default")
    await client.create(PRIORITY_CLASS, {"metadata": {"name": "usual"}, "value": 5, "globalDefault": True})
    assert (await client.create(POD, pod("r"), "default"))["spec"]["priority"] == 5


async def test_devices_bring_their_toleration(client: Client) -> None:
    made = await client.create(POD, pod("p", requests={"nvidia.com/gpu": "1", "cpu": "1"}), "default")
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in made["spec"]["tolerations"]
    plain = Server(None, extended_resource_toleration=False)
    await plain.start()
    other = await Client(plain.transport()).create(POD, pod("p", requests={"nvidia.com/gpu": "1"}), "default")
    assert all(one["key"] != "nvidia.com/gpu" for one in other["spec"]["tolerations"])
    await plain.stop()


async def test_quota_counts_what_runs(client: Client) -> None:
    await client.create(
        RESOURCE_QUOTA, {"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "2", "pods": "3"}}}, "default"
    )
    await client.create(POD, pod("a", requests={"cpu": "1500m"}), "default")
    with pytest.raises(
        Forbidden,
        match=r"exceeded quota: q, requested: requests.cpu=1, used: requests.cpu=1500m, limited: requests.cpu=2",
    ):
        await client.create(POD, pod("b", requests={"cpu": "1"}), "default")
    with pytest.raises(Forbidden, match=r"must specify requests.cpu for: main"):
        await client.create(POD, pod("c"), "default")
    await client.patch(POD, "a", "default", {"status": {"phase": "Succeeded"}}, subresource="status")
    await client.create(POD, pod("b", requests={"cpu": "1"}), "default")


async def test_quota_shows_what_is_used(client: Client) -> None:
    hard = {"requests.cpu": "4", "requests.memory": "8Gi", "pods": "3"}
    await client.create(RESOURCE_QUOTA, {"metadata": {"name": "q"}, "spec": {"hard": hard}}, "default")
    await client.create(POD, pod("a", requests={"cpu": "1500m", "memory": "2Gi"}), "default")
    await turns()
    status = (await client.get(RESOURCE_QUOTA, "q", "default"))["status"]
    assert status == {"hard": hard, "used": {"requests.cpu": "1500m", "requests.memory": "2Gi", "pods": "1"}}
    await client.delete(POD, "a", "default")
    await turns()
    assert (await client.get(RESOURCE_QUOTA, "q", "default"))["status"]["used"]["pods"] == "0"


async def test_limit_ranges_fill_in_and_bound(client: Client) -> None:
    await client.create(
        LIMIT_RANGE,
        {
            "metadata": {"name": "l"},
            "spec": {
                "limits": [
                    {
                        "type": "Container",
                        "default": {"cpu": "1"},
                        "defaultRequest": {"cpu": "500m"},
                        "max": {"cpu": "2"},
                    }
                ]
            },
        },
        "default",
    )
    made = await client.create(POD, pod("p"), "default")
    assert made["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "1"}, "requests": {"cpu": "500m"}}
    assert made["status"]["qosClass"] == "Burstable"
    with pytest.raises(Forbidden, match="maximum cpu usage per Container is 2, but limit is 3"):
        await client.create(POD, pod("q", requests={"cpu": "3"}), "default")


async def test_cluster_roles_reach_everywhere(server: Server, client: Client) -> None:
    await client.create(
        CLUSTER_ROLE,
        {"metadata": {"name": "reader"}, "rules": [{"verbs": ["get", "list"], "apiGroups": ["*"], "resources": ["*"]}]},
    )
    await client.create(
        CLUSTER_ROLE_BINDING,
        {
            "metadata": {"name": "readers"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "reader"},
            "subjects": [{"kind": "Group", "name": "team", "apiGroup": RBAC}],
        },
    )
    ann = as_user(server, "ann", "team")
    assert await ann.list(POD) == []
    with pytest.raises(Forbidden):
        await ann.create(CONFIG_MAP, config_map("a"), "default")


async def test_unauthorized_is_a_status_too(server: Server) -> None:
    answer = await server.handle(Request(method="GET", path="/api/v1/pods"), None)
    assert isinstance(answer, Response)
    from shoal.kube.client import refusal

    assert isinstance(refusal(answer.status, answer.headers, answer.body), Unauthorized)
