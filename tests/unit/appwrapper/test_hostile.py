"""Users who mean harm, or who slip: forged statuses, templates that are none, owners and finalizers of their own."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers import appwrapper
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper.dispatch import Objects
from shoal.controllers.appwrapper.reconciler import AppWrapperReconciler
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import (
    app_wrapper,
    config_map,
    dispatched,
    has_state,
    kept,
    needs,
    pod,
    ray_cluster,
    waits,
)
from tests.unit.appwrapper.test_faults_rights import components
from tests.unit.appwrapper.test_rights import WRAPPERS, as_user, grant

COMPONENTS = kinds.APP_WRAPPER_V1BETA2
STATUS = ("workload.codeflare.dev", "appwrappers/status")
ADMITTED = {"canrun": True, "state": "Pending", "queuejobstate": "HeadOfLine", "admission": '{"epoch":1}'}


WIDGETS: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def believes_statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppWrapperReconciler, "_go_on", AppWrapperReconciler._dispatch)
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


@proven(without=believes_statuses)
async def test_f114_an_admission_that_the_creator_wrote_lends_no_right(quiet: Cluster) -> None:
    """F114: a user who may write statuses, but create no RayCluster, writes that theirs is admitted. Holds: the right
    is asked for all the same; it fails, and nothing is created."""
    await grant(quiet, "bob", "default", WRAPPERS, STATUS)
    bob = as_user(quiet, "bob")
    await bob.create(kinds.APP_WRAPPER, app_wrapper("gang", ray_cluster("loot")), "default")
    await bob.patch(kinds.APP_WRAPPER, "gang", "default", {"status": ADMITTED}, subresource="status")
    quiet.start(appwrapper.run(quiet.client))
    refused = await quiet.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
    assert "User bob is not authorized to create rayclusters.ray.io" in refused["status"]["message"]
    assert await quiet.names(kinds.RAY_CLUSTER) == []


@proven(without=believes_statuses)
async def test_f114_an_admission_of_an_unstamped_one_is_called_off(quiet: Cluster) -> None:
    """F114: the same where nothing records creators. Holds: it goes back to wait, and says what to install."""
    quiet.start(planned(quiet.client, AppWrapperSettings(stamps="webhook")).run())
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("loot")))
    await quiet.until(kinds.APP_WRAPPER, "gang", waits)
    await quiet.client.patch(kinds.APP_WRAPPER, "gang", "default", {"status": ADMITTED}, subresource="status")
    back = await quiet.until(kinds.APP_WRAPPER, "gang", lambda obj: not obj["status"].get("canrun"))
    await quiet.settled()
    assert "install the admission webhook" in back["status"]["message"]
    assert "loot" not in await quiet.names(kinds.CONFIG_MAP)


def believes_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Objects, wrapper: object) -> None:
        return None

    monkeypatch.setattr(Objects, "forbidden", nothing)
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


@proven(without=believes_phases)
async def test_f114_a_phase_that_the_creator_wrote_lends_no_right(quiet: Cluster) -> None:
    """F114: the same in the other dialect, by the phase. Holds: as above."""
    await grant(quiet, "bob", "default", WRAPPERS, STATUS)
    bob = as_user(quiet, "bob")
    await bob.create(COMPONENTS, components("gang", ray_cluster("loot")), "default")
    await bob.patch(COMPONENTS, "gang", "default", {"status": {"phase": "Resuming"}}, subresource="status")
    quiet.start(appwrapper.run(quiet.client))
    await quiet.until(COMPONENTS, "gang", lambda obj: obj["status"].get("phase") == "Failed")
    assert await quiet.names(kinds.RAY_CLUSTER) == []


async def test_what_another_controller_manages_takes_no_room(cluster: Cluster) -> None:
    for name, labels in (("theirs", {}), ("queued", {"kueue.x-k8s.io/queue-name": "a"})):
        theirs = components(name, pod(name, cpu="4"), **labels)
        theirs["spec"]["managedBy"] = "example.com/other"
        await cluster.create(COMPONENTS, theirs)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("ours", pod("ours", cpu="4")))
    await cluster.until(kinds.APP_WRAPPER, "ours", dispatched)
    assert await cluster.names(kinds.POD) == ["ours"]
    assert "phase" not in (await cluster.get(COMPONENTS, "theirs")).get("status", {})


async def test_one_object_wrapped_twice_fails_where_no_webhook_refused_it(cluster: Cluster) -> None:
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("twin", a="1"), config_map("twin", a="2")))
    failed = await cluster.until(kinds.APP_WRAPPER, "gang", has_state("Failed"))
    assert "GenericItems[1].generictemplate: ConfigMap twin is wrapped twice" in failed["status"]["message"]
    assert "twin" not in await cluster.names(kinds.CONFIG_MAP)


async def test_a_kind_installed_later_is_met_without_a_restart(cluster: Cluster) -> None:
    container = {"name": "a", "resources": {"requests": {"cpu": "3"}}}
    spec = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "one"}, "spec": spec}
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("early", widget))
    early = await cluster.until(kinds.APP_WRAPPER, "early", has_state("Failed"))
    assert "the cluster serves no Widget in example.com/v1; install its CRD" in early["status"]["message"]
    await cluster.create(kinds.CRD, WIDGETS)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("late", widget))
    await cluster.until(kinds.APP_WRAPPER, "late", dispatched)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("next", pod("next", cpu="2")))
    await cluster.until(kinds.APP_WRAPPER, "next", waits)


async def test_one_that_dies_with_its_namespace_keeps_nothing_from_others(cluster: Cluster) -> None:
    held = {"name": "dying", "finalizers": ["example.com/later"]}
    await cluster.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": held})
    made = kept(app_wrapper("gang", config_map("a"), needs=[needs(1, cpu="40")]))
    made["metadata"]["namespace"] = "dying"
    await cluster.create(kinds.APP_WRAPPER, made)
    await cluster.until(kinds.APP_WRAPPER, "gang", waits, "dying")
    await cluster.client.delete(kinds.NAMESPACE, "dying")
    await cluster.until(kinds.APP_WRAPPER, "gang", lambda obj: bool(obj["metadata"].get("deletionTimestamp")), "dying")
    await cluster.add_node("large", cpu="41")
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("other", pod("other", cpu="41")))
    await cluster.until(kinds.APP_WRAPPER, "other", dispatched)


NO_TEMPLATES: list[object] = [
    {"metadata": "text", "spec": {"containers": [{"name": "a"}]}},
    {"metadata": 7, "spec": {"containers": [{"name": "a"}]}},
    {"metadata": {"labels": ["a"]}, "spec": {"containers": [{"name": "a"}]}},
    {"metadata": {"labels": "text"}},
    {"spec": "text"},
    {"spec": {"containers": "text"}},
    {"spec": {"containers": [1, None]}},
    {"spec": {"containers": [{"name": "a", "resources": 4}]}},
    {"spec": {"containers": [{"name": "a", "resources": {"requests": ["cpu"]}}]}},
    {"spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": {"a": 1}}}}]}},
    {"spec": {"containers": [{"name": "a"}], "tolerations": "all", "nodeSelector": ["a"], "affinity": "no"}},
    {"spec": {"containers": [{"name": "a", "ports": [1, {"hostPort": "x"}]}], "overhead": 5}},
    [1],
    "text",
]


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "read"])
async def test_a_template_that_is_none_ends_in_words(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, declared: bool
) -> None:
    """Whatever stands where a pod template should: it fails or waits, says why, and nothing is raised."""
    amounts = [needs(1, cpu="1m")] if declared else None
    for number, template in enumerate(NO_TEMPLATES):
        spec = {"selector": {}, "template": template}
        odd = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": f"odd-{number}"}, "spec": spec}
        await cluster.create(kinds.APP_WRAPPER, app_wrapper(f"gang-{number}", odd, needs=amounts))
    for number in range(len(NO_TEMPLATES)):
        told = await cluster.until(
            kinds.APP_WRAPPER, f"gang-{number}", lambda obj: bool(obj.get("status", {}).get("message"))
        )
        assert told["status"]["state"] in ("Failed", "Pending")
    assert await cluster.names(kinds.DEPLOYMENT) == []
    assert not [record.getMessage() for record in caplog.records if record.exc_info]
