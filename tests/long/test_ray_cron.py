"""A RayCronJob with real Ray: three runs by the clock, and none for the time in which it was suspended.

Runs are two minutes apart, so that each has ended before the next is due.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.machine import Machine
from tests.long.test_elastic_ray import container, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1700)]

SCHEDULE, MINUTES = "*/2 * * * *", 2
RUNS = 3
ENTRYPOINT = 'python -c "import ray; ray.init(); print(ray.get(ray.remote(lambda: 41).remote()) + 1)"'


def cron(name: str, policy: str, **template: object) -> dict:
    head = {"rayStartParams": {}, "template": {"spec": {"containers": [container("ray-head", "1", "2G")]}}}
    job = {
        "entrypoint": ENTRYPOINT,
        "submissionMode": "HTTPMode",
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": {"headGroupSpec": head},
        **template,
    }
    spec = {
        "schedule": SCHEDULE,
        "concurrencyPolicy": policy,
        "successfulJobsHistoryLimit": 10,
        "jobTemplate": job,
    }
    return {"apiVersion": "ray.io/v1", "kind": "RayCronJob", "metadata": {"name": name}, "spec": spec}


def runs(machine: Machine, name: str) -> dict[int, str]:
    """What became of each, by the minute for which it was made."""
    found = machine.get("rayjobs", "-l", f"ray.io/cronjob-name={name}")["items"]
    return {
        int(one["metadata"]["name"].rpartition("-")[2]): str((one.get("status") or {}).get("jobStatus") or "")
        for one in found
    }


def succeeded(machine: Machine) -> int:
    return sum(status == "SUCCEEDED" for status in runs(machine, "work").values())


def suspend(machine: Machine, value: bool) -> None:
    change = json.dumps({"spec": {"suspend": value}})
    machine.kubectl("patch", "raycronjob", "work", "--type=merge", "-p", change)


def test_a_cron_job_runs_three_times_and_not_while_it_is_suspended(tmp_path: Path) -> None:
    """A second one, whose RayJobs never start, tells by its runs when the suspended one would have had its own."""
    machine = Machine("cron", tmp_path)
    machine.up("--node", "name=node,cpu=4,memory=16Gi")
    try:
        for one in (cron("work", "Forbid"), cron("clock", "Allow", suspend=True)):
            machine.kubectl("create", "-f", "-", stdin=json.dumps(one))
        until("the first run succeeds", lambda: succeeded(machine) == 1)
        suspend(machine, True)
        before = len(runs(machine, "clock"))
        until("a run is due while suspended", lambda: len(runs(machine, "clock")) > before)
        skipped = max(runs(machine, "clock"))
        assert skipped not in runs(machine, "work")
        suspend(machine, False)
        until("the second run succeeds", lambda: succeeded(machine) == 2)
        until("the third run succeeds", lambda: succeeded(machine) == RUNS)
        made = sorted(runs(machine, "work"))
        print("runs for the minutes", made, "skipped", skipped)
        assert skipped not in made and made[0] < skipped < made[1]
        assert all(minute % MINUTES == 0 for minute in made)
        assert machine.get("raycronjob", "work")["status"]["lastScheduleTime"]
        machine.kubectl("delete", "raycronjob", "--all")
        machine.kubectl("wait", "rayjobs", "--all", "--for=delete", "--timeout=120s")
    finally:
        machine.down()
