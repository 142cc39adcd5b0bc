"""In-place resize: what Ray's autoscaler can use is let through where the server resizes pods, the rest is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from shoal.api.labels import KUEUE_QUEUE
from shoal.api.meta import Json
from shoal.controllers.ray import RaySettings, as_served
from shoal.controllers.ray.validation import cluster_rules
from shoal.kube.client import Client
from tests.conformance.kuberay_traces import Stage
from tests.unit.ray.builders import container, group, ray_cluster

BOUNDS = {"max-cpu": "4", "max-memory": "8Gi", "resize-timeout": 60}
V2 = {"enableInTreeAutoscaling": True, "autoscalerOptions": {"version": "v2"}}


def resizing(groups: object, *shapes: Json, labels: Json | None = None, **spec: Any) -> Json:
    text = groups if isinstance(groups, str) else json.dumps({"groups": groups})
    metadata = {"annotations": {"ray.io/ippr": text}, "labels": labels or {}}
    return ray_cluster("demo", *shapes, metadata=metadata, **{**V2, **spec})


def problems(cluster: Json, settings: RaySettings | None = None) -> list[str]:
    return cluster_rules.problems_of_cluster(cluster, settings or RaySettings())


def test_bounds_of_workers_and_head_are_let_through():
    assert problems(resizing({"workers": BOUNDS, "headgroup": {**BOUNDS, "max-cpu": 2.5}})) == []


def restarting() -> Json:
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    return group(template={"spec": {"containers": [container("ray-worker", resizePolicy=policy)]}})


@pytest.mark.parametrize(
    ("cluster", "told"),
    [
        (resizing("{groups"), "malformed"),
        (resizing({"workers": {"max-cpu": "4"}}), "max-memory"),
        (resizing({"workers": {**BOUNDS, "max-cpu": "four"}}), "group workers: max-cpu: 'four' is not a quantity"),
        (resizing({"others": BOUNDS}), "names group 'others', which is not one of headgroup, workers"),
        (resizing({"workers": BOUNDS}, group(rayStartParams={"num-cpus": "1"})), "rayStartParams.num-cpus fixes"),
        (resizing({"workers": BOUNDS}, restarting()), "resizePolicy of memory restarts the container"),
        (resizing({"workers": BOUNDS}, enableInTreeAutoscaling=False, autoscalerOptions=None), "enableInTreeAuto"),
        (resizing({"workers": BOUNDS}, labels={KUEUE_QUEUE: "team"}), "a queue admits pods with the size"),
    ],
)
def test_what_rays_autoscaler_would_stumble_over_is_refused(cluster: Json, told: str):
    assert any("ray.io/ippr" in one and told in one for one in problems(cluster)), problems(cluster)


def test_where_pods_are_not_resized_the_annotation_is_refused():
    (problem,) = problems(resizing({"workers": BOUNDS}), RaySettings(pod_resize=False))
    assert "do not resize pods in place" in problem


async def test_the_server_is_asked_whether_it_resizes_pods(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    assert (await as_served(stage.client, RaySettings())).pod_resize
    asked = Client.request

    async def older(self: Client, method: str, path: str, *rest: Any, **more: Any) -> Any:
        answer = await asked(self, method, path, *rest, **more)
        if path == "/api/v1":
            return msgspec.structs.replace(answer, body=answer.body.replace(b"pods/resize", b"pods/other"))
        return answer

    monkeypatch.setattr(Client, "request", older)
    assert not (await as_served(stage.client, RaySettings())).pod_resize
