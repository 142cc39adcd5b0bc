"""A KubeRay operator's configuration file, brought along."""

from __future__ import annotations

import pytest

from shoal.controllers.ray import from_environment, view
from shoal.controllers.ray.cluster import redis_cleanup
from shoal.controllers.ray.pods import builder
from shoal.errors import BadInput
from tests.unit.ray.builders import group, ray_cluster

FILE = """
apiVersion: config.ray.io/v1alpha1
kind: Configuration
metricsAddr: ":8080"
reconcileConcurrency: 4
watchNamespace: blue, green
useKubernetesProxy: true
defaultContainerEnvs: [{name: REGION, value: north}, {name: MINE, value: operator}]
defaultPodLabels: {team: pond}
defaultPodAnnotations: {scrape: "yes"}
headSidecarContainers: [{name: log, image: fluentbit}]
workerSidecarContainers: [{name: watch, image: probe}]
"""


def settings_of(tmp_path, text):
    path = tmp_path / "operator.yaml"
    path.write_text(text)
    return from_environment({"SHOAL_RAY_CONFIG": str(path), "SHOAL_RAY_NAMESPACES": "red"})


def test_what_it_says_is_in_every_ray_pod_and_the_users_own_wins(tmp_path):
    settings = settings_of(tmp_path, FILE)
    worker = group(template={"metadata": {"labels": {"team": "users"}}, "spec": {"containers": [{"name": "w"}]}})
    worker["template"]["spec"]["containers"][0]["env"] = [{"name": "MINE", "value": "user"}]
    cluster = ray_cluster("demo", worker, enableInTreeAutoscaling=True)
    head = builder.head_pod(cluster, settings)
    made = builder.worker_pod(cluster, view.groups(cluster)[0], settings)
    assert [one["name"] for one in head["spec"]["containers"]] == ["ray-head", "autoscaler", "log"]
    assert [one["name"] for one in made["spec"]["containers"]] == ["w", "watch"]
    assert head["metadata"]["labels"]["team"] == "pond" and made["metadata"]["labels"]["team"] == "users"
    assert made["metadata"]["annotations"]["scrape"] == "yes"
    env = {one["name"]: one.get("value") for one in made["spec"]["containers"][0]["env"]}
    assert (env["REGION"], env["MINE"]) == ("north", "user")


def test_its_switches_are_ours_too(tmp_path):
    settings = settings_of(tmp_path, FILE)
    assert (settings.workers, settings.namespaces, settings.kubernetes_proxy) == (4, ("blue", "green"), True)


def test_a_clean_up_has_no_sidecars(tmp_path):
    cluster = ray_cluster(gcsFaultToleranceOptions={"redisAddress": "redis:6379"})
    job = redis_cleanup.cleanup_job(cluster, settings_of(tmp_path, FILE))
    assert [one["name"] for one in job["spec"]["template"]["spec"]["containers"]] == ["ray-head"]


@pytest.mark.parametrize(
    "text, told",
    [
        ("headSidecars: []", "'headSidecars' is not a setting"),
        ("defaultPodLabels: {a: 1}", "defaultPodLabels.a must be a text"),
        ("useKubernetesProxy: maybe", "must be true or false"),
        ("defaultContainerEnvs: [{value: x}]", r"defaultContainerEnvs\[0\].name is missing"),
        ("- a list", "must be a mapping"),
    ],
)
def test_what_it_cannot_mean_is_said_with_the_file(tmp_path, text, told):
    with pytest.raises(BadInput, match=f"operator.yaml.*{told}"):
        settings_of(tmp_path, text)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(BadInput, match="cannot be read"):
        from_environment({"SHOAL_RAY_CONFIG": "/nowhere/operator.yaml"})
