"""From flags to manifests, and what a stored object was before admission touched it."""

from __future__ import annotations

import io
import json
import re
import zipfile

import pytest

from shoal.api.meta import Json
from shoal.errors import BadInput
from shoal.sdk import acts, shapes, submitting
from shoal.sdk.shapes import ClusterShape, JobShape, PodShape


def test_flags_become_a_ray_job_that_says_what_every_pod_needs() -> None:
    shape = JobShape(
        entrypoint="python train.py", queue="team-a", priority="high", name="train",
        cluster=ClusterShape(workers=3, worker=PodShape(cpu="2", memory="4Gi", gpu="1")),
    )  # fmt: skip
    job = shapes.ray_job(shape, "red")
    assert job["metadata"] == {
        "name": "train",
        "namespace": "red",
        "labels": {"kueue.x-k8s.io/queue-name": "team-a", "kueue.x-k8s.io/priority-class": "high"},
    }
    (workers,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 3
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"}
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert job["spec"]["shutdownAfterJobFinishes"] is True


@pytest.mark.parametrize("name", ["Train", "1abc", "a" * 48, "a_b"])
def test_a_name_that_ray_jobs_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="is no name"):
        shapes.ray_job(JobShape(entrypoint="true", name=name), "default")


def test_names_come_from_the_script_and_are_new_each_time() -> None:
    first, second = shapes.name_for("python src/Train_Model.py --x"), shapes.name_for("python src/Train_Model.py --x")
    assert first != second and re.fullmatch(r"train-model-[a-z0-9]{5}", first)
    assert re.fullmatch(r"train-model-[a-z0-9]{5}", shapes.renamed(first))
    assert len(shapes.name_for("python " + "a" * 90 + ".py")) <= 47


def test_words_of_a_command_keep_their_quotes() -> None:
    assert shapes.entrypoint_of(("python", "-c", "print('a b')")) == """python -c 'print('"'"'a b'"'"')'"""
    assert shapes.entrypoint_of(("python a.py && echo done",)) == "python a.py && echo done"


def test_code_travels_in_parts_that_are_joined_before_the_job_is_submitted() -> None:
    job = shapes.ray_job(JobShape(entrypoint="true", name="train", runtime_env={"pip": ["x"]}), "default")
    archive = bytes(range(256)) * 6000
    parts = submitting.secrets_of("train", archive)
    assert len(parts) == 3 and all(len(json.dumps(one)) < 1_048_576 for one in parts)
    whole = submitting.with_code(job, [one["metadata"]["name"] for one in parts])
    pod = whole["spec"]["submitterPodTemplate"]["spec"]
    assert [one["secret"]["name"] for one in pod["volumes"][1]["projected"]["sources"]] == [
        "train-code-0", "train-code-1", "train-code-2",
    ]  # fmt: skip
    assert "part-*" in pod["initContainers"][0]["command"][2]
    assert json.loads(whole["spec"]["runtimeEnvYAML"]) == {"pip": ["x"], "working_dir": "/shoal/code/code.zip"}
    assert "submitterPodTemplate" not in job["spec"]


def test_one_part_is_mounted_as_it_is() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as out:
        out.writestr("train.py", "print(1)")
    job = shapes.ray_job(JobShape(entrypoint="true", name="train"), "default")
    (secret,) = submitting.secrets_of("train", packed.getvalue())
    pod = submitting.with_code(job, [secret["metadata"]["name"]])["spec"]["submitterPodTemplate"]["spec"]
    assert list(secret["data"]) == ["code.zip"] and "initContainers" not in pod
    assert pod["volumes"] == [{"name": "shoal-code", "secret": {"secretName": "train-code-0"}}]


def test_what_was_written_is_known_without_what_controllers_added() -> None:
    stored: Json = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": "train", "uid": "1", "labels": {"kueue.x-k8s.io/queue-name": "q"},
            "annotations": {"shoal.dev/created-by": "{}", "mine": "yes"},
            "managedFields": [
                {"manager": "kubectl-create", "fieldsV1": {"f:spec": {"f:entrypoint": {}}}},
                {"manager": "shoal", "fieldsV1": {"f:spec": {"f:jobId": {}, "f:inner": {"f:selector": {}}}}},
                {"manager": "shoal", "subresource": "status", "fieldsV1": {"f:spec": {"f:entrypoint": {}}}},
            ],
        },
        "spec": {"entrypoint": "true", "suspend": True, "jobId": "x", "inner": {"selector": 1, "own": 2}},
    }  # fmt: skip
    assert acts.written(stored) == {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": "train",
            "labels": {"kueue.x-k8s.io/queue-name": "q"},
            "annotations": {"mine": "yes"},
        },
        "spec": {"entrypoint": "true", "inner": {"own": 2}},
    }
