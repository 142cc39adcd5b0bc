"""`shoal check` before the server in memory: its refusals in its words, nearest matches, queues of the same files."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli.main import main

QUEUE = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: main, namespace: team}
spec: {clusterQueue: all}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: all}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: plain, resources: [{name: cpu, nominalQuota: 2}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: plain}
"""


def job(name: str, resources: str, count: int = 1) -> str:
    return (
        f"apiVersion: batch/v1\nkind: Job\nmetadata: {{name: {name}, namespace: team, "
        "labels: {kueue.x-k8s.io/queue-name: main}}\n"
        f"spec:\n  parallelism: {count}\n  template: {{spec: {{restartPolicy: Never, containers: "
        f"[{{name: c, image: busybox, resources: {resources}}}]}}}}\n"
    )


def cluster(name: str, resources: str) -> str:
    return (
        f"apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {{name: {name}}}\nspec:\n  headGroupSpec:\n"
        "    rayStartParams: {}\n    template: {spec: {containers: "
        f"[{{name: c, image: rayproject/ray, resources: {resources}}}]}}}}\n"
    )


def wrapper(name: str, pod: str) -> str:
    wrapped = (
        f"apiVersion: v1, kind: Pod, metadata: {{name: {pod}}}, spec: {{containers: [{{name: c, image: busybox}}]}}"
    )
    return (
        f"apiVersion: workload.codeflare.dev/v1beta1\nkind: AppWrapper\nmetadata: {{name: {name}}}\n"
        f"spec: {{resources: {{GenericItems: [{{replicas: 1, generictemplate: {{{wrapped}}}}}]}}}}\n"
    )


def check(folder: Path, capsys: pytest.CaptureFixture[str], **files: str) -> list[str]:
    """What it says of these files, one line for each mistake."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    with pytest.raises(SystemExit) as stopped:
        main(["check", str(folder)])
    answer = capsys.readouterr()
    assert (stopped.value.code or 0) == (1 if "mistakes to correct" in answer.err else 0), answer
    return [line.removeprefix(f"{folder}/") for line in answer.out.splitlines()]


def test_a_queue_of_the_same_folder_says_what_can_never_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = check(
        tmp_path,
        capsys,
        queue=QUEUE,
        large=job("large", "{requests: {cpu: 1}}", 4),
        small=job("small", "{requests: {cpu: 1}}"),
    )
    assert said == ["large.yaml: Job large: can never run: 4 cpu asked, 2 is the queue's limit"]


@pytest.mark.parametrize(
    "text, words",
    [
        (job("a", "{requests: {cpu: 2}, limits: {cpu: 1}}"), "must be less than or equal to cpu limit of 1"),
        (job("a", "{requests: {gpu: 1}}"), "must be a standard resource for containers"),
        (job("a", "{requests: {cpu: '-1'}}"), "must be greater than or equal to 0"),
        (cluster("a", "{requests: {memory: 2Gi}, limits: {memory: 1Gi}}"), "less than or equal to memory limit of 1Gi"),
        (
            cluster("a", "{limits: {gpu: 1}}"),
            "spec.headGroupSpec.template: [spec.containers[0].resources.limits[gpu]: Invalid value",
        ),
        (job("a", "{}").replace("Job", "Jop"), "there is no kind Jop in batch/v1; did you mean Job?"),
        (job("a", "{}").replace("batch/v1", "batch/v2"), "there is no version batch/v2; did you mean batch/v1?"),
        (job("a", "{}").replace("batch/v1", "bacth/v1"), "there is no group bacth; did you mean batch/v1?"),
    ],
)
def test_what_a_server_would_refuse_is_named(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (said,) = check(tmp_path, capsys, one=text)
    assert words in said


def test_a_broken_file_does_not_stop_the_others_and_two_gangs_with_one_pod_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = "apiVersion: cert-manager.io/v1\nkind: Issuer\nmetadata: {name: theirs}\n"
    files = {
        "a": "a: [",
        "b": wrapper("one", "same"),
        "c": wrapper("two", "same"),
        "d": wrapper("three", "own"),
        "e": other,
    }
    said = check(tmp_path, capsys, **files)
    assert len(said) == 2 and said[0].startswith("a.yaml, line 2")
    assert said[1] == f"c.yaml: AppWrapper two: Pod same is also created by AppWrapper one in {tmp_path}/b.yaml"
