"""Rules of published manifests that are easy to get almost right: each line is a pod or Service as KubeRay makes it."""

from __future__ import annotations

import pytest

from shoal.controllers.ray import RaySettings, from_environment, names, services, view
from shoal.controllers.ray.pods import builder
from tests.unit.ray.builders import group, ray_cluster


def head_of(cluster):
    cluster["metadata"].setdefault("uid", "u")
    return builder.head_pod(cluster, RaySettings())


def ray_of(pod):
    return pod["spec"]["containers"][0]


def with_head_container(**more):
    cluster = ray_cluster()
    ray = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    ray.update(more)
    return cluster


def test_the_published_start_line_can_be_used_as_a_command():
    """Manifests write `ulimit -n 1024; $KUBERAY_GEN_RAY_START_CMD`: the variable is one command, nothing before it."""
    line = view.env_value(ray_of(head_of(ray_cluster())), "KUBERAY_GEN_RAY_START_CMD")
    assert line.startswith("ray start --head ")


@pytest.mark.parametrize("where", ["cluster", "template"])
def test_who_starts_ray_himself_keeps_his_command(where):
    mark = {"annotations": {names.OVERWRITE_COMMAND: "True"}}
    cluster = with_head_container(command=["/start.sh"])
    if where == "cluster":
        cluster["metadata"].update(mark)
    else:
        cluster["spec"]["headGroupSpec"]["template"]["metadata"] = mark
    assert ray_of(head_of(cluster))["command"] == ["/start.sh"]


@pytest.mark.parametrize(
    "head_service, headless",
    [(None, True), ({"metadata": {"name": "mine"}}, False), ({"spec": {"clusterIP": "None"}}, True)],
)
def test_a_head_service_of_the_users_own_has_an_address_unless_he_says_no(head_service, headless):
    head = {"headService": head_service} if head_service else {}
    built = services.head_service(ray_cluster(head=head), RaySettings())
    assert (built["spec"].get("clusterIP") == "None") is headless


def test_an_accelerator_that_the_user_names_is_the_only_one():
    limits = {"cpu": "1", "memory": "2Gi", "aws.amazon.com/neuroncore": "4"}
    cluster = ray_cluster(head={"rayStartParams": {"resources": '{"TPU": 4}'}})
    cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": limits}
    assert "neuron_cores" not in ray_of(head_of(cluster))["args"][0]


def test_an_autoscaler_without_resources_is_possible():
    cluster = ray_cluster(enableInTreeAutoscaling=True, autoscalerOptions={"resources": {}})
    assert head_of(cluster)["spec"]["containers"][1]["resources"] == {}


def test_a_users_own_authentication_settings_stay():
    mine = {"name": "RAY_AUTH_TOKEN", "value": "mine"}
    ray = ray_of(head_of(with_head_container(env=[mine])))
    assert mine in ray["env"]
    cluster = with_head_container(env=[mine])
    cluster["spec"]["authOptions"] = {"mode": "token"}
    assert view.env_value(ray_of(head_of(cluster)), "RAY_AUTH_TOKEN") == "mine"


def test_redis_options_always_say_where_redis_is():
    ray = ray_of(head_of(ray_cluster(gcsFaultToleranceOptions={})))
    assert view.env_value(ray, "RAY_REDIS_ADDRESS") == ""


def test_a_template_of_another_namespace_is_made_where_its_cluster_is():
    moved = group()
    moved["template"]["metadata"] = {"namespace": "elsewhere"}
    cluster = ray_cluster("demo", moved, metadata={"uid": "u"})
    assert builder.worker_pod(cluster, moved, RaySettings())["metadata"]["namespace"] == "default"


def test_workers_of_one_group_differ_only_in_their_place():
    cluster = ray_cluster("demo", group(numOfHosts=2), metadata={"uid": "u"})
    first, second = (
        builder.worker_pod(
            cluster, view.groups(cluster)[0], RaySettings(), replica=0, replica_name="workers-abcde", host=host
        )
        for host in (0, 1)
    )
    assert view.labels(first)[names.HOST_INDEX] == "0"
    assert {**view.labels(second), names.HOST_INDEX: "0"} == view.labels(first)
    assert first["spec"] == second["spec"]


def test_without_its_gate_workers_carry_no_index():
    off = from_environment({}, {"RayMultiHostIndexing": False})
    cluster = ray_cluster("demo", group(), metadata={"uid": "u"})
    assert names.REPLICA_INDEX not in view.labels(builder.worker_pod(cluster, view.groups(cluster)[0], off))
    assert view.labels(builder.worker_pod(cluster, view.groups(cluster)[0], RaySettings()))[names.REPLICA_INDEX] == "0"
