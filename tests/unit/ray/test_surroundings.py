"""What a cluster has besides pods: policies, tokens, PodGroups, identities."""

from __future__ import annotations

import pytest

from shoal.api import kinds, ray_token
from shoal.controllers.ray import RaySettings, from_environment, names, services, view
from shoal.controllers.ray.cluster import network_policy
from shoal.controllers.ray.cluster.belongings import Belongings
from shoal.controllers.ray.owned_writer import OwnedWriter
from shoal.controllers.ray.pods import auth, builder
from shoal.controllers.ray.validation import cluster_rules
from shoal.kube.writes import Writes
from tests.conformance.kuberay_traces import Stage
from tests.faults import proven
from tests.unit.ray.builders import group, ray_cluster, ray_job


async def staged(settings: RaySettings, body) -> Stage:
    stage = Stage(settings)
    await stage.start()
    await stage.client.create(kinds.RAY_CLUSTER, body, "default")
    await stage.settle()
    return stage


async def test_a_network_policy_lets_the_cluster_start_and_no_other_pod_in():
    settings = from_environment({}, {"RayClusterNetworkPolicy": True})
    stage = await staged(settings, ray_cluster("demo", group("a"), networkPolicy={}))
    policies = {view.name(one): one["spec"] for one in stage.objects(kinds.NETWORK_POLICY)}
    await stage.stop()
    assert set(policies) == {"demo-head", "demo-workers-a"}
    assert policies["demo-head"]["policyTypes"] == ["Ingress", "Egress"]
    assert policies["demo-head"]["ingress"][0] == {"from": [{"podSelector": {"matchLabels": {names.CLUSTER: "demo"}}}]}
    assert {"protocol": "UDP", "port": 53} in policies["demo-workers-a"]["egress"][-1]["ports"]


async def test_a_policy_that_is_no_longer_asked_for_goes():
    settings = from_environment({}, {"RayClusterNetworkPolicy": True})
    stage = await staged(settings, ray_cluster("demo", group("a"), group("b"), networkPolicy={}))

    async def left(**spec):
        await stage.client.patch(kinds.RAY_CLUSTER, "demo", "default", {"spec": spec})
        await stage.settle()
        return sorted(view.name(one) for one in stage.objects(kinds.NETWORK_POLICY))

    fewer = await left(workerGroupSpecs=[group("a")])
    none = await left(networkPolicy=None)
    await stage.stop()
    assert fewer == ["demo-head", "demo-workers-a"]
    assert none == []


def test_name_resolution_can_be_closed():
    body = ray_cluster(networkPolicy={}, metadata={"annotations": {network_policy.NO_DNS: "true"}})
    assert all("ports" not in rule for rule in network_policy.network_policies(body)[0]["spec"]["egress"])


async def test_scheduler_plugins_get_a_pod_group_that_counts_the_autoscaler():
    labels = {"ray.io/gang-scheduling-enabled": "true"}
    body = ray_cluster(
        "demo", group(replicas=3, minReplicas=1), enableInTreeAutoscaling=True, metadata={"labels": labels}
    )
    stage = await staged(RaySettings(batch_scheduler="scheduler-plugins"), body)
    found = stage.objects(kinds.POD_GROUP)[0]["spec"]
    members = stage.objects(kinds.POD)
    await stage.stop()
    assert found == {"minMember": 2, "minResources": {"cpu": "2500m", "memory": "3584Mi"}}
    assert {view.labels(pod)["scheduling.x-k8s.io/pod-group"] for pod in members} == {"demo"}
    assert {pod["spec"]["schedulerName"] for pod in members} == {"scheduler-plugins-scheduler"}


def open_dashboards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "uses_token", lambda cluster, settings: False)


@proven(without=open_dashboards)
async def test_f118_by_default_every_ray_process_of_a_cluster_has_its_token():
    """F118: a cluster says nothing about authentication. Holds: with the operator's default each of its Ray containers
    asks for the token, which lives in a Secret of the cluster alone."""
    body = ray_cluster("demo", enableInTreeAutoscaling=True)
    stage = await staged(RaySettings(default_auth_token=True), body)
    secret = stage.objects(kinds.SECRET)[0]
    containers = [
        container
        for pod in stage.objects(kinds.POD)
        for container in [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]
    ]
    other = await staged(RaySettings(default_auth_token=True), ray_cluster("demo"))
    another = other.objects(kinds.SECRET)[0]
    await stage.stop()
    await other.stop()
    assert view.name(secret) == "demo"
    assert secret["data"]["auth_token"] != another["data"]["auth_token"]
    assert {view.env_value(container, "RAY_AUTH_MODE") for container in containers} == {"token"}
    references = [entry["valueFrom"] for one in containers for entry in one["env"] if entry["name"] == "RAY_AUTH_TOKEN"]
    assert references == [{"secretKeyRef": {"name": "demo", "key": "auth_token"}}] * len(containers)


def test_an_old_manifest_gets_a_token_where_a_newer_ray_runs_it():
    old = {**ray_cluster(), "spec": {**ray_cluster()["spec"], "rayVersion": "2.0.0"}}
    assert not auth.uses_token(old, RaySettings(default_auth_token=True))
    assert auth.uses_token(old, RaySettings(default_auth_token=True, token_by_agent=True))


@proven(without=open_dashboards)
async def test_f118_the_node_agent_is_told_whose_token_and_the_pods_stay_as_published():
    """F118: a cluster of the embedded cluster says nothing about authentication. Holds: each of its pods and its
    submitter name the Secret to the node agent, which hands the token to their processes; no pod shows it."""
    stage = Stage(RaySettings(token_by_agent=True))
    await stage.start()
    await stage.client.create(kinds.RAY_JOB, ray_job(), "default")
    await stage.settle()
    await stage.play({"do": "setPods", "phase": "Running", "ready": True})
    await stage.settle()
    name = stage.objects(kinds.RAY_CLUSTER)[0]["metadata"]["name"]
    submitter = stage.objects(kinds.JOB)[0]["spec"]["template"]
    made = [*stage.objects(kinds.POD), submitter]
    secrets = [view.name(secret) for secret in stage.objects(kinds.SECRET)]
    await stage.stop()
    assert secrets == [name]
    assert [view.annotations_of(one).get(ray_token.ANNOTATION) for one in made] == [name] * 3
    assert all("RAY_AUTH" not in str(one["spec"]) for one in made)


def test_a_token_that_the_manifest_brings_itself_is_left_to_it():
    body = ray_cluster()
    mine = {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": {"name": "demo", "key": "auth_token"}}}
    body["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["env"] = [mine]
    assert not auth.needs_secret(body, RaySettings(token_by_agent=True))
    assert auth.needs_secret(ray_cluster(), RaySettings(token_by_agent=True))


def test_a_cluster_may_say_no_token():
    body = ray_cluster(authOptions={"mode": "disabled"})
    ray = builder.head_pod(body, RaySettings(default_auth_token=True))["spec"]["containers"][0]
    assert view.env_value(ray, "RAY_AUTH_MODE") is None


async def test_the_embedded_cluster_gives_the_token_to_the_autoscaler_alone():
    stage = await staged(RaySettings(mount_autoscaler_token=True), ray_cluster("demo", enableInTreeAutoscaling=True))
    head = next(pod for pod in stage.objects(kinds.POD) if view.labels(pod)[names.NODE_TYPE] == names.HEAD)
    await stage.stop()
    where = {
        container["name"]: [one["mountPath"] for one in container.get("volumeMounts") or []]
        for container in head["spec"]["containers"]
    }
    assert "/var/run/secrets/kubernetes.io/serviceaccount" in where["autoscaler"]
    assert "/var/run/secrets/kubernetes.io/serviceaccount" not in where["ray-head"]


async def test_a_named_service_account_must_exist():
    body = ray_cluster("demo", enableInTreeAutoscaling=True)
    body["spec"]["headGroupSpec"]["template"]["spec"]["serviceAccountName"] = "mine"
    stage = await staged(RaySettings(), body)
    found = await stage.client.get(kinds.RAY_CLUSTER, "demo", "default")
    assert any("'mine'" in one["message"] for one in found["status"]["conditions"] if one["type"] == "Degraded")
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "mine"}}
    await stage.client.create(kinds.SERVICE_ACCOUNT, account, "default")
    await stage.settle()
    assert len(stage.objects(kinds.POD)) == 3
    await stage.stop()


def test_an_operator_is_configured_by_its_environment():
    settings = from_environment(
        {
            "SHOAL_RAY_DEFAULT_TOKEN": "true",
            "SHOAL_RAY_NAMESPACES": "a, b",
            "SHOAL_RAY_FEATURE_GATES": "RayClusterNetworkPolicy=true,RayJobDeletionPolicy=false",
            "SHOAL_RAY_BATCH_SCHEDULER": "scheduler-plugins",
            "SHOAL_RAY_SCHEDULER_NAME": "mine",
            "SHOAL_RAY_IDLE_DELETE_SECONDS": "3600",
            "CLUSTER_DOMAIN": "example.internal",
        }
    )
    assert settings.default_auth_token
    assert settings.namespaces == ("a", "b")
    assert settings.gate("RayClusterNetworkPolicy") and not settings.gate("RayJobDeletionPolicy")
    assert (settings.batch_scheduler, settings.scheduler_name) == ("scheduler-plugins", "mine")
    assert (settings.idle_delete_after, settings.cluster_domain) == (3600, "example.internal")


async def test_pods_go_to_the_scheduler_that_the_operator_or_the_template_names():
    own = group("own")
    own["template"]["spec"]["schedulerName"] = "theirs"
    stage = await staged(RaySettings(scheduler_name="mine"), ray_cluster("demo", group("plain"), own))
    chosen = {view.labels(pod)[names.GROUP]: pod["spec"]["schedulerName"] for pod in stage.objects(kinds.POD)}
    await stage.stop()
    assert chosen == {names.HEAD_GROUP: "mine", "plain": "mine", "own": "theirs"}


def token_of(stage: Stage) -> str:
    return stage.objects(kinds.SECRET)[0]["data"][auth.TOKEN_KEY]


async def test_a_deleted_token_comes_back_at_once_and_is_the_one_that_the_pods_have():
    stage = await staged(RaySettings(), ray_cluster("demo", authOptions={"mode": "token"}))
    before = token_of(stage)
    await stage.client.delete(kinds.SECRET, "demo", "default")
    await stage.settle()
    after = token_of(stage)
    await stage.stop()
    assert after == before


async def test_a_token_that_was_changed_by_hand_is_the_one_that_comes_back():
    stage = await staged(RaySettings(), ray_cluster("demo", authOptions={"mode": "token"}))
    await stage.client.patch(kinds.SECRET, "demo", "default", {"data": {auth.TOKEN_KEY: "bmV3"}})
    await stage.settle()
    await stage.client.delete(kinds.SECRET, "demo", "default")
    await stage.settle()
    after = token_of(stage)
    await stage.stop()
    assert after == "bmV3"


async def test_an_identity_that_somebody_deleted_comes_back_within_five_minutes():
    stage = await staged(RaySettings(), ray_cluster("demo", enableInTreeAutoscaling=True))
    for kind in (kinds.SERVICE_ACCOUNT, kinds.ROLE, kinds.ROLE_BINDING):
        await stage.client.delete(kind, "demo", "default")
    writes = stage.transport.writes.total()
    stage.clock.advance(301)
    await stage.settle()
    there = [len(stage.objects(kind)) for kind in (kinds.SERVICE_ACCOUNT, kinds.ROLE, kinds.ROLE_BINDING)]
    again = stage.transport.writes.total()
    stage.clock.advance(301)
    await stage.settle()
    at_rest = stage.transport.writes.total()
    await stage.stop()
    assert there == [1, 1, 1]
    assert again > writes and at_rest == again, "looking again at what stands writes nothing"


async def test_what_cannot_be_made_is_told_by_its_kind_and_is_no_failure_of_pods():
    stage = Stage(RaySettings())
    await stage.start()
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo-head-svc"}}
    service["spec"] = {"ports": [{"port": 80}]}
    await stage.client.create(kinds.SERVICE, service, "default")
    await stage.client.create(kinds.RAY_CLUSTER, ray_cluster(), "default")
    await stage.settle()
    found = await stage.client.get(kinds.RAY_CLUSTER, "demo", "default")
    told = {event["reason"]: event["message"] for event in stage.objects(kinds.EVENT)}
    await stage.stop()
    conditions = {one["type"]: one for one in found["status"]["conditions"]}
    assert "belongs to another owner" in told["FailedToCreateService"]
    assert "ReplicaFailure" not in conditions
    assert "belongs to another owner" in conditions["Degraded"]["message"]
    assert "belongs to another owner" in conditions["RayClusterProvisioned"]["message"]


async def test_bounds_below_what_runs_are_advised_about_and_no_pod_is_taken_away():
    body = ray_cluster("demo", group(replicas=3), enableInTreeAutoscaling=True)
    stage = await staged(RaySettings(), body)
    lowered = {**group(replicas=3), "maxReplicas": 1}
    await stage.client.patch(kinds.RAY_CLUSTER, "demo", "default", {"spec": {"workerGroupSpecs": [lowered]}})
    await stage.settle()
    told = [event["message"] for event in stage.objects(kinds.EVENT) if event["reason"] == "RayClusterAdvice"]
    pods_left = len(stage.objects(kinds.POD))
    await stage.stop()
    assert len(told) == 1 and "has 3 pods, more than its maxReplicas allow (1)" in told[0]
    assert pods_left == 4


def test_a_serve_service_without_a_port_is_advised_about():
    asks = {"annotations": {names.SERVE_SERVICE: "true"}}
    body = ray_cluster(metadata=asks)
    assert not any("Ray Serve" in one for one in cluster_rules.warnings_of_cluster(body))
    view.ray_container(view.head(body))["ports"] = [{"name": "dashboard", "containerPort": 8265}]
    assert any("no port named serve" in one for one in cluster_rules.warnings_of_cluster(body))


async def test_an_ingress_that_was_taken_out_of_the_spec_while_the_operator_was_away_goes():
    stage = await staged(RaySettings(), ray_cluster())
    changed = await stage.client.patch(kinds.RAY_CLUSTER, "demo", "default", {"spec": {"headServiceAnnotations": {}}})
    await stage.settle()
    await stage.client.create(kinds.INGRESS, services.ingress(changed), "default")  # as an earlier life left it
    operator = stage.operator
    writer = OwnedWriter(Writes(stage.client), "raycluster")
    back = Belongings(writer, operator.caches, operator.recorders["raycluster"], RaySettings(), stage.clock)
    await back.ensure(changed)
    left = stage.objects(kinds.INGRESS)
    await stage.stop()
    assert left == []


async def test_an_ingress_follows_its_options_and_goes_with_them():
    options = {"host": "pond.example", "tls": [{"hosts": ["pond.example"], "secretName": "t"}]}
    body = ray_cluster(head={"enableIngress": True, "ingressOptions": options})
    stage = await staged(RaySettings(), body)

    async def changed(head):
        await stage.client.patch(kinds.RAY_CLUSTER, "demo", "default", {"spec": {"headGroupSpec": head}})
        await stage.settle()
        return [one["spec"] for one in stage.objects(kinds.INGRESS)]

    first = stage.objects(kinds.INGRESS)[0]["spec"]
    plain = await changed({"ingressOptions": None})
    gone = await changed({"enableIngress": False})
    await stage.stop()
    assert first["rules"][0]["host"] == "pond.example" and first["tls"]
    assert plain[0]["rules"][0].get("host") is None and not plain[0].get("tls")
    assert gone == []


def test_a_pod_whose_ray_ended_for_good_is_not_ready_whatever_its_condition_says():
    from shoal.controllers.ray.pods import observed

    ended = {"name": "ray-worker", "state": {"terminated": {"exitCode": 1}}}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [ended]}
    pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "ray-worker"}]}, "status": status}
    assert not observed.is_ready(pod)
    assert observed.is_ready({**pod, "spec": {**pod["spec"], "restartPolicy": "Always"}})
