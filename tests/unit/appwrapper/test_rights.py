"""No right is lent: what a creator may not create alone, no AppWrapper creates for them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.gang import CREATED_BY
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper.admission import webhook
from shoal.controllers.appwrapper.dispatch import Objects
from shoal.controllers.planning import rights
from shoal.controllers.planning.rights import Rights
from shoal.kube.admission_review import AdmissionRequest, GroupVersionKind, User
from shoal.kube.client import Client
from shoal.kube.discovery import Discovery
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, has_state, needs, pod, ray_cluster, waits

RBAC = "rbac.authorization.k8s.io"


async def grant(cluster: Cluster, user: str, namespace: str, *resources: tuple[str, str]) -> None:
    """Let this user read and write these (group, plural) in a namespace."""
    verbs = ["get", "list", "watch", "create", "update", "patch", "delete"]
    rules = [{"verbs": verbs, "apiGroups": [group], "resources": [plural]} for group, plural in resources]
    role = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": {"name": user, "namespace": namespace},
        "rules": rules,
    }
    await cluster.client.create(kinds.ROLE, role, namespace)
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": user, "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": user},
        "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC}],
    }
    await cluster.client.create(kinds.ROLE_BINDING, binding, namespace)


def as_user(cluster: Cluster, user: str) -> Client:
    return Client(cluster.server.transport(user=user, groups=()))


WRAPPERS = ("workload.codeflare.dev", "appwrappers")


def asks_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def allowed(self: Rights, *question: Any) -> None:
        return None

    monkeypatch.setattr(Rights, "missing", allowed)
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


@proven(without=asks_no_server)
async def test_f112_who_may_not_create_a_ray_cluster_gets_none_through_an_app_wrapper(cluster: Cluster) -> None:
    """F112: two users in two namespaces wrap a RayCluster; one may create RayClusters, the other only AppWrappers.
    Holds: the first gets one, the second gets Failed with the missing right named and no object at all."""
    for name in ("red", "blue"):
        await cluster.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    await grant(cluster, "ann", "red", WRAPPERS, ("ray.io", "rayclusters"))
    await grant(cluster, "bob", "blue", WRAPPERS, ("", "configmaps"))
    for user, namespace in (("ann", "red"), ("bob", "blue")):
        made = app_wrapper("gang", config_map("also") if user == "bob" else ray_cluster("also"), ray_cluster("ray"))
        made["metadata"]["namespace"] = namespace
        await as_user(cluster, user).create(kinds.APP_WRAPPER, made, namespace)
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched, "red")
    refused = await cluster.until(kinds.APP_WRAPPER, "gang", has_state("Failed"), "blue")
    assert "User bob is not authorized to create rayclusters.ray.io in blue" in refused["status"]["message"]
    assert await cluster.names(kinds.RAY_CLUSTER, "red") == ["also", "ray"]
    assert await cluster.names(kinds.RAY_CLUSTER, "blue") == []
    assert "also" not in await cluster.names(kinds.CONFIG_MAP, "blue")


@proven(without=asks_no_server)
async def test_f112_a_user_who_changes_the_wrapped_objects_answers_for_them(cluster: Cluster) -> None:
    """F112: a waiting AppWrapper of a user with all rights is edited by one without. Holds: the editor's rights count
    from then on."""
    await grant(cluster, "bob", "default", WRAPPERS)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("a"), needs=[needs(1, cpu="40")]))
    await cluster.until(kinds.APP_WRAPPER, "gang", waits)
    edited = app_wrapper("gang", pod("loot", cpu="1"))["spec"]
    await as_user(cluster, "bob").patch(kinds.APP_WRAPPER, "gang", "default", {"spec": edited})
    refused = await cluster.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
    assert "User bob is not authorized" in refused["status"]["message"]
    assert await cluster.names(kinds.POD) == []


def wraps_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "is_judged_by_creator", lambda group, kind: False)
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


@proven(without=wraps_anything)
@pytest.mark.parametrize(
    "wrapped",
    [
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "Role",
            "metadata": {"name": "loot"},
            "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "loot"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "User", "name": "bob", "apiGroup": RBAC}],
        },
        app_wrapper("loot", pod("inner", cpu="1")),
    ],
    ids=["role", "binding", "nested"],
)
async def test_f113_kinds_judged_by_their_creator_are_refused(cluster: Cluster, wrapped: Json) -> None:
    """F113: a Role, a binding or another AppWrapper is wrapped, so that the server's own check would see us instead of
    the user. Holds: refused, even where the user may create such objects."""
    await grant(cluster, "bob", "default", WRAPPERS, (RBAC, "roles"), (RBAC, "rolebindings"))
    await as_user(cluster, "bob").create(kinds.APP_WRAPPER, app_wrapper("gang", wrapped), "default")
    refused = await cluster.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
    assert "depends on its creator" in refused["status"]["message"]
    assert "loot" not in await cluster.names(kinds.ROLE)
    assert "loot" not in await cluster.names(kinds.ROLE_BINDING)


async def test_created_as_the_user_a_role_is_judged_by_the_server_itself(quiet: Cluster) -> None:
    quiet.start(planned(quiet.client, AppWrapperSettings(create_as_creator=True)).run())
    await grant(quiet, "bob", "default", WRAPPERS, (RBAC, "roles"), ("", "configmaps"))
    for name, verbs, resources in (("modest", ["get"], ["configmaps"]), ("greedy", ["*"], ["secrets"])):
        rules = [{"verbs": verbs, "apiGroups": [""], "resources": resources}]
        role = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules}
        await as_user(quiet, "bob").create(kinds.APP_WRAPPER, app_wrapper(name, role), "default")
    await quiet.until(kinds.APP_WRAPPER, "modest", dispatched)
    refused = await quiet.until(kinds.APP_WRAPPER, "greedy", has_state("Failed"))
    assert "attempting to grant RBAC permissions not currently held" in refused["status"]["message"]


def asks_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def remembered(self: Objects, wrapper: Any) -> None:
        return None  # as if the answer at submission were kept

    monkeypatch.setattr(Objects, "forbidden", remembered)
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


@proven(without=asks_only_once)
async def test_f114_a_right_withdrawn_while_waiting_is_gone_at_dispatch(cluster: Cluster) -> None:
    """F114: the creator loses the right to create pods while the AppWrapper waits. Holds: it is asked again at
    dispatch, and nothing is created."""
    await grant(cluster, "ann", "default", WRAPPERS, ("", "pods"))
    blocker = app_wrapper("blocker", config_map("a"), needs=[needs(1, cpu="3")])
    await cluster.create(kinds.APP_WRAPPER, blocker)
    await cluster.until(kinds.APP_WRAPPER, "blocker", dispatched)
    await as_user(cluster, "ann").create(kinds.APP_WRAPPER, app_wrapper("gang", pod("x", cpu="3")), "default")
    await cluster.until(kinds.APP_WRAPPER, "gang", waits)
    await cluster.client.delete(kinds.ROLE_BINDING, "ann", "default")
    await cluster.client.delete(kinds.APP_WRAPPER, "blocker", "default")
    refused = await cluster.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
    assert "User ann is not authorized to create pods in default" in refused["status"]["message"]
    assert await cluster.names(kinds.POD) == []


def lets_namespaces_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.controllers.appwrapper import reconciler, wrapped

    original = wrapped._object

    def careless(wrapper: Any, item: Any, marks: Any) -> Json:
        made = msgspec.json.decode(item.generic_template)
        there = made["metadata"].pop("namespace", "default")
        changed = original(
            wrapper, msgspec.structs.replace(item, generic_template=msgspec.Raw(msgspec.json.encode(made))), marks
        )
        changed["metadata"]["namespace"] = there
        return changed

    monkeypatch.setattr(wrapped, "_object", careless)
    monkeypatch.setattr(reconciler, "wrapped_objects", wrapped.wrapped_objects)
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


@proven(without=lets_namespaces_pass)
async def test_f115_objects_stay_in_their_namespace_and_owners_are_ours(cluster: Cluster) -> None:
    """F115: a wrapped object names another namespace, and one carries a stranger as its owner. Holds: the first is
    refused with both namespaces named; the second gets this AppWrapper as its only owner."""
    await cluster.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    outside = config_map("loot")
    outside["metadata"]["namespace"] = "other"
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("reach", outside))
    refused = await cluster.until(kinds.APP_WRAPPER, "reach", has_state("Failed"))
    expected = 'resource namespace "other" is different from AppWrapper namespace "default"'
    assert expected in refused["status"]["message"]
    assert "loot" not in await cluster.names(kinds.CONFIG_MAP, "other")
    owned = config_map("mine")
    stranger = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "1", "controller": True}
    owned["metadata"]["ownerReferences"] = [stranger]
    wrapper = await cluster.create(kinds.APP_WRAPPER, app_wrapper("keep", owned))
    await cluster.until(kinds.APP_WRAPPER, "keep", dispatched)
    owners = (await cluster.get(kinds.CONFIG_MAP, "mine"))["metadata"]["ownerReferences"]
    assert [one["uid"] for one in owners] == [wrapper["metadata"]["uid"]]


def copies_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.controllers.appwrapper import wrapped

    monkeypatch.setattr(wrapped, "without_reserved", lambda texts: dict(texts or {}))


@proven(without=copies_everything)
async def test_f116_marks_under_our_prefix_are_written_by_us_alone(cluster: Cluster) -> None:
    """F116: a user puts our own labels and annotations on a wrapped pod. Holds: they are dropped, ours are written."""
    forged = pod("x", cpu="1")
    forged["metadata"].update(
        labels={"shoal.dev/team": "forged", "app": "kept"},
        annotations={"shoal.dev/planned-node": "forged", "note": "kept"},
    )
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("gang", forged))
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    metadata = (await cluster.get(kinds.POD, "x"))["metadata"]
    assert "shoal.dev/team" not in metadata["labels"] and metadata["labels"]["app"] == "kept"
    assert "shoal.dev/planned-node" not in metadata["annotations"] and metadata["annotations"]["note"] == "kept"


async def test_unstamped_ones_wait_and_say_what_to_install(quiet: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.local.apiserver.admission.plugins.stamp_creator", lambda call, obj, old: None)
    quiet.start(planned(quiet.client, AppWrapperSettings()).run())
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("a")))
    waiting = await quiet.until(kinds.APP_WRAPPER, "gang", waits)
    assert "shoal install" in waiting["status"]["message"] and "--trust-unstamped" in waiting["status"]["message"]
    await quiet.settled()
    assert "a" not in await quiet.names(kinds.CONFIG_MAP)


# --- the webhooks, as pure functions


def request(obj: Json, old: Json | None = None, user: str = "ann") -> AdmissionRequest:
    return AdmissionRequest(
        uid="1",
        kind=GroupVersionKind("workload.codeflare.dev", "v1beta1", "AppWrapper"),
        name=obj["metadata"]["name"],
        namespace="default",
        operation="CREATE" if old is None else "UPDATE",
        user_info=User(user, "u-1", ["team"], {"scopes": ["a"]}),
        object=obj,
        old_object=old,
    )


def changed(verdict: Any) -> Json:
    assert verdict.allowed and verdict.changed is not None
    found: Json = verdict.changed
    return found


def stamps_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "wraps_the_same", lambda obj, old: False)


@proven(without=stamps_again)
def test_f072_stamping_twice_changes_nothing_more() -> None:
    """F72: the mutating webhook is called again, on its own result and on a later update by someone else. Holds: the
    first stamp stays; a forged one is replaced."""
    forged = app_wrapper("gang", config_map("a"))
    forged["metadata"]["annotations"] = {CREATED_BY: '{"user":"root"}', "note": "kept"}
    first = changed(webhook.stamp(request(forged)))
    stamp = msgspec.json.decode(first["metadata"]["annotations"][CREATED_BY])
    assert stamp == {"user": "ann", "uid": "u-1", "groups": ["team"], "extra": {"scopes": ["a"]}}
    assert changed(webhook.stamp(request(first))) == first
    edited = msgspec.json.decode(msgspec.json.encode(first))
    edited["metadata"]["annotations"][CREATED_BY] = '{"user":"root"}'
    edited["spec"]["priority"] = 7
    again = changed(webhook.stamp(request(edited, first, "bob")))
    assert again["metadata"]["annotations"] == first["metadata"]["annotations"]
    assert again["spec"]["priority"] == 7


def test_v1beta2_gets_labels_of_its_user() -> None:
    obj = {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "metadata": {"name": "x"}}
    obj["spec"] = {"components": [{"template": config_map("a")}]}
    labels = changed(webhook.stamp(request(obj, user="system:serviceaccount:team:ann@example.com")))["metadata"][
        "labels"
    ]
    assert labels["workload.codeflare.dev/user"] == "system_serviceaccount_team_ann_example.com"
    assert labels["workload.codeflare.dev/userid"] == "u-1"


@pytest.mark.parametrize(
    "change, field",
    [
        ({"components": []}, "spec"),
        (
            {"resources": {"GenericItems": [{"generictemplate": {"apiVersion": "v1"}}]}},
            "spec.resources.GenericItems[0].generictemplate.kind",
        ),
        (
            app_wrapper("x", {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": "r"}})["spec"],
            "spec.resources.GenericItems[0].generictemplate",
        ),
    ],
)
def test_what_can_never_work_is_refused_with_its_field(change: Json, field: str) -> None:
    obj = app_wrapper("gang", config_map("a"))
    obj["spec"] = {**(obj["spec"] if "components" in change else {}), **change}
    verdict = webhook.validate(request(obj))
    assert (verdict.allowed, verdict.code) == (False, 422)
    assert field in verdict.message


def guards_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "_passes", lambda obj, old: False)


@proven(without=guards_the_way_out)
def test_f010_no_finalizer_removal_is_ever_blocked() -> None:
    """F10: an AppWrapper that is no longer valid is being deleted. Holds: updates that only change metadata pass, and
    so does everything on an object that is on its way out."""
    bad = app_wrapper("gang", {"apiVersion": "v1"})
    bad["metadata"]["finalizers"] = ["x"]
    freed = msgspec.json.decode(msgspec.json.encode(bad))
    del freed["metadata"]["finalizers"]
    assert webhook.validate(request(freed, bad)).allowed
    freed["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    freed["spec"]["priority"] = 1
    assert webhook.validate(request(freed, bad)).allowed


async def test_the_judge_asks_for_the_requesters_rights(quiet: Cluster) -> None:
    await grant(quiet, "ann", "default", ("", "configmaps"))
    judge = webhook.AppWrapperJudge(Rights(quiet.client), Discovery(quiet.client))
    assert (await judge.validate(request(app_wrapper("gang", config_map("a"))))).allowed
    verdict = await judge.validate(request(app_wrapper("gang", config_map("a"), pod("x"))))
    assert not verdict.allowed
    assert verdict.message == "User ann is not authorized to create pods in default"
