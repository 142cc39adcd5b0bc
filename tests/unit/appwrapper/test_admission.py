"""What can never work is refused before it is stored: natively on the embedded server, by the webhook elsewhere.

One set of rules judges both, in the same words. What MCAD lets in and then fails gets in here too, with a warning.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.gang import SUPPLY
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.cli.cluster import judges
from shoal.controllers import appwrapper
from shoal.controllers.appwrapper.admission import webhook
from shoal.controllers.planning.rights import Rights
from shoal.kube.admission_review import AdmissionRequest, GroupVersionKind, User
from shoal.kube.discovery import Discovery
from shoal.kube.errors import ApiError, Forbidden, Invalid
from tests.cluster import Cluster
from tests.unit.appwrapper.build import (
    app_wrapper,
    config_map,
    dispatched,
    has_state,
    job,
    needs,
    pod,
    quota,
    ray_cluster,
    trail,
)
from tests.unit.appwrapper.test_rights import RBAC, WRAPPERS, as_user, grant


@pytest.fixture
async def guarded(cluster: Cluster) -> Cluster:
    """The embedded server as `shoal up` has it, with the AppWrapper controller."""
    cluster.server.admission.judges.update(judges(cluster.client))
    return cluster


def elsewhere() -> Json:
    outside = config_map("a")
    outside["metadata"]["namespace"] = "kube-system"
    return app_wrapper("gang", outside)


def two_dialects() -> Json:
    made = app_wrapper("gang", config_map("a"))
    made["spec"]["components"] = [{"template": config_map("b")}]
    return made


def components(*parts: Json) -> Json:
    return {**app_wrapper("gang"), "spec": {"components": list(parts)}}


def two_groups() -> Json:
    """A RayCluster with a head and two workers."""
    made = ray_cluster("ray")
    head = made["spec"]["headGroupSpec"]["template"]
    made["spec"]["workerGroupSpecs"] = [{"groupName": "w", "replicas": 2, "rayStartParams": {}, "template": head}]
    return made


def legacy(obj: Json) -> Json:
    return {**obj, "apiVersion": "mcad.ibm.com/v1beta1"}


ROLE = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": "loot"}}
ITEM = "spec.resources.GenericItems[0].generictemplate"
BAD: dict[str, tuple[Kind, Json, str]] = {
    "another namespace": (
        kinds.APP_WRAPPER,
        elsewhere(),
        f"{ITEM}.metadata.namespace: AppWrappers can not create objects in other namespaces: "
        "write 'default' or leave it out",
    ),
    "another namespace, legacy group": (
        kinds.APP_WRAPPER_LEGACY,
        legacy(elsewhere()),
        f"{ITEM}.metadata.namespace: AppWrappers can not create objects in other namespaces",
    ),
    "amounts of a template": (
        kinds.APP_WRAPPER,
        app_wrapper("gang", job("a", cpu="a lot")),
        "spec.resources.GenericItems[0]: request of cpu on container 'main': 'a lot' is not a quantity",
    ),
    "declared amounts": (
        kinds.APP_WRAPPER,
        app_wrapper("gang", config_map("a"), needs=[needs(1, cpu="-1")]),
        "spec.resources.GenericItems[0].custompodresources[0].requests[cpu]: must be greater than or equal to 0",
    ),
    "a name that is no label": (
        kinds.APP_WRAPPER,
        app_wrapper("gang", config_map("a" * 64)),
        f"{ITEM}.metadata.name: is longer than 63 characters",
    ),
    "a role": (kinds.APP_WRAPPER, app_wrapper("gang", ROLE), f"{ITEM}: Role in {RBAC} cannot be wrapped"),
    "an object of no namespace": (
        kinds.APP_WRAPPER,
        app_wrapper("gang", config_map("a"), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mine"}}),
        "spec.resources.GenericItems[1].generictemplate: Namespace is cluster-scoped",
    ),
    "a path that leads nowhere": (
        kinds.APP_WRAPPER,
        components({"template": config_map("a"), "podSets": [{"path": "template.spec.template"}]}),
        "spec.components[0].podSets[0].path",
    ),
    "one object twice": (
        kinds.APP_WRAPPER,
        app_wrapper("gang", config_map("a", x="1"), config_map("a", x="2")),
        "spec.resources.GenericItems[1].generictemplate.metadata.name: ConfigMap 'a' is wrapped twice",
    ),
    "fewer pods declared than made": (
        kinds.APP_WRAPPER,
        components({"template": job("a", 8, cpu="1"), "podSets": [{"path": "template.spec.template", "replicas": 2}]}),
        "spec.components[0]: podSets: template.spec.template has 2 replicas here and 8 in the template",
    ),
    "a pod template that is not declared": (
        kinds.APP_WRAPPER,
        components({"template": two_groups(), "podSets": [{"path": "template.spec.headGroupSpec.template"}]}),
        "spec.components[0]: podSets: template.spec.workerGroupSpecs.0.template makes pods, too, and is not declared",
    ),
    "a subtree without its tree": (
        kinds.QUOTA_SUBTREE,
        {**quota("x", ""), "metadata": {"name": "subtree", "namespace": "default"}},
        "metadata.labels[tree]: the name of the quota tree is missing",
    ),
}


@pytest.mark.parametrize("kind, body, told", BAD.values(), ids=BAD)
async def test_server_and_webhook_refuse_it_in_the_same_words(
    guarded: Cluster, kind: Kind, body: Json, told: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await guarded.client.create(kind, body, "default")
    assert told in refused.value.message
    assert f"{kind.kind} {body['metadata']['name']!r} is invalid" in refused.value.message
    judge = webhook.AppWrapperJudge(Rights(guarded.client), Discovery(guarded.client))
    verdict = await judge.validate(asked(kind, body))
    assert (verdict.code, verdict.reason, verdict.message) == (422, "Invalid", refused.value.message)
    assert await guarded.names(kind) == []


async def test_both_dialects_at_once_are_refused_by_the_schema_already(guarded: Cluster) -> None:
    for made in (two_dialects(), {**two_dialects(), "spec": {"priority": 1}}):
        with pytest.raises(Invalid, match=r"exactly one of spec\.resources \(v1beta1\) and spec\.components"):
            await guarded.client.create(kinds.APP_WRAPPER, made, "default")
        assert not webhook.validate(asked(kinds.APP_WRAPPER, made)).allowed


def asked(kind: Kind, obj: Json, user: str = "ann") -> AdmissionRequest:
    """What an API server would ask the webhook."""
    return AdmissionRequest(
        uid="1",
        kind=GroupVersionKind(kind.group, kind.version, kind.kind),
        name=obj["metadata"]["name"],
        namespace="default",
        operation="CREATE",
        user_info=User(user, "", ["system:masters"]),
        object=obj,
    )


def nameless() -> Json:
    made = pod("x", cpu="1")
    del made["metadata"]["name"]
    return app_wrapper("gang", made)


@pytest.mark.parametrize(
    "body, told",
    [
        (nameless(), f"{ITEM}.metadata.name: is required; this AppWrapper will fail"),
        (
            {**app_wrapper("gang"), "spec": {"resources": {"GenericItems": [{"replicas": 1}]}}},
            f"{ITEM}: the object to create is missing; this AppWrapper will fail",
        ),
        (
            app_wrapper("gang", {"apiVersion": "v1", "kind": "List", "metadata": {"name": "all"}, "items": []}),
            f"{ITEM}: a List is no object by itself; wrap each of its items; this AppWrapper will fail",
        ),
        (
            app_wrapper("gang", {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "one"}}),
            f"{ITEM}: the cluster serves no Widget in example.com/v1; install its CRD; this AppWrapper will fail",
        ),
    ],
    ids=["no name", "no object", "a list", "a kind that is not there"],
)
async def test_what_mcad_lets_in_gets_in_with_a_warning_and_fails(guarded: Cluster, body: Json, told: str) -> None:
    answer = await guarded.client.request("POST", kinds.APP_WRAPPER.path("default"), body=msgspec.json.encode(body))
    assert told in answer.headers["warning"]
    failed = await guarded.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
    assert trail(failed)[-1][:2] == ("Failed", "ItemCreationFailure.")


async def test_where_sums_decide_an_object_for_another_namespace_gets_in_and_fails_as_in_mcad(guarded: Cluster) -> None:
    """By the choice of the cluster, or of the AppWrapper itself; nothing is ever made over there."""
    guarded.server.admission.judges.update(judges(guarded.client, supply="aggregate"))
    strict = elsewhere()
    strict["metadata"] |= {"name": "strict", "annotations": {SUPPLY: "fit"}}
    with pytest.raises(Invalid, match="objects in other namespaces"):
        await guarded.client.create(kinds.APP_WRAPPER, strict, "default")
    answer = await guarded.client.request(
        "POST", kinds.APP_WRAPPER.path("default"), body=msgspec.json.encode(elsewhere())
    )
    assert "objects in other namespaces" in answer.headers["warning"]
    failed = await guarded.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
    assert trail(failed)[-1][:2] == ("Failed", "ItemCreationFailure.")
    assert 'resource namespace "kube-system" is different' in failed["status"]["message"]
    guarded.server.admission.judges.update(judges(guarded.client))
    lenient = elsewhere()
    lenient["metadata"] |= {"name": "lenient", "annotations": {SUPPLY: "aggregate"}}
    await guarded.client.create(kinds.APP_WRAPPER, lenient, "default")


async def test_what_came_in_without_admission_fails_in_the_end(cluster: Cluster) -> None:
    await cluster.create(kinds.APP_WRAPPER, elsewhere())
    failed = await cluster.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
    assert 'resource namespace "kube-system" is different' in failed["status"]["message"]


async def test_who_may_not_create_the_wrapped_objects_hears_it_at_once(guarded: Cluster) -> None:
    """The right is asked for at submission, and again when an edit changes what is wrapped."""
    await grant(guarded, "bob", "default", WRAPPERS, ("", "configmaps"))
    bob = as_user(guarded, "bob")
    with pytest.raises(Forbidden) as refused:
        await bob.create(kinds.APP_WRAPPER, app_wrapper("loot", pod("x", cpu="1")), "default")
    assert refused.value.message == "User bob is not authorized to create pods in default"
    await bob.create(kinds.APP_WRAPPER, app_wrapper("mine", config_map("a"), needs=[needs(1, cpu="40")]), "default")
    with pytest.raises(Forbidden, match="User bob is not authorized to create pods"):
        await bob.patch(kinds.APP_WRAPPER, "mine", "default", {"spec": app_wrapper("x", pod("loot"))["spec"]})
    await bob.patch(kinds.APP_WRAPPER, "mine", "default", {"spec": {"priority": 3}})
    await bob.delete(kinds.APP_WRAPPER, "mine", "default")


async def test_created_as_the_user_roles_get_in(quiet: Cluster) -> None:
    quiet.server.admission.judges.update(judges(quiet.client, as_creator=True))
    quiet.start(appwrapper.run(quiet.client, appwrapper.AppWrapperSettings(create_as_creator=True)))
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", {**ROLE, "rules": []}))
    await quiet.until(kinds.APP_WRAPPER, "gang", dispatched)
    assert "loot" in await quiet.names(kinds.ROLE)


@pytest.mark.parametrize("stated", [{"replicas": 2}, {"replicas": 5, "maxReplicas": 2}, {}], ids=str)
async def test_pod_sets_that_say_what_the_template_says_get_in(guarded: Cluster, stated: Json) -> None:
    """A group without a number is one pod, as published, whatever its operator will make of it."""
    ray = two_groups()
    group = ray["spec"]["workerGroupSpecs"][0]
    del group["replicas"]
    group.update(stated)
    declared = [
        {"path": "template.spec.headGroupSpec.template"},
        {"path": "template.spec.workerGroupSpecs[0].template", "replicas": stated.get("replicas", 1)},
    ]
    await guarded.client.create(kinds.APP_WRAPPER, components({"template": ray, "podSets": declared}), "default")
    assert await guarded.names(kinds.APP_WRAPPER) == ["gang"]


async def test_components_carry_their_user_and_do_not_change(guarded: Cluster) -> None:
    await grant(guarded, "ann@team", "default", WRAPPERS, ("", "configmaps"))
    ann = as_user(guarded, "ann@team")
    made = await ann.create(kinds.APP_WRAPPER, components({"template": config_map("a")}), "default")
    assert made["metadata"]["labels"]["workload.codeflare.dev/user"] == "ann_team"
    changes: list[Any] = [
        {"components": [{"template": config_map("b")}]},
        {"components": [], "resources": {"GenericItems": []}},
    ]
    for change in changes:
        with pytest.raises(ApiError) as refused:
            await ann.patch(kinds.APP_WRAPPER, "gang", "default", {"spec": change})
        assert refused.value.code == 422
    await ann.patch(kinds.APP_WRAPPER, "gang", "default", {"spec": {"suspend": True}})
