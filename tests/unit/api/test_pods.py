"""What a pod asks of its node, counted as kube-scheduler counts."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api import codec, core, pods
from shoal.errors import BadInput


def spec(**fields: Any) -> core.PodSpec:
    return codec.typed(fields, core.PodSpec)


def container(name: str = "main", **resources: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": resources}}


def test_containers_run_together_so_they_add_up() -> None:
    asked = pods.requests(spec(containers=[container("a", cpu="500m", memory="1Gi"), container("b", cpu=1)]))
    assert asked == {"cpu": 1500, "memory": 2**30}


def test_an_init_container_counts_only_where_it_needs_more() -> None:
    asked = pods.requests(
        spec(
            containers=[container(cpu=1, memory="1Gi")],
            initContainers=[container("fetch", cpu="500m", memory="3Gi")],
        )
    )
    assert asked == {"cpu": 1000, "memory": 3 * 2**30}


def test_a_sidecar_runs_beside_containers_and_beside_later_init_steps() -> None:
    sidecar = {**container("proxy", cpu="200m"), "restartPolicy": "Always"}
    asked = pods.requests(
        spec(
            containers=[container(cpu="1")],
            initContainers=[container("early", cpu="1100m"), sidecar, container("late", cpu="1100m")],
        )
    )
    assert asked == {"cpu": 1300}  # proxy + late; without the late step it would be proxy + main = 1200


def test_limits_stand_in_for_missing_requests_resource_by_resource() -> None:
    asked = pods.requests(
        spec(
            containers=[
                {"name": "a", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "nvidia.com/gpu": 1}}}
            ]
        )
    )
    assert asked == {"cpu": 1000, "nvidia.com/gpu": 1}


def test_overhead_comes_on_top() -> None:
    asked = pods.requests(spec(containers=[container(cpu="1")], overhead={"cpu": "250m", "memory": "64Mi"}))
    assert asked == {"cpu": 1250, "memory": 64 * 2**20}


def test_requests_of_the_pod_itself_replace_the_sum() -> None:
    asked = pods.requests(spec(containers=[container(cpu="1", memory="1Gi")], resources={"requests": {"cpu": "3"}}))
    assert asked == {"cpu": 3000, "memory": 2**30}


def test_sums_are_rounded_once() -> None:
    """Kubernetes adds quantities before it rounds: two half-millis are one milli, not two."""
    asked = pods.requests(spec(containers=[container("a", cpu="0.5m"), container("b", cpu="0.5m")]))
    assert asked == {"cpu": 1}


def test_a_raw_template_is_counted_too() -> None:
    template = codec.sealed({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container(cpu="2")]}})
    assert pods.template_requests(template) == {"cpu": 2000}


def test_an_empty_yaml_key_in_a_template_is_nothing() -> None:
    template = codec.sealed({"metadata": None, "spec": {"containers": [{"name": "a", "resources": None, "env": None}]}})
    assert pods.template_requests(template) == {}


def test_a_template_that_does_not_decode_names_the_field() -> None:
    with pytest.raises(BadInput, match=r"spec\.containers"):
        pods.template_requests(b'{"spec": {"containers": "none"}}')


def test_a_bad_amount_names_container_and_resource() -> None:
    with pytest.raises(BadInput, match="request of memory on container 'main': '1GB' is not a quantity"):
        pods.requests(spec(containers=[container(memory="1GB")]))


def test_host_ports_are_what_the_node_must_have_free() -> None:
    ports = [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 53, "protocol": "UDP"}]
    body = {"containers": [{"name": "a", "ports": ports}]}
    assert pods.host_ports(spec(**body)) == {("0.0.0.0", "TCP", 8080)}
    assert pods.host_ports(spec(**body, hostNetwork=True)) == {("0.0.0.0", "TCP", 8080), ("0.0.0.0", "UDP", 53)}
