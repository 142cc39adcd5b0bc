"""The `Ray` kind of the first proposal, in both styles, from create to delete."""

from __future__ import annotations

import pytest

from shoal.api import kinds
from shoal.controllers.ray import names, view
from shoal.controllers.ray.ray_kind import config_text
from shoal.controllers.ray.ray_kind.translation import translate
from shoal.controllers.ray.settings import RaySettings
from shoal.errors import BadInput
from tests.conformance.kuberay_traces import Stage
from tests.unit.ray.builders import ray

READY = {"do": "setPods", "phase": "Running", "ready": True}

CLASSIC = """\
cluster_name: default
min_workers: 1
max_workers: 3
idle_timeout_minutes: 2
provider:
    type: kubernetes
head_node:
    metadata:
        labels: {component: ray-head}
    spec:
        containers:
        - {name: logger, image: busybox}
        - name: ray-node
          image: rayproject/ray:2.60.0
          command: ["/bin/bash", "-c", "--"]
          args: ["trap : TERM INT; sleep infinity & wait;"]
          env: [{name: MY_CPU_REQUEST, value: "1"}]
          resources: {requests: {cpu: 1000m}}
setup_commands: [pip list]
head_start_ray_commands:
    - ray stop
    - ulimit -n 65536; ray start --head --redis-port=6380 --autoscaling-config=~/b.yaml --dashboard-host 0.0.0.0
worker_start_ray_commands:
    - ray stop
    - ray start --address=$RAY_HEAD_IP:6379 --num-cpus 2
"""


async def applied(stage: Stage, **spec):
    await stage.client.create(kinds.RAY, ray(**spec), "default")
    await stage.settle()
    return await read(stage)


async def read(stage: Stage):
    return await stage.client.get(kinds.RAY, "sample", "default")


async def patched(stage: Stage, **spec):
    await stage.client.patch(kinds.RAY, "sample", "default", {"spec": spec})
    await stage.settle()
    return await read(stage)


def launchers(stage: Stage):
    return [pod for pod in stage.objects(kinds.POD) if "ray-launcher" in view.labels(pod)]


def child(stage: Stage):
    return stage.objects(kinds.RAY_CLUSTER)[0]


def true_conditions(obj) -> set[str]:
    return {one["type"] for one in obj["status"]["conditions"] if one["status"] == "True"}


async def test_the_typed_form_becomes_a_cluster_with_a_launcher(stage):
    found = await applied(stage, minWorkers=1, maxWorkers=2, initialWorkers=1, idleTimeoutMinutes=60)
    group = child(stage)["spec"]["workerGroupSpecs"][0]
    assert (group["minReplicas"], group["replicas"], group["maxReplicas"]) == (1, 1, 2)
    assert child(stage)["spec"]["autoscalerOptions"]["idleTimeoutSeconds"] == 3600
    launcher = launchers(stage)[0]
    assert view.labels(launcher) == {"ray": "sample", "ray-launcher": "sample"}
    assert launcher["spec"]["containers"][0]["name"] == "ray-launcher"
    assert view.name(launcher).startswith(launcher["metadata"]["generateName"])
    assert "Launching" in true_conditions(found)


async def test_the_status_has_the_shape_of_the_proposal(stage):
    await applied(stage, minWorkers=1)
    await stage.play({**READY, "match": {names.CLUSTER: "sample"}})
    await stage.play({"do": "setPods", "phase": "Succeeded", "match": {"ray-launcher": "sample"}})
    await stage.settle()
    status = (await read(stage))["status"]
    condition = status["launcher"]["conditions"][0]
    assert condition["type"] == "SuccessfulLaunch"
    assert condition["lastProbeTime"] is None
    assert status["head"] == {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1}
    assert status["worker"]["availableReplicas"] == 1
    assert {"Ready", "SuccessfulLaunch"} <= true_conditions(await read(stage))
    assert "Launching" not in true_conditions(await read(stage))


async def test_a_failed_launch_says_why(stage):
    await applied(stage, minWorkers=1)
    ended = [
        {"name": "ray-launcher", "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "no head"}}}
    ]
    await stage.play(
        {"do": "setPods", "phase": "Failed", "match": {"ray-launcher": "sample"}, "containerStatuses": ended}
    )
    await stage.settle()
    launch = next(one for one in (await read(stage))["status"]["conditions"] if one["type"] == "FailedLaunch")
    assert (launch["reason"], launch["message"]) == ("Error", "no head")


async def test_the_text_form_is_translated(stage):
    await applied(stage, configuration=CLASSIC)
    spec = child(stage)["spec"]
    head = spec["headGroupSpec"]
    assert [one["name"] for one in head["template"]["spec"]["containers"]] == ["ray-node", "logger"]
    assert head["rayStartParams"] == {"port": "6380", "dashboard-host": "0.0.0.0"}
    assert head["template"]["spec"]["containers"][0]["command"] == ["pip list"]
    assert "args" not in head["template"]["spec"]["containers"][0]  # the keep-alive would never have returned
    assert head["template"]["spec"]["containers"][0]["env"] == [{"name": "MY_CPU_REQUEST", "value": "1"}]
    assert spec["workerGroupSpecs"][0]["rayStartParams"] == {"num-cpus": "2"}
    stored = stage.objects(kinds.CONFIG_MAP)[0]
    assert "max_workers: 3" in stored["data"]["example-full.yaml"]


async def test_counts_scale_in_place_without_a_new_launcher(stage):
    await applied(stage, minWorkers=1, maxWorkers=4)
    before = view.name(launchers(stage)[0])
    pods = {view.name(pod) for pod in stage.objects(kinds.POD)}
    await patched(stage, minWorkers=3)
    assert view.name(launchers(stage)[0]) == before
    assert child(stage)["spec"]["workerGroupSpecs"][0]["minReplicas"] == 3
    assert pods < {view.name(pod) for pod in stage.objects(kinds.POD)}


async def test_a_new_image_recreates_the_pods_and_launches_again(stage):
    template = {"spec": {"containers": [{"name": "ray-head", "image": "rayproject/ray:2.59.0"}]}}
    await applied(stage, minWorkers=1, head=template)
    await stage.play({**READY, "match": {names.CLUSTER: "sample"}})
    await stage.settle()
    before = {view.name(pod) for pod in stage.objects(kinds.POD)}
    template["spec"]["containers"][0]["image"] = "rayproject/ray:2.60.0"
    await patched(stage, head=template)
    after = {view.name(pod) for pod in stage.objects(kinds.POD)}
    assert len(launchers(stage)) == 1
    assert len(after) == 3
    assert not before & after


async def test_what_is_taken_out_of_the_configuration_is_taken_out_of_the_cluster(stage):
    text = """
head_node:
    metadata: {labels: {old: "1", kept: "1"}}
    spec: {containers: [{name: ray-node, image: x, resources: {limits: {cpu: 1, nvidia.com/gpu: 1}}}]}
head_start_ray_commands: [ray start --num-cpus=2 --port=6380]
"""
    await applied(stage, configuration=text)
    await patched(
        stage,
        configuration=text.replace('old: "1", ', "").replace(", nvidia.com/gpu: 1", "").replace(" --num-cpus=2", ""),
    )
    head = child(stage)["spec"]["headGroupSpec"]
    assert head["rayStartParams"] == {"port": "6380"}
    assert head["template"]["metadata"]["labels"] == {"kept": "1"}
    assert head["template"]["spec"]["containers"][0]["resources"]["limits"] == {"cpu": 1}


@pytest.mark.parametrize(
    "change, told",
    [
        ({"autoScalingMode": "aggressive"}, ("upscalingMode", "Aggressive")),
        ({"idleTimeoutMinutes": 7}, ("idleTimeoutSeconds", 420)),
    ],
)
async def test_a_changed_setting_of_the_autoscaler_reaches_it(stage, change, told):
    await applied(stage, minWorkers=1, maxWorkers=3)
    await patched(stage, **change)
    assert child(stage)["spec"]["autoscalerOptions"][told[0]] == told[1]


async def test_one_form_can_be_changed_for_the_other(stage):
    await applied(stage, minWorkers=2)
    found = await patched(stage, minWorkers=None, configuration="min_workers: 1\nmax_workers: 1\n")
    assert child(stage)["spec"]["workerGroupSpecs"][0]["replicas"] == 1
    assert len([pod for pod in stage.objects(kinds.POD) if view.labels(pod).get(names.NODE_TYPE) == "worker"]) == 1
    assert "ConfigurationOverridden" not in true_conditions(found)


async def test_what_is_deleted_while_it_launches_leaves_nothing(stage):
    await stage.client.create(kinds.RAY, ray(minWorkers=1), "default")
    await stage.client.delete(kinds.RAY, "sample", "default")
    await stage.settle()
    assert [kind.kind for kind in (kinds.POD, kinds.RAY_CLUSTER, kinds.CONFIG_MAP) if stage.objects(kind)] == []


async def test_what_stops_the_child_is_shown(stage):
    await stage.play({"do": "quota", "deny": True})
    found = await applied(stage, minWorkers=1)
    ready = next(one for one in found["status"]["conditions"] if one["type"] == "Ready")
    assert "exceeded quota" in ready["message"]


async def test_deleting_it_leaves_nothing(stage):
    await applied(stage, minWorkers=1)
    await stage.client.delete(kinds.RAY, "sample", "default")
    await stage.settle()
    left = [
        kind.kind for kind in (kinds.POD, kinds.RAY_CLUSTER, kinds.CONFIG_MAP, kinds.SERVICE) if stage.objects(kind)
    ]
    assert left == []


async def test_a_suspended_ray_has_no_pods(stage):
    body = ray(minWorkers=1)
    body["metadata"]["annotations"] = {"ray.k8s.io/suspend": "true"}
    await stage.client.create(kinds.RAY, body, "default")
    await stage.settle()
    assert stage.objects(kinds.POD) == []
    await stage.client.patch(
        kinds.RAY, "sample", "default", {"metadata": {"annotations": {"ray.k8s.io/suspend": None}}}
    )
    await stage.settle()
    assert len(stage.objects(kinds.POD)) == 3


@pytest.mark.parametrize(
    "text, told",
    [
        ("min_workers: 1\nmax_workers: [", "line 2"),
        ("min_workers: 1\nprovider:\n  type: aws\n", "line 3: provider.type 'aws' is not kubernetes"),
        ("provider:\n  namespace: other\n", "line 2: provider.namespace 'other'"),
        ("a: 1\n\nmin_workers: many\n", "line 3: min_workers must be a whole number"),
        ("just text", "line 1"),
        ("target_utilization_fraction: 7\n", "line 1: target_utilization_fraction"),
        ("available_node_types: {a: {}}\nhead_node_type: b\n", "line 2: head_node_type 'b'"),
        ("max_workers: 1\nmax_workers: 2\n", "line 2: max_workers is given twice"),
        ("head_node:\n  spec:\n    containers: [hello]\n", "line 3: a container must be a mapping"),
        ("autoscaling_mode: fast\n", "line 1: autoscaling_mode 'fast': use default or aggressive"),
        ("head_start_ray_commands:\n- ray stop\n- ray start --port='6379\n", "line 3: head_start_ray_commands"),
        ("worker_start_ray_commands:\n- ray start --Foo!=1\n", "line 1: spec.workerGroupSpecs[0]"),
        (f"cluster_name: x\nsize: {'9' * 5000}\n", "line 2: cannot be read"),
    ],
)
async def test_errors_in_the_text_name_the_line_and_a_correction_recovers(stage, text, told):
    found = await applied(stage, configuration=text)
    message = next(one["message"] for one in found["status"]["conditions"] if one["type"] == "InvalidConfiguration")
    assert told in message
    assert stage.objects(kinds.RAY_CLUSTER) == []
    cured = await patched(stage, configuration="max_workers: 1\n")
    assert "InvalidConfiguration" not in true_conditions(cured)
    assert len(stage.objects(kinds.RAY_CLUSTER)) == 1


@pytest.mark.parametrize(
    "spec, annotation, told",
    [
        ({"head": {"spec": {"containers": "ray"}}}, "", "spec.head.spec.containers must be a list"),
        ({"worker": {"spec": {}}}, "", "spec.worker needs at least one container"),
        ({}, "soon", "annotation ray.k8s.io/launch-timeout 'soon' is not a time; write 600, 600s, 10m or 1h"),
    ],
)
def test_errors_in_the_typed_form_name_the_field(spec, annotation, told):
    body = ray(**spec)
    body["metadata"]["annotations"] = {"ray.k8s.io/launch-timeout": annotation}
    assert translate(body, RaySettings()).problems == [told]


def test_what_is_overridden_ignored_or_unsupported_is_said():
    found = translate(
        ray(configuration="max_workers: 3\nfile_mounts: {a: b}\n", maxWorkers=5, targetUtilization=80), RaySettings()
    )
    assert found.overridden == ["max_workers"]
    assert found.unsupported == ["file_mounts (line 2)"]
    assert found.target_ignored
    assert found.spec["workerGroupSpecs"][0]["maxReplicas"] == 5


def test_strict_objects_refuse_what_is_unsupported():
    strict = ray(configuration="file_mounts: {a: b}\n")
    strict["metadata"]["annotations"] = {"ray.k8s.io/strict": "true"}
    assert translate(strict, RaySettings()).problems == ["file_mounts (line 1) is not supported"]


def test_node_types_become_worker_groups():
    text = """
available_node_types:
  head: {resources: {CPU: 1}, node_config: {spec: {containers: [{name: ray-node, image: "rayproject/ray:2.60.0"}]}}}
  small_cpu:
    {min_workers: 1, max_workers: 4, resources: {CPU: 2}, node_config: {spec: {containers: [{name: ray-node}]}}}
head_node_type: head
"""
    group = translate(ray(configuration=text), RaySettings()).spec["workerGroupSpecs"][0]
    assert (group["groupName"], group["minReplicas"], group["maxReplicas"]) == ("small-cpu", 1, 4)
    assert group["resources"] == {"CPU": "2"}


TYPES = """
max_workers: 5
available_node_types:
  head: {node_config: {spec: {containers: [{name: ray-node, resources: {limits: {cpu: 1}}}]}}}
  small: {min_workers: 1, max_workers: 4, resources: {CPU: 2}}
  large: {min_workers: 1, max_workers: 9, resources: {CPU: 8}}
head_node_type: head
"""


async def test_every_node_type_has_bounds_of_its_own_which_can_be_changed_in_place(stage):
    found = await applied(stage, configuration=TYPES)
    spec = child(stage)["spec"]
    assert spec["enableInTreeAutoscaling"] is True
    bounds = {one["groupName"]: (one["minReplicas"], one["maxReplicas"]) for one in spec["workerGroupSpecs"]}
    assert bounds == {"small": (1, 4), "large": (1, 5)}  # the whole cluster's bound counts for each
    assert found["status"]["worker"]["unavailableReplicas"] == 2
    before = view.name(launchers(stage)[0])
    await patched(
        stage, configuration=TYPES.replace("min_workers: 1, max_workers: 4", "min_workers: 2, max_workers: 3")
    )
    small = child(stage)["spec"]["workerGroupSpecs"][0]
    assert (small["minReplicas"], small["replicas"], small["maxReplicas"]) == (2, 2, 3)
    assert view.name(launchers(stage)[0]) == before


def test_node_types_without_a_common_bound_grow_too():
    text = TYPES.replace("max_workers: 5\n", "", 1)
    assert translate(ray(configuration=text), RaySettings()).spec["enableInTreeAutoscaling"] is True


def test_the_upper_bound_wins():
    group = translate(ray(minWorkers=5, maxWorkers=2), RaySettings()).spec["workerGroupSpecs"][0]
    assert (group["minReplicas"], group["replicas"], group["maxReplicas"]) == (2, 2, 2)


POD = "spec:\n    containers:\n    - name: ray-node\n      "


@pytest.mark.parametrize(
    "text, told",
    [
        (f"head_node:\n  {POD}resources: {{limits: {{cpu: lots}}}}", "line 5: limits.cpu: 'lots'"),
        (f"worker_nodes:\n  {POD}resources: [1]", "line 5: resources must be a mapping"),
        (f"head_node:\n  {POD}command: [sleep, 5]", "line 5: command must be a list of texts"),
        (f"head_node:\n  metadata: {{labels: {{a: 1}}}}\n  {POD}image: x", "line 2: labels.a must be a text"),
        ("head_node:\n  kind: Pod", "line 1: head_node.spec.containers must be a list"),
        ("max_workers: 99999999999", "line 1: max_workers must be at most"),
        ("idle_timeout_minutes: .nan", "line 1: idle_timeout_minutes must be a number"),
        (
            "provider:\n  autoscaler_service_account: me",
            "line 2: provider.autoscaler_service_account must be a mapping",
        ),
        ("head_node_type: h\navailable_node_types:\n  h: {}\n  w: {max_workers: x}", "line 4: available_node_types.w"),
        ("head_node_type: h\navailable_node_types:\n  h: {}\n  w_a: {}\n  w.a: {}", "line 5: w.a and w_a both become"),
        ("head_node_type: h\navailable_node_types:\n  h: {}\n  'a b': {}", "line 4: 'a b' cannot name a group"),
        (f"max_workers: 2\nworker_nodes:\n  {POD}image: x", "line 2: worker group 'worker': Ray's autoscaler needs"),
        ("a: !!python/name:os.system", "line 1: could not determine a constructor"),
        ("~: 1", "spec.configuration holds what cannot be stored"),
        ("a:\n" + "- 1\n" * 100_000, "too long, more than 20000 values"),
        ("a: " + "[" * 5000, "line 1: nested too deeply"),
        ("a: &a\n  b: *a", "repeats itself too often"),
    ],
)
def test_every_complaint_about_the_text_names_its_line(text, told):
    assert told in translate(ray(configuration=text), RaySettings()).problems[0]


def test_the_typed_form_is_refused_where_its_cluster_would_be():
    bad = {"spec": {"containers": [{"name": "ray", "resources": {"limits": {"cpu": "lots"}}}]}}
    told = "spec.worker.spec.containers[0].resources.limits.cpu: 'lots' is not a quantity"
    assert told in translate(ray(worker=bad), RaySettings()).problems[0]
    assert "at most 53" in translate(ray("x" * 60), RaySettings()).problems[0]


async def test_a_broken_correction_leaves_what_runs_and_its_launch_alone(stage):
    await applied(stage, minWorkers=1)
    name = view.name(launchers(stage)[0])
    pods = {view.name(pod) for pod in stage.objects(kinds.POD)}
    found = await patched(stage, configuration="max_workers: [")
    assert {view.name(pod) for pod in stage.objects(kinds.POD)} == pods
    assert view.name(launchers(stage)[0]) == name
    assert {"InvalidConfiguration", "Launching"} <= true_conditions(found)


def test_deeply_nested_yaml_is_refused():
    with pytest.raises(BadInput, match="nested too deeply"):
        config_text.parse("".join(f"{' ' * depth}k{depth}:\n" for depth in range(80)) + " " * 80 + "x: 1")


def test_aliases_are_understood():
    assert config_text.parse("a: &x [1, 2]\nb: *x\n").data == {"a": [1, 2], "b": [1, 2]}


def test_a_yaml_bomb_is_refused():
    lines = ["a0: &a0 [1,1,1,1,1,1,1,1,1,1]"] + [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(BadInput, match="repeats itself"):
        config_text.parse("\n".join(lines))
