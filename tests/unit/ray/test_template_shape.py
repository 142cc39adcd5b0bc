"""Templates that our CRDs let through and no pod could be built from: told by field, and nothing crashes."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

import pytest

from shoal.controllers.ray import services, view
from shoal.controllers.ray.cluster import counts, status
from shoal.controllers.ray.pods import builder
from shoal.controllers.ray.settings import RaySettings
from shoal.controllers.ray.validation import cluster_rules
from shoal.controllers.ray.validation.job_rules import problems_of_job
from tests.unit.ray.builders import container, group, ray_cluster, ray_job

HEAD = "spec.headGroupSpec.template"


@pytest.mark.parametrize(
    "change, told",
    [
        ({"command": ["sleep", 5]}, f"{HEAD}.spec.containers[0].command[1] must be a text, not 5"),
        ({"args": "x"}, f"{HEAD}.spec.containers[0].args must be a list"),
        ({"env": [None]}, f"{HEAD}.spec.containers[0].env[0] is empty"),
        ({"env": [{"value": "x"}]}, f"{HEAD}.spec.containers[0].env[0].name is missing"),
        ({"env": [{"name": "A", "value": 1}]}, f"{HEAD}.spec.containers[0].env[0].value must be a text, not 1"),
        ({"ports": [{"name": "x"}]}, f"{HEAD}.spec.containers[0].ports[0].containerPort is missing"),
        ({"ports": [{"containerPort": "http"}]}, "must be a port from 1 to 65535"),
        ({"resources": {"limits": {"cpu": "lots"}}}, f"{HEAD}.spec.containers[0].resources.limits.cpu: 'lots'"),
        ({"resources": {"limits": []}}, f"{HEAD}.spec.containers[0].resources.limits must be an object"),
        ({"volumeMounts": [3]}, f"{HEAD}.spec.containers[0].volumeMounts[0] must be an object"),
    ],
)
def test_a_container_of_the_wrong_shape_is_told_by_its_field(change, told):
    cluster = ray_cluster()
    view.ray_container(view.head(cluster)).update(change)
    problems = cluster_rules.problems_of_cluster(cluster, RaySettings())
    assert len(problems) == 1 and told in problems[0]


def test_other_templates_are_looked_at_too():
    bad: dict[str, Any] = {"metadata": {"labels": {"a": 1}}}
    worker = group(template={**bad, "spec": {"containers": [container("w")]}})
    assert "labels.a must be a text" in cluster_rules.problems_of_cluster(ray_cluster("demo", worker), RaySettings())[0]
    service = ray_cluster(head={"headService": {"spec": {"ports": [{"name": "x"}]}}})
    assert "ports[0].port is missing" in cluster_rules.problems_of_cluster(service, RaySettings())[0]
    sidecar = ray_job(mode="SidecarMode", rayClusterSpec={"headGroupSpec": {"template": "x"}})
    assert "spec.headGroupSpec.template must be an object" in problems_of_job(sidecar, RaySettings())[0]
    job = ray_job(submitterPodTemplate={"spec": {"containers": {}}})
    assert "spec.submitterPodTemplate.spec.containers must be a list" in problems_of_job(job, RaySettings())[0]


def places(thing: Any, path: tuple = ()) -> list[tuple]:
    inner = thing.items() if isinstance(thing, dict) else enumerate(thing) if isinstance(thing, list) else ()
    return [found for key, value in inner for found in ((*path, key), *places(value, (*path, key)))]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_stands_anywhere_in_a_spec_is_refused_or_built(seed):
    """A spec with something odd in one to three places never crashes; what is not refused can be built."""
    random = Random(seed)
    built = sum(refused_or_built(random) for _ in range(100))
    assert built > 5  # some of it is harmless


def refused_or_built(random: Random) -> bool:
    sidecar = container("side", ports=[{"name": "http", "containerPort": 80}], env=[{"name": "A", "value": "1"}])
    worker = group(
        template={
            "metadata": {"labels": {"a": "b"}},
            "spec": {
                "containers": [container("w", volumeMounts=[{"name": "v", "mountPath": "/v"}], command=["a"]), sidecar],
                "initContainers": [sidecar],
                "volumes": [{"name": "v", "emptyDir": {}}],
            },
        }
    )
    options = {"resources": {"limits": {"cpu": "1"}}, "env": [{"name": "A", "value": "1"}]}
    cluster = ray_cluster("demo", worker, enableInTreeAutoscaling=True, autoscalerOptions=options)
    cluster["spec"]["headGroupSpec"]["headService"] = {"metadata": {"name": "x"}, "spec": {"ports": [{"port": 1}]}}
    cluster = json.loads(json.dumps(cluster))
    odd = [None, {}, [], "", 0, -1, 1.5, True, "x", [None], [{}], {"a": None}, ["x"], {"x": "y"}, 10**12]
    opened = ("template", "headService", "autoscalerOptions")  # the rest is typed by the CRD
    for _ in range(random.randint(1, 3)):
        path = random.choice([one for one in places(cluster) if any(part in opened for part in one[:-1])])
        where = cluster
        for part in path[:-1]:
            where = where[part]
        where[path[-1]] = copy.deepcopy(random.choice(odd))
    if cluster_rules.problems_of_cluster(cluster, RaySettings()):
        return False
    cluster_rules.warnings_of_cluster(cluster)
    built = builder.head_pod(cluster, RaySettings())
    assert built["spec"]["containers"][0]["command"]
    assert all(builder.worker_pod(cluster, one, RaySettings()) for one in view.groups(cluster))
    assert services.head_service(cluster, RaySettings())["spec"]["ports"]
    assert status.compute(cluster, [], None, None, "", 0)["conditions"]
    assert counts.gang_pods(cluster, RaySettings())[0][1] == 1
    return True
