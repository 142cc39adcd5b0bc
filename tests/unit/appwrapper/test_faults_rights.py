"""Ways around the rule that no right is lent: other dialects, other versions, edits, forged stamps, odd kinds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.gang import CREATED_BY
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper.admission import webhook
from shoal.controllers.planning.rights import Rights
from shoal.controllers.planning.stamps import Stamps
from shoal.kube.errors import KubeError
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, has_state, pod, ray_cluster, waits
from tests.unit.appwrapper.test_rights import RBAC, as_user, asks_no_server, grant, request

LEGACY = ("mcad.ibm.com", "appwrappers")
WRAPPERS = ("workload.codeflare.dev", "appwrappers")


def components(name: str, *wraps: Json, **labels: str) -> Json:
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"components": [{"template": one} for one in wraps]},
    }


def generated(obj: Json) -> Json:
    obj["metadata"] = {"generateName": "loot-"}
    return obj


def legacy(name: str, obj: Json) -> Json:
    made = app_wrapper(name)
    made["apiVersion"] = "mcad.ibm.com/v1beta1"
    made["spec"]["resources"] = {"Items": [{"replicas": 1, "type": "RayCluster", "template": obj}]}
    return made


QUEUE = {"kueue.x-k8s.io/queue-name": "theirs"}
WAYS: dict[str, tuple[Kind, Json]] = {
    "v1beta1": (kinds.APP_WRAPPER, app_wrapper("gang", ray_cluster("loot"))),
    "v1beta2": (kinds.APP_WRAPPER_V1BETA2, components("gang", ray_cluster("loot"))),
    "with a queue's label": (kinds.APP_WRAPPER_V1BETA2, components("gang", ray_cluster("loot"), **QUEUE)),
    "with a generated name": (kinds.APP_WRAPPER_V1BETA2, components("gang", generated(ray_cluster("loot")))),
    "in the legacy group": (kinds.APP_WRAPPER_LEGACY, legacy("gang", ray_cluster("loot"))),
    "inside a List": (
        kinds.APP_WRAPPER,
        app_wrapper(
            "gang", {"apiVersion": "v1", "kind": "List", "metadata": {"name": "loot"}, "items": [ray_cluster("loot")]}
        ),
    ),
    "as a list of its kind": (
        kinds.APP_WRAPPER,
        app_wrapper("gang", {**ray_cluster("loot"), "kind": "RayClusterList", "items": [ray_cluster("loot")]}),
    ),
    "by a crooked group": (
        kinds.APP_WRAPPER,
        app_wrapper("gang", {**ray_cluster("loot"), "apiVersion": "ray.io/v1/"}),
    ),
    "inside another AppWrapper": (
        kinds.APP_WRAPPER,
        app_wrapper("gang", app_wrapper("inner", ray_cluster("loot"))),
    ),
}


def is_refused(wrapper: Json) -> bool:
    status = wrapper.get("status", {})
    return "Failed" in (status.get("state"), status.get("phase"))


@proven(without=asks_no_server)
@pytest.mark.parametrize(
    "way", ["v1beta1", "v1beta2", "with a queue's label", "with a generated name", "in the legacy group"]
)
async def test_f112_no_dialect_lends_a_right(cluster: Cluster, way: str) -> None:
    """F112: a user who may create AppWrappers and no RayClusters wraps one, in each dialect, group and form of name.
    Holds: it ends as failed with the missing right named, and no RayCluster was ever there."""
    kind, made = WAYS[way]
    await grant(cluster, "bob", "default", WRAPPERS, LEGACY, ("", "configmaps"))
    await as_user(cluster, "bob").create(kind, made, "default")
    refused = await cluster.until(kind, "gang", is_refused)
    assert "User bob is not authorized to create rayclusters.ray.io in default" in refused["status"]["message"]
    assert await cluster.names(kinds.RAY_CLUSTER) == []


@pytest.mark.parametrize(
    "way", ["inside a List", "as a list of its kind", "by a crooked group", "inside another AppWrapper"]
)
async def test_no_disguise_gets_past(cluster: Cluster, way: str) -> None:
    """Even for someone who may create RayClusters: such an object is refused, and nothing is made of it."""
    kind, made = WAYS[way]
    await grant(cluster, "bob", "default", WRAPPERS, ("ray.io", "rayclusters"))
    try:
        await as_user(cluster, "bob").create(kind, made, "default")
    except KubeError:
        pass  # refused at the door, which is as good
    else:
        await cluster.until(kind, "gang", is_refused)
    await cluster.settled()
    assert await cluster.names(kinds.RAY_CLUSTER) == []
    assert await cluster.names(kinds.APP_WRAPPER) in ([], ["gang"])


@proven(without=asks_no_server)
async def test_f112_an_edit_of_components_answers_for_itself(cluster: Cluster) -> None:
    """F112: someone without rights edits a suspended v1beta2 AppWrapper of the administrator. Holds: refused, or judged
    by the editor's rights; the object they wanted is never there."""
    made = components("gang", config_map("a"))
    made["spec"]["suspend"] = True
    await cluster.create(kinds.APP_WRAPPER_V1BETA2, made)
    await grant(cluster, "bob", "default", WRAPPERS)
    change = {"spec": {"suspend": False, "components": [{"template": ray_cluster("loot")}]}}
    try:
        await as_user(cluster, "bob").patch(kinds.APP_WRAPPER_V1BETA2, "gang", "default", change)
    except KubeError:
        change = {"spec": {"suspend": False}}  # templates do not change once they are there
        await cluster.client.patch(kinds.APP_WRAPPER_V1BETA2, "gang", "default", change)
        await cluster.until(kinds.CONFIG_MAP, "a", lambda one: True)
    else:
        refused = await cluster.until(kinds.APP_WRAPPER_V1BETA2, "gang", is_refused)
        assert "User bob is not authorized" in refused["status"]["message"]
    assert await cluster.names(kinds.RAY_CLUSTER) == []


def believes_any_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Stamps.__init__
    monkeypatch.setattr(
        Stamps, "__init__", lambda self, client, clock, by, *more: original(self, client, clock, "server", *more)
    )
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


STAMPER = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingWebhookConfiguration",
    "metadata": {"name": "shoal"},
    "webhooks": [
        {
            "name": "stamp.shoal.dev",
            "clientConfig": {"url": "https://127.0.0.1:1/stamp"},
            "rules": [{"apiGroups": ["none"], "apiVersions": ["v1"], "resources": ["none"], "operations": ["CREATE"]}],
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
    ],
}


def forged(name: str) -> Json:
    made = app_wrapper(name, config_map(f"of-{name}"))
    stamp = {"user": "root", "uid": "", "groups": ["system:masters"], "extra": {}}
    made["metadata"]["annotations"] = {CREATED_BY: msgspec.json.encode(stamp).decode()}
    return made


@proven(without=believes_any_stamp)
async def test_f114_a_stamp_that_anyone_could_have_written_counts_as_none(
    quiet: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F114: a user writes the creator's stamp by hand where no webhook was there to overwrite it, before the webhook is
    installed. Holds: it waits and says what to install, also after the installation; one made later is started."""
    monkeypatch.setattr("shoal.local.apiserver.admission.plugins.stamp_creator", lambda call, obj, old: None)
    quiet.start(planned(quiet.client, AppWrapperSettings(stamps="webhook")).run())
    await quiet.create(kinds.APP_WRAPPER, forged("early"))
    waiting = await quiet.until(kinds.APP_WRAPPER, "early", waits)
    assert "install the admission webhook" in waiting["status"]["message"]
    old = {**STAMPER, "metadata": {"name": "shoal"}}
    await quiet.create(kinds.MUTATING_WEBHOOK, old)
    await quiet.settled()
    assert "of-early" not in await quiet.names(kinds.CONFIG_MAP)
    since = (await quiet.get(kinds.MUTATING_WEBHOOK, "shoal"))["metadata"]["creationTimestamp"]
    later = await _made_after(quiet, since)
    await quiet.until(kinds.APP_WRAPPER, later, dispatched)
    assert waits(await quiet.get(kinds.APP_WRAPPER, "early"))


async def _made_after(cluster: Cluster, since: str) -> str:
    """Times are told in seconds: make AppWrappers until one is younger."""
    import asyncio

    for number in range(100):
        made = await cluster.create(kinds.APP_WRAPPER, forged(f"late-{number}"))
        if made["metadata"]["creationTimestamp"] > since:
            return f"late-{number}"
        await asyncio.sleep(0.05)
    raise AssertionError("the clock stands still")


ESCALATING: list[Json] = [
    {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "loot"}},
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "l"},
    },
    {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "loot"}},
    {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {"name": "loot"}},
    {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "loot"}},
    {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "loot"}},
    {"apiVersion": "mcad.ibm.com/v1beta1", "kind": "AppWrapper", "metadata": {"name": "loot"}, "spec": {}},
]


def lets_all_kinds_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "refused_kind", lambda group, kind: "")
    monkeypatch.setattr("shoal.controllers.appwrapper.dispatch.refused_kind", lambda group, kind: "")
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


@proven(without=lets_all_kinds_pass)
async def test_f113_no_kind_that_escalates_is_created_with_our_rights(cluster: Cluster) -> None:
    """F113: bindings, webhooks, CRDs, tokens, certificates and API services are wrapped by the administrator. Holds:
    refused at the door by the webhook and again at dispatch, by name."""
    for number, wrapped in enumerate(ESCALATING):
        made = app_wrapper(f"g{number}", wrapped)
        verdict = webhook.validate(request(made))
        assert not verdict.allowed and "depends on its creator" in verdict.message, wrapped["kind"]
        await cluster.create(kinds.APP_WRAPPER, made)
        refused = await cluster.until(kinds.APP_WRAPPER, f"g{number}", has_state("Failed"))
        assert "depends on its creator" in refused["status"]["message"], wrapped["kind"]


async def test_a_question_that_cannot_be_answered_is_asked_again_and_nothing_is_created_meanwhile(
    quiet: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = [KubeError("the API server is busy"), None]

    async def missing(self: Rights, *question: Any) -> None:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is not None:
            assert "x" not in await quiet.names(kinds.POD)
            raise answer

    monkeypatch.setattr(Rights, "missing", missing)
    quiet.start(planned(quiet.client, AppWrapperSettings()).run())
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", pod("x", cpu="1")))
    await quiet.until(kinds.APP_WRAPPER, "gang", dispatched)
    assert answers == [None]
