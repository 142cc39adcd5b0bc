"""On one machine a cluster that says nothing has its token where KubeRay's clients look for it."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api import kinds, ray_token
from shoal.api.meta import Json
from shoal.controllers.ray import token_default, view
from shoal.controllers.ray.cluster.upgrade import spec_hash
from shoal.controllers.ray.pods import auth
from shoal.controllers.ray.settings import RaySettings
from shoal.controllers.ray.validation.cluster_rules import problems_of_cluster
from tests.conformance.kuberay_traces import Stage
from tests.unit.ray.builders import ray_cluster, ray_job
from tests.unit.ray.test_webhook import asked

ON = RaySettings(token_by_agent=True)


def stored(body: Json, settings: RaySettings = ON, **request: Any) -> Json:
    verdict = token_default(settings)(asked(body, **request))
    assert verdict.allowed
    return verdict.changed or body


def test_the_spec_says_token_and_the_pods_stay_as_published():
    body = ray_cluster()
    found = stored(body)
    assert found["spec"]["authOptions"] == {"mode": "token"}
    assert auth.uses_token(found, ON) and auth.given_by_agent(found, ON) and auth.needs_secret(found, ON)
    assert stored(found) is found  # the same way every time
    assert spec_hash(found) == spec_hash(body)  # a cluster of an earlier version is not recreated for it


def test_an_old_manifest_passes_with_the_default_but_not_with_options_of_its_own():
    old = ray_cluster(rayVersion="2.9.0")
    assert problems_of_cluster(stored(old), ON) == []
    assert "needs spec.rayVersion 2.52.0" in problems_of_cluster(ray_cluster(rayVersion="2.9.0", authOptions={}), ON)[0]


def test_a_manifest_applied_again_by_replace_keeps_its_token():
    held = stored(ray_cluster())
    again = ray_cluster()
    assert stored(again, old=held)["spec"]["authOptions"] == {"mode": "token"}


@pytest.mark.parametrize(
    "body, settings",
    [
        (ray_cluster(authOptions={"mode": "disabled"}), ON),
        (ray_cluster(authOptions={"mode": "token"}), ON),
        (ray_cluster(managedBy="kueue.x-k8s.io/multikueue"), ON),
        (ray_cluster(headGroupSpec="no object"), ON),
        (ray_cluster(), RaySettings()),
    ],
)
def test_what_says_otherwise_is_left_alone(body, settings):
    assert stored(body, settings) is body


def test_options_that_replace_the_default_count():
    found = stored(ray_cluster())
    opened = {**found, "spec": {**found["spec"], "authOptions": {"mode": "disabled"}}}
    assert not auth.uses_token(opened, ON)
    own = {**found, "spec": {**found["spec"], "authOptions": {"mode": "token", "secretName": "mine"}}}
    assert not auth.given_by_agent(own, ON) and auth.secret_name(own) == "mine"


async def test_the_operator_makes_the_secret_and_names_it_to_the_agent():
    stage = Stage(ON)
    await stage.start()
    await stage.client.create(kinds.RAY_CLUSTER, stored(ray_cluster("demo")), "default")
    await stage.settle()
    pods, secrets = stage.objects(kinds.POD), stage.objects(kinds.SECRET)
    await stage.stop()
    assert [view.name(one) for one in secrets] == ["demo"] and secrets[0]["data"]["auth_token"]
    assert {view.annotations_of(pod).get(ray_token.ANNOTATION) for pod in pods} == {"demo"}
    assert all("RAY_AUTH" not in str(pod["spec"]) for pod in pods)


def test_who_submits_by_hand_is_told_what_the_submission_needs():
    told = token_default(ON)(asked(ray_job("mine", submissionMode="InteractiveMode"))).warnings
    assert "kubectl ray get token" in told[0] and "through kubectl port-forward it needs no token" in told[0]
    own = ray_job("mine", submissionMode="InteractiveMode")
    own["spec"]["rayClusterSpec"]["authOptions"] = {"mode": "token"}
    assert "which needs the token" in token_default(ON)(asked(own)).warnings[0]
    assert token_default(ON)(asked(ray_job("mine"))).warnings == ()
    open_cluster = ray_job("mine", submissionMode="InteractiveMode")
    open_cluster["spec"]["rayClusterSpec"]["authOptions"] = {"mode": "disabled"}
    assert token_default(ON)(asked(open_cluster)).warnings == ()
