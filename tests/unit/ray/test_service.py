"""A RayService from creation over upgrades to its end, and what it survives on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from shoal.api import kinds, ray_gang
from shoal.api.crds import load_crds
from shoal.api.labels import KUEUE_JOB_UID, KUEUE_QUEUE
from shoal.controllers.ray import RaySettings, names, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.service import applications, entrances, reconciler, rules, spec_changes
from shoal.controllers.ray.service.clusters import ServiceClusters
from shoal.sdk.explaining import explain_to
from shoal.sdk.rows import rows_of
from tests.conformance.rayservice_traces import ServiceStage
from tests.faults import proven
from tests.unit.ray.builders import cluster_spec, container, group

Json = dict[str, Any]
READY = {"do": "setPods", "phase": "Running", "ready": True}
CONFIG = "applications:\n- name: app1\n  import_path: m:app\n"
EPOCH = "1970-01-01T00:00:00Z"
WORK = {"podSets": [{"name": "head", "count": 1, "template": {"spec": {"containers": [container("ray-head")]}}}]}
STEPS = {"stepSizePercent": 50, "maxSurgePercent": 100, "intervalSeconds": 10, "gatewayClassName": "any"}


@pytest.fixture
async def stage() -> AsyncIterator[ServiceStage]:
    stage = ServiceStage(RaySettings())
    stage.scripted.answers, stage.scripted.proxies_healthy = "RUNNING", True
    await stage.start()
    yield stage
    await stage.stop()


def config_of(image: str = "rayproject/ray:2.60.0", **more: Any) -> Json:
    head = {"template": {"spec": {"containers": [{**container("ray-head"), "image": image}]}}}
    return cluster_spec(group(replicas=1), head=head, **more)


def ray_service(config: Json | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "svc1", "namespace": "default"},
        "spec": {"rayClusterConfig": config or config_of(), "serveConfigV2": CONFIG, **spec},
    }


async def served(stage: ServiceStage, service: Json | None = None) -> Json:
    """A service whose first cluster serves."""
    await stage.client.create(kinds.RAY_SERVICE, service or ray_service(), "default")
    await ready(stage)
    return await status(stage)


async def ready(stage: ServiceStage) -> None:
    await stage.settle()
    await stage.play(READY)
    await stage.settle()


async def changed(stage: ServiceStage, **spec: Any) -> Json:
    await stage.client.patch(kinds.RAY_SERVICE, "svc1", "default", {"spec": spec})
    await stage.settle()
    return await status(stage)


async def status(stage: ServiceStage) -> Json:
    return (await stage.client.get(kinds.RAY_SERVICE, "svc1", "default")).get("status") or {}


async def leads_to(stage: ServiceStage) -> str:
    service = await stage.client.get(kinds.SERVICE, "svc1-serve-svc", "default")
    return str(service["spec"]["selector"]["ray.io/cluster"])


def names_of(told: Json) -> tuple[str, str]:
    return tuple(  # type: ignore[return-value]
        (told.get(f"{role}ServiceStatus") or {}).get("rayClusterName", "") for role in ("active", "pending")
    )


def condition(told: Json, kind: str) -> tuple[str, str]:
    return next(((one["status"], one["reason"]) for one in told["conditions"] if one["type"] == kind), ("", ""))


async def test_a_new_image_is_served_by_a_second_cluster_and_the_first_goes(stage: ServiceStage) -> None:
    first, _ = names_of(await served(stage))
    told = await changed(stage, rayClusterConfig=config_of("rayproject/ray:2.61.0"))
    active, second = names_of(told)
    assert active == first and second
    assert await leads_to(stage) == first and condition(told, "UpgradeInProgress")[0] == "True"
    await stage.play(READY)
    await stage.settle()
    assert names_of(await status(stage)) == (second, "") and await leads_to(stage) == second
    stage.clock.advance(61)
    await stage.settle()
    assert [view.name(one) for one in stage.objects(kinds.RAY_CLUSTER)] == [second]


@pytest.mark.parametrize(
    "change, clusters",
    [
        ({"serveConfigV2": "applications: []"}, 1),  # goes to the cluster that serves
        ({"rayClusterConfig": config_of(rayVersion="2.60.1")}, 2),
        ({"rayClusterConfig": config_of(rayVersion="2.60.1"), "upgradeStrategy": {"type": "None"}}, 1),
        ({"rayClusterConfig": config_of(suspend=True)}, 1),  # a queue's business, once the cluster is there
    ],
)
async def test_what_a_change_brings(stage: ServiceStage, change: Json, clusters: int) -> None:
    await served(stage)
    await changed(stage, **change)
    assert len(stage.objects(kinds.RAY_CLUSTER)) == clusters


async def test_a_cluster_that_waits_in_a_queue_says_why_in_the_words_of_its_queue(stage: ServiceStage) -> None:
    await stage.client.create(kinds.CRD, next(one for one in load_crds() if one["spec"]["names"]["kind"] == "Workload"))
    service = ray_service()
    service["metadata"]["labels"] = {KUEUE_QUEUE: "team"}
    await served(stage, service)
    _, second = names_of(await changed(stage, rayClusterConfig=config_of("rayproject/ray:2.61.0", suspend=True)))
    cluster = await stage.client.get(kinds.RAY_CLUSTER, second, "default")
    stage.clock.advance(31)
    await stage.settle()
    assert "is suspended, for example until its queue starts it" in upgrade_message(await status(stage))
    await store_workload(stage, cluster, "couldn't assign flavors to pod set head: 2 cpu more needed")
    stage.clock.advance(31)
    await stage.settle()
    assert upgrade_message(await status(stage)).endswith(
        f"RayCluster {second} waits in queue team: couldn't assign flavors to pod set head: 2 cpu more needed"
    )
    asked = await explain_to(stage.client, (kinds.RAY_SERVICE,), "svc1", "default")
    assert (asked["kind"], asked["name"], asked["state"]) == ("RayCluster", second, "queued")
    assert asked["message"] == "couldn't assign flavors to pod set head: 2 cpu more needed"
    await stage.client.patch(kinds.RAY_CLUSTER, second, "default", {"spec": {"suspend": False}})
    stage.clock.advance(31)
    await stage.settle()
    assert "queue" not in upgrade_message(await status(stage))


def upgrade_message(told: Json) -> str:
    return next(str(one["message"]) for one in told["conditions"] if one["type"] == "UpgradeInProgress")


async def store_workload(stage: ServiceStage, cluster: Json, message: str) -> None:
    """The Workload of a cluster as its queue keeps it, and one that only claims to be."""
    for name, owner in (("a-claim", "another"), ("raycluster", view.uid(cluster))):
        reference = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": view.name(cluster), "uid": owner}
        metadata = {"name": name, "labels": {KUEUE_JOB_UID: view.uid(cluster)}}
        metadata["ownerReferences"] = [{**reference, "controller": True}]
        made = {"apiVersion": kinds.WORKLOAD.api_version, "kind": "Workload", "metadata": metadata, "spec": WORK}
        stored = await stage.client.create(kinds.WORKLOAD, made, "default")
        waits = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "lastTransitionTime": EPOCH}
        told = {"conditions": [{**waits, "message": message if owner == view.uid(cluster) else "of another"}]}
        await stage.client.patch(
            kinds.WORKLOAD, stored["metadata"]["name"], "default", {"status": told}, subresource="status"
        )


async def test_appended_groups_keep_what_the_autoscaler_made(stage: ServiceStage) -> None:
    config = config_of(enableInTreeAutoscaling=True)
    await served(stage, ray_service(config))
    await stage.play({"do": "patchCluster", "cluster": "active", "replicas": 3})
    grown = {**config, "workerGroupSpecs": [*config["workerGroupSpecs"], group("more", replicas=1)]}
    await changed(stage, rayClusterConfig=grown)
    (cluster,) = stage.objects(kinds.RAY_CLUSTER)
    assert [one["replicas"] for one in view.groups(cluster)] == [3, 1]


async def test_an_incremental_upgrade_moves_by_steps_and_goes_back_when_asked(stage: ServiceStage) -> None:
    stage.gateway_ready = True
    config = config_of(enableInTreeAutoscaling=True)
    strategy = {"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": STEPS}
    first, _ = names_of(await served(stage, ray_service(config, upgradeStrategy=strategy)))
    await changed(stage, rayClusterConfig=config_of("rayproject/ray:2.61.0", enableInTreeAutoscaling=True))
    await ready(stage)
    stage.clock.advance(11)
    await stage.settle()
    told = await status(stage)
    assert (told["activeServiceStatus"]["trafficRoutedPercent"], told["pendingServiceStatus"]["targetCapacity"]) == (
        50,
        100,
    )
    told = await changed(stage, rayClusterConfig=config)
    assert condition(told, "RollbackInProgress") == ("True", "DesiredClusterSpecChanged")
    for _ in range(3):
        stage.clock.advance(11)
        await stage.settle()
    told = await status(stage)
    assert names_of(told) == (first, "") and condition(told, "RollbackInProgress") == ("", "")
    assert told["activeServiceStatus"]["trafficRoutedPercent"] == 100


async def test_a_third_spec_goes_back_first_and_its_config_never_reaches_the_first_cluster(stage: ServiceStage) -> None:
    stage.gateway_ready = True
    strategy = {"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": STEPS}
    service = ray_service(config_of(enableInTreeAutoscaling=True), upgradeStrategy=strategy)
    first, _ = names_of(await served(stage, service))
    second = names_of(
        await changed(stage, rayClusterConfig=config_of("rayproject/ray:2.61.0", enableInTreeAutoscaling=True))
    )[1]
    await ready(stage)
    third_config = config_of("rayproject/ray:2.62.0", enableInTreeAutoscaling=True)
    await changed(stage, rayClusterConfig=third_config, serveConfigV2=CONFIG.replace("m:app", "new:app"))
    for _ in range(4):
        stage.clock.advance(11)
        await ready(stage)
    told = await status(stage)
    assert names_of(told)[1] == "" and names_of(told)[0] not in (first, second)  # by an upgrade of its own
    sent = {body["applications"][0]["import_path"] for cluster, body in stage.scripted.submissions if cluster == first}
    assert sent == {"m:app"}


async def test_a_start_that_takes_too_long_is_given_up_and_begins_again_after_a_suspension(stage: ServiceStage) -> None:
    stage.scripted.answers = "DEPLOYING"
    service = ray_service()
    service["metadata"]["annotations"] = {"ray.io/initializing-timeout": "5m"}
    await served(stage, service)
    stage.clock.advance(301)
    await stage.settle()
    assert condition(await status(stage), "Ready") == ("False", "InitializingTimeout")
    await changed(stage, suspend=True)
    stage.scripted.answers = "RUNNING"
    await changed(stage, suspend=False)
    await ready(stage)
    assert condition(await status(stage), "Ready") == ("True", "NonZeroServeEndpoints")


async def test_an_invalid_spec_is_told_and_a_correction_goes_on(stage: ServiceStage) -> None:
    await stage.client.create(kinds.RAY_SERVICE, ray_service(upgradeStrategy={"type": "Rolling"}), "default")
    await stage.settle()
    assert condition(await status(stage), "Ready") == ("False", "ValidationFailed")
    assert stage.objects(kinds.RAY_CLUSTER) == []
    await changed(stage, upgradeStrategy={"type": "NewCluster"})
    await ready(stage)
    assert condition(await status(stage), "Ready") == ("True", "NonZeroServeEndpoints")


def test_a_message_names_the_applications_that_do_not_run_and_why() -> None:
    failed = {"status": "DEPLOY_FAILED", "message": "Deploying 'bad' failed:\nTraceback of many lines"}
    stored = {"good": {"status": "RUNNING"}, "bad": failed, "later": {"status": "DEPLOYING"}}
    assert applications.why_not_ready(stored) == "bad is DEPLOY_FAILED (Deploying 'bad' failed:), later is DEPLOYING"
    many = {f"app{number}": {"status": "DEPLOYING"} for number in range(5)}
    assert applications.why_not_ready(many).endswith("app2 is DEPLOYING, 2 more")
    assert applications.why_not_ready({"good": {"status": "RUNNING"}}) == ""


async def test_a_config_that_is_not_yaml_fails_at_submission(stage: ServiceStage) -> None:
    await served(stage, ray_service(serveConfigV2="a: [1"))
    assert stage.scripted.submissions == []
    told = [one for one in stage.objects(kinds.EVENT) if one["reason"] == "FailedToUpdateServeApplications"]
    assert [one.get("count", 1) for one in told] == [1]  # after several passes


@pytest.mark.parametrize(
    "text, seconds",
    [("5m", 300), ("1h30m", 5400), ("1.5s", 1.5), ("90", 90), ("1d", None), ("-5m", None), ("0", None), ("", None)],
)
def test_initializing_timeout(text: str, seconds: float | None) -> None:
    assert rules.initializing_timeout({"metadata": {"annotations": {"ray.io/initializing-timeout": text}}}) == seconds


def test_fields_that_a_queue_or_an_autoscaler_changes_are_not_part_of_the_hash() -> None:
    before = config_of()
    after = view.clone(before)
    after["suspend"] = True
    after["workerGroupSpecs"][0].update(replicas=7, minReplicas=1, maxReplicas=9)
    after["headGroupSpec"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
    assert spec_changes.config_hash(before) == spec_changes.config_hash(after)
    assert spec_changes.config_hash(before) != spec_changes.config_hash(config_of("another"))


async def test_an_upgrade_waits_for_room_for_its_whole_second_cluster_and_says_so() -> None:
    stage = ServiceStage(RaySettings(gang="on"))
    stage.scripted.answers, stage.scripted.proxies_healthy = "RUNNING", True
    await stage.start()
    try:
        await stage.client.create(kinds.RAY_SERVICE, ray_service(), "default")
        await stage.settle()
        assert stage.objects(kinds.POD) == []
        first = names_of(await status(stage))[1]
        await room(stage, first, True)
        await ready(stage)
        second = names_of(await changed(stage, rayClusterConfig=config_of("rayproject/ray:2.61.0")))[1]
        revision = stage.server.revisions(kinds.RAY_SERVICE)
        await room(stage, second, False)
        assert stage.server.revisions(kinds.RAY_SERVICE) == revision  # words alone wait a moment, and are one write
        stage.clock.advance(5)
        await stage.settle()
        told = await status(stage)
        assert await leads_to(stage) == first and told["serviceStatus"] == "Running"
        assert [view.labels(pod)["ray.io/cluster"] for pod in stage.objects(kinds.POD)] == [first, first]
        (said,) = (one["message"] for one in told["conditions"] if one["type"] == "UpgradeInProgress")
        assert f"RayCluster {second} waits for room: 1 cpu is missing" in said
        listed = {row["name"]: row["state"] for row in await rows_of(stage.client, "default")}
        assert listed == {first: "ready", second: "waiting"}
    finally:
        await stage.stop()


async def room(stage: ServiceStage, cluster: str, found: bool) -> None:
    """As the planning side says it."""
    held = await stage.client.get(kinds.RAY_CLUSTER, cluster, "default")
    assert ray_gang.is_gang(held)
    told = "" if found else "1 cpu is missing"
    conditions = ray_gang.with_condition(held, found, "Test", told, "2026-05-04T10:00:00Z")
    change = {"status": {"conditions": conditions}}
    await stage.client.patch(kinds.RAY_CLUSTER, cluster, "default", change, subresource="status")
    await stage.settle()


# --- faults


def errors_end_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*arguments: object, **more: object) -> bool:
        raise RuntimeError("the dashboard does not answer")

    monkeypatch.setattr(reconciler.ServeApplications, "ask", fails)


@proven(without=errors_end_the_pass)
async def test_f240_a_dashboard_that_does_not_answer_leaves_the_status_true(stage: ServiceStage) -> None:
    """F240: the dashboard of a serving cluster stops answering, its pods fail. Holds: endpoints and Ready follow."""
    await served(stage)
    stage.scripted.all_down, stage.scripted.proxies_healthy = True, False
    await stage.play({**READY, "ready": False})
    await stage.settle()
    told = await status(stage)
    assert told["numServeEndpoints"] == 0 and condition(told, "Ready") == ("False", "ZeroServeEndpoints")


def pods_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: object, cluster: object) -> None:
        return None

    monkeypatch.setattr(reconciler.ServeApplications, "retire", nothing)


@proven(without=pods_go_at_once)
async def test_f670_serve_is_ended_before_the_pods_of_a_cluster_that_served(stage: ServiceStage) -> None:
    """F670: clients keep connections to the first cluster until an upgrade deletes it. Holds: its proxies close them
    before anything else of its Ray ends, so that no client is answered by a proxy that has nothing behind it."""
    first, _ = names_of(await served(stage))
    await changed(stage, rayClusterConfig=config_of("rayproject/ray:2.61.0"))
    await ready(stage)
    assert stage.scripted.ended == []
    stage.clock.advance(61)
    await stage.settle()
    assert stage.scripted.ended == [first]
    assert first not in [view.name(one) for one in stage.objects(kinds.RAY_CLUSTER)]


def connections_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: object, cluster: object) -> bool:
        return True

    monkeypatch.setattr(reconciler.ServeApplications, "release", nothing)


@proven(without=connections_are_kept)
async def test_f780_a_cluster_that_serves_no_more_lets_go_of_its_connections_at_once(stage: ServiceStage) -> None:
    """F780: clients with connection pools go on sending requests to the first cluster after an upgrade, until it ends.
    Holds: its proxies close each connection with an answer as soon as the Services lead elsewhere; asked once, and
    again while the dashboard does not answer."""
    first, _ = names_of(await served(stage))
    await changed(stage, rayClusterConfig=config_of("rayproject/ray:2.61.0"))
    assert stage.scripted.released == []
    stage.scripted.down = {first}
    await ready(stage)
    assert await leads_to(stage) != first and stage.scripted.released == []
    stage.scripted.down = set()
    stage.clock.advance(2)
    await stage.settle()
    assert stage.scripted.released == [first] and stage.scripted.ended == []
    stage.clock.advance(61)
    await stage.settle()
    assert stage.scripted.released == [first] and stage.scripted.ended == [first]


@pytest.mark.parametrize("namespace, is_ended", [(None, True), ("ours", False)])
async def test_serve_is_not_ended_where_two_clusters_share_what_it_stores(
    stage: ServiceStage, namespace: str | None, is_ended: bool
) -> None:
    options = {"redisAddress": "redis:6379"} | ({"externalStorageNamespace": namespace} if namespace else {})
    first, _ = names_of(await served(stage, ray_service(config_of(gcsFaultToleranceOptions=options))))
    newer = config_of("rayproject/ray:2.61.0", gcsFaultToleranceOptions=options)
    await changed(stage, rayClusterConfig=newer)
    await ready(stage)
    stage.clock.advance(61)
    await stage.settle()
    assert stage.scripted.ended == ([first] if is_ended else [])
    assert stage.scripted.released == stage.scripted.ended


async def test_a_dashboard_that_does_not_answer_holds_up_no_deletion(stage: ServiceStage) -> None:
    first, _ = names_of(await served(stage))
    await changed(stage, rayClusterConfig=config_of("rayproject/ray:2.61.0"))
    await ready(stage)
    stage.scripted.down = {first}
    stage.clock.advance(61)
    await stage.settle()
    assert first not in [view.name(one) for one in stage.objects(kinds.RAY_CLUSTER)]


def anything_counts_as_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applications, "is_ready", bool)


@proven(without=anything_counts_as_ready)
async def test_f241_a_bad_application_never_takes_over(stage: ServiceStage) -> None:
    """F241: the application of an upgrade fails to deploy. Holds: requests go to the cluster that served before."""
    first, _ = names_of(await served(stage))
    stage.scripted.answers = "DEPLOY_FAILED"
    await changed(stage, rayClusterConfig=config_of("rayproject/ray:2.61.0"))
    await ready(stage)
    told = await status(stage)
    assert await leads_to(stage) == first and names_of(told)[0] == first
    assert told["pendingServiceStatus"]["applicationStatuses"]["app1"]["status"] == "DEPLOY_FAILED"


def no_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec_changes, "matches", lambda service, cluster: False)


@proven(without=no_cancel)
async def test_f242_an_upgrade_that_is_taken_back_makes_no_third_cluster(stage: ServiceStage) -> None:
    """F242: the spec goes back while the second cluster starts. Holds: that one goes, none is made beside the first."""
    first, _ = names_of(await served(stage))
    await changed(stage, rayClusterConfig=config_of("rayproject/ray:2.61.0"))
    assert names_of(await changed(stage, rayClusterConfig=config_of())) == (first, "")
    stage.clock.advance(61)
    await stage.settle()
    assert [view.name(one) for one in stage.objects(kinds.RAY_CLUSTER)] == [first]


def every_service_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrances, "owned_by", lambda thing, owner: True)


@proven(without=every_service_is_ours)
async def test_f243_a_service_of_another_owner_is_left_alone(stage: ServiceStage) -> None:
    """F243: a Service of the name that is needed belongs to another owner. Holds: it stays as it is, which is told."""
    other = {"metadata": {"name": "svc1-serve-svc"}, "spec": {"selector": {"app": "other"}, "ports": [{"port": 80}]}}
    await stage.client.create(kinds.SERVICE, {"apiVersion": "v1", "kind": "Service", **other}, "default")
    told = await served(stage)
    held = await stage.client.get(kinds.SERVICE, "svc1-serve-svc", "default")
    assert held["spec"]["selector"] == {"app": "other"}
    assert names_of(told)[0] == "" and "Warning FailedToUpdateService" in stage._events()


def names_are_not_stored_first(monkeypatch: pytest.MonkeyPatch) -> None:
    bring_about = ServiceClusters.bring_about

    async def made_at_once(self: ServiceClusters, at: Any) -> None:
        if not at.name(reconciler.PENDING) and at.active is None:
            self.prepare(at)
        await bring_about(self, at)

    monkeypatch.setattr(ServiceClusters, "bring_about", made_at_once)


@proven(without=names_are_not_stored_first)
async def test_f244_a_crash_before_the_status_is_stored_leaves_one_cluster(
    stage: ServiceStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F244: the operator dies before it can store a status. Holds: no cluster exists that the status does not name."""

    async def dies(*arguments: object, **more: object) -> bool:
        raise RuntimeError("killed")

    await stage.client.create(kinds.RAY_SERVICE, ray_service(), "default")
    await stage.one_pass()  # the finalizer
    with monkeypatch.context() as patch:
        patch.setattr(reconciler.RayServiceReconciler, "_publish", dies)
        with pytest.raises(RuntimeError):
            await stage.one_pass()
    await stage.restart_operator()
    await stage.settle()
    assert [view.name(one) for one in stage.objects(kinds.RAY_CLUSTER)] == [names_of(await status(stage))[1]]


def the_dead_cluster_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name in the status is taken for a cluster."""
    switch = reconciler.RayServiceReconciler._switch

    async def without(self: Any, at: Any, active_ready: bool, pending_ready: bool, incremental: bool, rollback: bool):
        waits = incremental and at.name(reconciler.ACTIVE) and at.active is None
        return await switch(self, at, active_ready, pending_ready and not waits, incremental, rollback)

    monkeypatch.setattr(reconciler.RayServiceReconciler, "_switch", without)


@proven(without=the_dead_cluster_counts)
async def test_f247_the_new_cluster_takes_over_when_the_old_one_is_deleted_halfway(stage: ServiceStage) -> None:
    """F247: the active cluster is deleted during an incremental upgrade. Holds: the other one serves all, by itself."""
    strategy = {"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": STEPS}
    await served(stage, ray_service(config_of(enableInTreeAutoscaling=True), upgradeStrategy=strategy))
    changed_config = config_of("rayproject/ray:2.61.0", enableInTreeAutoscaling=True)
    second = names_of(await changed(stage, rayClusterConfig=changed_config))[1]
    await ready(stage)
    await stage.play({"do": "deleteCluster", "cluster": "active"})
    await stage.settle()
    await ready(stage)
    told = await status(stage)
    assert names_of(told) == (second, "") and condition(told, "Ready")[0] == "True"
    assert told["activeServiceStatus"]["targetCapacity"] == 100
    assert stage.scripted.submissions[-1][1]["target_capacity"] == 100
    (route,) = stage.objects(kinds.HTTP_ROUTE)
    backends = route["spec"]["rules"][0]["backendRefs"]
    assert [(one["name"], one["weight"]) for one in backends] == [(f"{second}-serve-svc", 100)]


def an_empty_copy_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Caches, "knows_endpoints", lambda self: True)


@proven(without=an_empty_copy_is_believed)
async def test_f248_an_operator_that_just_started_calls_no_service_empty(stage: ServiceStage) -> None:
    """F248: the operator restarts, and endpoints are listed last. Holds: a RayService that answers stays Ready."""
    await served(stage)
    await stage.restart_operator()
    stage.operator.caches.slices = Caches(stage.client, RaySettings(), stage.clock).slices  # never filled
    await stage.one_pass()
    told = await status(stage)
    assert condition(told, "Ready") == ("True", "NonZeroServeEndpoints") and told["numServeEndpoints"] == 2


def _believes_only_its_own_hash(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(spec_changes, "_is_of_kuberay", lambda cluster: False)


@proven(without=_believes_only_its_own_hash)
@pytest.mark.parametrize("is_active", [True, False])
def test_f338_a_cluster_that_kuberay_made_is_not_replaced_when_shoal_takes_its_service_over(is_active: bool) -> None:
    """F338: a RayService is taken over from KubeRay, whose hash of the cluster's spec is made another way. Holds: a
    cluster whose spec is the wanted one stays and keeps its hash while it is pending; another spec gets a new one."""
    config = config_of("same")
    service = {"metadata": {"name": "served"}, "spec": {"rayClusterConfig": config}}
    stored = {
        **config,
        "workerGroupSpecs": [{**one, "scaleStrategy": {}} for one in config.get("workerGroupSpecs", [])],
    }
    annotations = {names.CONFIG_HASH: "PPK5ONUJV967RGDJGC8PU68Q7ES9N70O", names.OPERATOR_VERSION: "v1.6.0"}
    cluster = {"metadata": {"name": "served-x", "annotations": annotations}, "spec": stored}
    wanted = "updateInPlace" if is_active else "none"
    assert spec_changes.action(service, cluster, RaySettings(), is_active=is_active) == wanted
    assert spec_changes.matches(service, cluster)
    other = {**service, "spec": {"rayClusterConfig": config_of("another")}}
    assert not spec_changes.matches(other, cluster)
