"""How an entrypoint reaches Ray, by script and by HTTP."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable

import pytest

from shoal.controllers.ray.pods import builder, submission
from shoal.controllers.ray.settings import RaySettings
from shoal.controllers.ray.validation.job_rules import problems_of_job
from shoal.errors import BadInput
from tests.faults import proven
from tests.unit.ray.builders import cluster_spec, group, ray_job


def running(entrypoint: str = "python train.py", mode: str = "K8sJobMode", **more):
    job = ray_job(mode=mode, entrypoint=entrypoint, **more)
    job["status"] = {
        "jobId": "train-x",
        "rayClusterName": "train-c",
        "dashboardURL": "train-c-head-svc.default.svc:8265",
    }
    return job


ENTRYPOINTS = [
    "python train.py --epochs 3",
    'python -c "import ray; ray.init(); print(ray.cluster_resources())"',
    'python -c "\nimport ray\nprint(1)\n"',
    "cd /data && python train.py; echo done",
    "python train.py > $HOME/log 2>&1 || true",
    "echo $(hostname) `date` '$HOME' \"$USER\"",
    'python -c "print(\\"quoted\\")"',
    "echo 'single $quotes' | cat",
    "./run.sh&",
    "echo one\necho two",
    "python train.py \\\n  --epochs 3",
    "if true; then\n  python train.py\nfi\n",
    "echo \"$HOME/a b\" '$HOME'",
    "cat",
    "echo $HOME",
    "echo!",
]


def ray_receives(script: str, join: Callable[[list[str]], str]) -> str:
    """Run the submitter's script with a `ray` that records its arguments, and join them as Ray's command line does."""
    fake = (
        "python() { :; }; "
        'ray() { if [ "$2" = submit ]; then printf \'%s\\0\' "$@"; elif [ "$2" = status ]; then return 1; fi; }; '
    )
    out = subprocess.run(
        ["/bin/bash", "-c", fake + script], capture_output=True, env={"PATH": "/usr/bin:/bin"}, check=False
    )
    words = out.stdout.decode().split("\0")
    return join(words[words.index("--") + 1 : -1])


def run_in_head(command: str) -> str:
    """What a head's shell does with the text: the words of the innermost command, or its output."""
    functions = {"python": "printf '<%s>' \"$@\"", "cd": ":", "hostname": "echo H", "date": "echo D"}
    stub = "".join(f"{name}() {{ {does}; }}; export -f {name}; " for name, does in functions.items())
    out = subprocess.run(
        ["/bin/bash", "-c", stub + command],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", "USER": "me"},
    )
    return out.stdout


def raw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "_entrypoint_words", lambda text: text)


@pytest.mark.parametrize("join", [subprocess.list2cmdline, shlex.join], ids=["older Ray", "newer Ray"])
@proven(without=raw)
def test_f117_the_entrypoint_runs_on_the_head_and_only_there(join):
    """F117: an entrypoint with separators and substitutions. Holds: only the head runs it, as it was written."""
    for entrypoint in ENTRYPOINTS:
        received = ray_receives(submission.script(running(entrypoint)), join)
        assert run_in_head(received) == run_in_head(entrypoint), entrypoint


def test_who_looks_at_the_list_of_jobs_sees_what_runs():
    script = submission.script(running("python train.py --out $HOME/out"))
    assert "# python train.py --out HOME/out" in script


def test_submitting_twice_is_harmless():
    """The script submits only an id that Ray does not know, so a restarted submitter just follows the logs."""
    script = submission.script(running())
    assert script.index("ray job status") < script.index("ray job submit") < script.index("ray job logs")
    assert "--submission-id train-x" in script


def test_the_exit_code_is_the_jobs():
    assert "grep -q FAILED; then exit 1" in submission.script(running())


def test_http_body_has_only_what_is_set():
    job = running(
        mode="HTTPMode", runtimeEnvYAML="pip: [requests]", entrypointNumCpus=2, entrypointResources='{"a": 1}'
    )
    assert submission.request_body(job) == {
        "entrypoint": "python train.py",
        "submission_id": "train-x",
        "runtime_env": {"pip": ["requests"]},
        "entrypoint_num_cpus": 2,
        "entrypoint_resources": {"a": 1},
    }


@pytest.mark.parametrize("text", ["just a string", "a: [", "- 1"])
def test_a_runtime_env_that_is_no_mapping_is_bad_input(text):
    with pytest.raises(BadInput, match="runtimeEnvYAML"):
        submission.runtime_env(running(runtimeEnvYAML=text))


def test_a_sidecar_is_part_of_the_head_and_counts_with_it():
    cluster = submission.cluster_of(running(mode="SidecarMode"), RaySettings())
    spec = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    assert [container["name"] for container in spec["containers"]] == ["ray-head", "ray-job-submitter"]
    assert spec["restartPolicy"] == "Never"


def test_a_users_submitter_template_keeps_its_command():
    template = {"spec": {"containers": [{"name": "mine", "image": "img", "command": ["my-submit"]}]}}
    job = running(submitterPodTemplate=template)
    built = submission.submitter_job(job, submission.cluster_of(job, RaySettings()), RaySettings())["spec"]["template"][
        "spec"
    ]
    assert built["containers"][0]["command"] == ["my-submit"]
    assert {"name": "RAY_JOB_SUBMISSION_ID", "value": "train-x"} in built["containers"][0]["env"]


def test_the_environment_that_a_job_chooses_is_that_of_all_its_pods():
    job, chosen = running(), {"image.shoal.dev/environment": "/home/me/env"}
    job["metadata"]["annotations"] = {**chosen, "other": "x"}
    cluster = submission.cluster_of(job, RaySettings())
    template = submission.submitter_job(job, cluster, RaySettings())["spec"]["template"]
    assert template["metadata"]["annotations"] == chosen
    assert builder.head_pod(cluster, RaySettings())["metadata"]["annotations"].items() >= chosen.items()
    own = {"image.shoal.dev/environment": "/other"}
    cluster["spec"]["headGroupSpec"]["template"]["metadata"] = {"annotations": own}
    assert builder.head_pod(cluster, RaySettings())["metadata"]["annotations"].items() >= own.items()


@pytest.mark.parametrize("url", ["", "$(id):80", "evil/x:80", "a b:80", "host", "http://host:80"])
def test_a_strange_dashboard_url_is_never_put_into_a_script(url):
    job = running()
    job["status"]["dashboardURL"] = url
    with pytest.raises(BadInput, match="dashboardURL"):
        submission.script(job)


@pytest.mark.parametrize(
    "text, told",
    [
        ("pip: [requests\n", "spec.runtimeEnvYAML, line 1"),
        ("working_dir: x\npip:\n\t- a\n", "spec.runtimeEnvYAML, line 3"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("".join(["a0: &a0 [1,1,1,1,1,1,1,1,1]\n", *(f"a{i}: &a{i} [{f'*a{i - 1},' * 9}]\n" for i in range(1, 9))]),
         "repeats itself too often"),
        ("- pip", "a mapping"),
    ],
)  # fmt: skip
def test_a_runtime_environment_that_is_broken_or_hostile_is_refused_with_its_line(text, told):
    problems = problems_of_job(ray_job(runtimeEnvYAML=text), RaySettings())
    assert len(problems) == 1 and told in problems[0]


def test_resources_that_nest_for_ever_are_no_json():
    assert "not JSON" in problems_of_job(ray_job(entrypointResources="[" * 200_000), RaySettings())[0]
    params = {"resources": '{"a":' * 200_000}
    cluster = ray_job(rayClusterSpec=cluster_spec(group(rayStartParams=params)))
    assert "not a JSON object" in problems_of_job(cluster, RaySettings())[0]


@pytest.mark.parametrize("text", ["# pip: [requests]\n", "~", "{}"])
def test_a_runtime_environment_of_nothing_is_none(text):
    job = running(runtimeEnvYAML=text)
    assert problems_of_job(job, RaySettings()) == []
    assert "--runtime-env-json" not in submission.script(job)
    assert "runtime_env" not in submission.request_body(job)


def test_what_looks_like_a_date_reaches_ray_as_it_was_written():
    job = running(runtimeEnvYAML="env_vars: {DAY: 2024-01-31}")
    assert problems_of_job(job, RaySettings()) == []
    assert submission.request_body(job)["runtime_env"] == {"env_vars": {"DAY": "2024-01-31"}}
    assert "2024-01-31" in submission.script(job)


@pytest.mark.parametrize("admission, is_refused", [("spec", True), ("metadata", False), ("off", False)])
def test_where_admission_is_kuberays_a_job_without_an_entrypoint_fails_at_its_submission(admission, is_refused):
    assert bool(problems_of_job(ray_job(entrypoint=""), RaySettings(admission=admission))) is is_refused
    submit = next(line for line in submission.script(running("")).splitlines() if "ray job submit" in line)
    assert submit.split(" && ")[0].rstrip("; ").endswith("--"), "ray job submit ends with an error"
