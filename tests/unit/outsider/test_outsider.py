"""Another person adds a kind of job, an admission check and a policy with one file each, outside `src`.

The kits of `shoal.contracts` accept what is right and say what is missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.api.kueue_names import POD_GROUP, POD_GROUP_TOTAL
from shoal.contracts import missing_from_check, missing_from_job, missing_from_policy
from shoal.contracts.__main__ import main
from shoal.controllers.queues.jobs import ALL
from shoal.controllers.queues.jobs.pod import Pods
from shoal.controllers.queues.jobs.pod_group import GROUPS, composed
from shoal.controllers.queues.jobs.train_job import TrainJobs
from shoal.engine.policies import SHIPPED
from tests.patience import PATIENCE
from tests.unit.outsider.budget import Budget
from tests.unit.outsider.training_run import TrainingRuns
from tests.unit.queues.build import job, job_set, pod, ray_job, template, train_job, training_runtime

ROOT = Path(__file__).parents[3]
HERE = "tests.unit.outsider"
ENTRY_POINTS = f"""[shoal.job_kinds]
training-run = {HERE}.training_run:TrainingRuns
[shoal.admission_checks]
budget = {HERE}.budget:Budget
"""
RUN: dict[str, Any] = {
    "apiVersion": "lab.example/v1",
    "kind": "TrainingRun",
    "metadata": {"name": "train"},
    "spec": {"workers": 2, "template": template(cpu="1")},
}
CHECK: dict[str, Any] = {
    "kind": "AdmissionCheck",
    "metadata": {"name": "budget"},
    "spec": {"controllerName": "lab.example/budget", "parameters": {"name": "this-year"}},
}


def installed(folder: Path, entry_points: str = ENTRY_POINTS) -> dict[str, str]:
    """The environment of a process in which a package has these entry points."""
    metadata = folder / "lab-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lab\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def test_a_kind_of_job_and_an_admission_check_of_another_package_work(tmp_path: Path) -> None:
    """Held, admitted, started, shown, explained, ended; under shipped rights; in another cluster; with its check."""
    walk = f"{HERE.replace('.', '/')}/walk.py"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", walk]
    done = subprocess.run(
        words, cwd=ROOT, env=installed(tmp_path), capture_output=True, text=True, timeout=PATIENCE * 4
    )
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout[-8000:] + done.stderr[-2000:]


def test_a_kind_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    broken = f"[shoal.job_kinds]\nbroken = {HERE}.training_run:None\n"
    words = [sys.executable, "-c", "from shoal.cli.main import main; main(['install', '--dry-run'])"]
    done = subprocess.run(
        words, cwd=ROOT, env=installed(tmp_path, broken), capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1
    assert f"error: kind of job {HERE}.training_run:None cannot be loaded" in done.stderr


# --- the kits


def test_a_policy_of_another_package_is_taken() -> None:
    assert missing_from_policy(f"{HERE}.youngest:Youngest") == []


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_policies_keep_the_contract(name: str) -> None:
    assert missing_from_policy(name) == []


class NoOrder:
    name = "no-order"


class Ties:
    name = "ties"

    def order(self, gang: Any) -> tuple[Any, ...]:
        return (gang.priority,)

    def may_preempt(self, preemptor: Any, victim: Any) -> bool:
        return False


class EachOther(Ties):
    name = "each-other"

    def order(self, gang: Any) -> tuple[Any, ...]:
        return (gang.uid,)

    def may_preempt(self, preemptor: Any, victim: Any) -> bool:
        return preemptor is not victim


class Moody(Ties):
    name = "moody"

    def order(self, gang: Any) -> tuple[Any, ...]:
        return (gang.uid,)

    def rank(self, gang: Any, view: Any, now: int) -> tuple[Any, ...]:
        return (now, gang.uid)

    timeless = True


class Broken(Ties):
    name = "broken"

    def order(self, gang: Any) -> tuple[Any, ...]:
        raise KeyError("team")


@pytest.mark.parametrize(
    ("policy", "wrong"),
    [
        ("NoOrder", "lacks order, may_preempt"),
        ("Ties", "gives two gangs the same place"),
        ("EachOther", "take each other's room for ever"),
        ("Moody", "`rank` changes with time"),
        ("Broken", "it raised KeyError: 'team'"),
        ("Absent", "cannot be loaded"),
    ],
)
def test_what_a_policy_lacks_is_said(policy: str, wrong: str) -> None:
    found = missing_from_policy(f"{HERE}.test_outsider:{policy}")
    assert [one for one in found if wrong in one], found


def test_a_kind_of_job_of_another_package_is_taken() -> None:
    assert missing_from_job(TrainingRuns(), RUN) == []


EXAMPLES: dict[str, dict[str, Any]] = {
    "Pod": pod("train"),
    "JobSet": job_set("train"),
    "TrainJob": train_job("train"),
    "Job": job("train", 2),
    "RayJob": ray_job("train"),
    "RayCluster": {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "train"},
        "spec": ray_job("train")["spec"]["rayClusterSpec"],
    },
    "AppWrapper": {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {
            "components": [
                {
                    "podSets": [{"replicas": 2, "path": "template.spec.template"}],
                    "template": {
                        "apiVersion": "batch/v1",
                        "kind": "Job",
                        "metadata": {"name": "train"},
                        "spec": {"parallelism": 2, "template": template(cpu="1")},
                    },
                }
            ]
        },
    },
}


BLUEPRINTS: dict[str, dict[str, Any]] = {"TrainJob": training_runtime("torch")}


@pytest.mark.parametrize("kind", ALL, ids=lambda one: one.kind.kind)
def test_shipped_kinds_keep_the_contract(kind: Any) -> None:
    assert missing_from_job(kind, EXAMPLES[kind.kind.kind], BLUEPRINTS.get(kind.kind.kind)) == []


class Unfindable(TrainJobs):
    def blueprint_name(self, job: Any) -> Any:
        return None


class NeedsNothing(TrainJobs):
    def knowing(self, blueprint: Any, recorded: Any) -> Any:
        return TrainJobs(blueprint or training_runtime("torch"), recorded)


@pytest.mark.parametrize(
    ("kind", "blueprint", "wrong"),
    [
        (TrainJobs(), None, "give that one, too, as a second manifest"),
        (TrainJobs(), training_runtime("other"), "`blueprint_name` is"),
        (Unfindable(), training_runtime("torch"), "`blueprint_name` is None"),
        (NeedsNothing(), training_runtime("torch"), "`pod_sets` without its blueprint must raise NoBlueprint"),
    ],
)
def test_what_a_kind_lacks_whose_pods_another_object_describes_is_said(kind: Any, blueprint: Any, wrong: str) -> None:
    found = missing_from_job(kind, EXAMPLES["TrainJob"], blueprint)
    assert [one for one in found if wrong in one], found


def test_an_appwrapper_of_mcad_keeps_the_contract() -> None:
    """The same kind in its older dialect."""
    wrapped = EXAMPLES["AppWrapper"]["spec"]["components"][0]["template"]
    old = {**EXAMPLES["AppWrapper"], "spec": {"resources": {"GenericItems": [{"generictemplate": wrapped}]}}}
    kind = next(one for one in ALL if one.kind.kind == "AppWrapper")
    assert missing_from_job(kind, old) == []


def test_a_group_of_pods_keeps_what_a_group_can() -> None:
    """Its pods cannot be gated again: to stop them is to delete them."""
    pods = [Pods().suspended(pod(name)) for name in ("one", "two")]
    for index, one in enumerate(pods):
        one["metadata"] |= {"uid": str(index), "annotations": {POD_GROUP: "all", POD_GROUP_TOTAL: "2"}}
    found = missing_from_job(GROUPS, composed(pods))
    assert [one for one in found if "stopped" not in one] == []


class Nothing:
    kind = TrainingRuns.kind


class StaysSuspended(TrainingRuns):
    def started(self, job: Any, infos: Any) -> Any:
        return job


class Forgets(TrainingRuns):
    def stopped(self, job: Any, pod_sets: Any) -> Any:
        return self.suspended(job)


class Meddles(TrainingRuns):
    def pod_sets(self, job: Any) -> Any:
        job["spec"]["seen"] = True
        return super().pod_sets(job)


class NoPods(TrainingRuns):
    def pod_sets(self, job: Any) -> Any:
        return []


class Raises(TrainingRuns):
    def end(self, job: Any) -> Any:
        return job["status"]["result"]


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Nothing, "it lacks is_skipped, is_suspended, pod_sets"),
        (StaysSuspended, "`started` returns a job that is still suspended"),
        (Forgets, "the pod sets are not those from before the start"),
        (Meddles, "it changed the manifest that it was given"),
        (NoPods, "`pod_sets` is empty"),
        (Raises, "it raised KeyError: 'status'"),
    ],
)
def test_what_a_kind_of_job_lacks_is_said(kind: Any, wrong: str) -> None:
    example = {**RUN, "spec": dict(RUN["spec"])}
    found = missing_from_job(kind(), example)
    assert [one for one in found if wrong in one], found


def test_an_admission_check_of_another_package_is_taken() -> None:
    assert missing_from_check(Budget(), CHECK) == []


class Wordless(Budget):
    def answer(self, workload: Any, check: Any, now: int) -> Any:
        return type(super().answer(workload, check, now))(state="Rejected")


class Taken(Budget):
    controller_name = "kueue.x-k8s.io/multikueue"


class Guesses(Budget):
    def answer(self, workload: Any, check: Any, now: int) -> Any:
        return type(super().answer(workload, check, now))(state="Maybe", message="perhaps")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (object(), "it lacks controller_name, problem, answer"),
        (Wordless(), "says Rejected without a message"),
        (Taken(), "is answered by Shoal itself"),
        (Guesses(), "must be one of Pending, Ready, Retry, Rejected"),
    ],
)
def test_what_an_admission_check_lacks_is_said(check: Any, wrong: str) -> None:
    found = missing_from_check(check, CHECK)
    assert [one for one in found if wrong in one], found


def test_the_kits_can_be_run_by_hand(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    example = tmp_path / "run.yaml"
    example.write_text("apiVersion: lab.example/v1\nkind: TrainingRun\nspec: {workers: 1, template: {spec: {}}}\n")
    assert main(["policy", f"{HERE}.youngest:Youngest"]) == 0
    assert main(["job", f"{HERE}.training_run:TrainingRuns", str(example)]) == 1
    assert main(["nothing"]) == 2
    said = capsys.readouterr()
    assert f"{HERE}.youngest:Youngest keeps the contract of a policy" in said.out
    assert "pod set worker: `template.spec.containers` is empty" in said.out
    assert "usage: python -m shoal.contracts policy" in said.err
