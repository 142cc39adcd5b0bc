"""RayJobs under random faults from a seed: one submission per id, new names per attempt, an end that cites evidence.

The dashboard here is a small Ray: it takes an id once, knows only what its own head was told, and dies with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from shoal.api import kinds
from shoal.controllers.ray import RaySettings, names, view
from shoal.controllers.ray.job.dashboard import DashboardError, DashboardTarget, JobInfo
from shoal.kube.client import Client
from tests.chaos.test_ray_clusters import Faulty, live, set_pod
from tests.conformance.kuberay_doubles import ScriptedDashboard
from tests.conformance.kuberay_traces import Stage
from tests.resting import looked_at, rules_of
from tests.unit.ray import judgement
from tests.unit.ray.builders import ray_job

ENDED = ("Complete", "Failed")


class SmallRay(ScriptedDashboard):
    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.jobs: dict[str, str] = {}
        self.accepted: Counter[str] = Counter()
        self.down = False

    async def job(self, target: DashboardTarget) -> JobInfo | None:
        await asyncio.sleep(0)
        if self.down:
            raise DashboardError("down by the dice")
        state = self.jobs.get(target.submission_id)
        return JobInfo(state, "said by Ray") if state else None

    async def submit(self, target: DashboardTarget) -> None:
        if target.submission_id not in self.jobs:
            self.accepted[target.submission_id] += 1
            self.jobs[target.submission_id] = "RUNNING"
        if self.random.random() < 0.3:
            raise DashboardError("the answer was lost")

    async def stop(self, target: DashboardTarget) -> None:
        if self.jobs.get(target.submission_id) == "RUNNING":
            self.jobs[target.submission_id] = "STOPPED"


@pytest.mark.parametrize("seed", range(8))
async def test_no_seed_submits_an_id_twice_or_leaves_a_job_without_an_end(seed: int) -> None:
    random = Random(seed)
    stage = Stage(RaySettings())
    ray = SmallRay(random)
    stage.dashboard = ray
    stage.operator.poller._dashboard = ray
    faulty = Faulty(stage.transport.inner, random)
    stage.transport.inner = faulty
    test = Client(stage.server.transport())
    await stage.start()
    await test.create(kinds.RAY_JOB, ray_job(mode="HTTPMode", backoffLimit=2, shutdownAfterJobFinishes=True), "default")
    attempts: set[tuple[str, str]] = set()
    faulty.chance = 0.2
    for _ in range(40):
        state = (stage.objects(kinds.RAY_JOB)[0].get("status")) or {}
        if state.get("jobId"):
            attempts.add((state["jobId"], state["rayClusterName"]))
        action = random.choice(("ready", "ready", "end", "head dies", "down", "up", "suspend", "resume", "time", "cut"))
        if action == "ready":
            for pod in live(stage):
                await set_pod(
                    test, view.name(pod), {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                )
        elif action == "end" and ray.jobs:
            running = [name for name, one in ray.jobs.items() if one == "RUNNING"]
            for name in running:
                ray.jobs[name] = random.choice(("SUCCEEDED", "FAILED"))
        elif action == "head dies":
            for pod in live(stage, **{names.NODE_TYPE: names.HEAD}):
                await set_pod(test, view.name(pod), {"phase": "Failed", "conditions": []})
                ray.jobs.clear()  # its GCS is gone with it
        elif action in ("down", "up"):
            ray.down = action == "down"
        elif action in ("suspend", "resume"):
            await test.patch(kinds.RAY_JOB, "train", "default", {"spec": {"suspend": action == "suspend"}})
        elif action == "time":
            stage.clock.advance(random.choice((1, 5, 20)))
        elif action == "cut":
            stage.server.cut_watches()
        for _ in range(random.randint(5, 60)):
            await asyncio.sleep(0)
        if random.random() < 0.5:
            await stage.operator.poller.poll_once()
        await stage._collect_garbage()
    faulty.chance, ray.down = 0.0, False
    await test.patch(kinds.RAY_JOB, "train", "default", {"spec": {"suspend": False}})
    for _ in range(12):
        stage.clock.advance(400)
        await stage.settle()
        for pod in live(stage):
            await set_pod(
                test, view.name(pod), {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            )
        await stage.settle()
        for name, one in ray.jobs.items():
            if one == "RUNNING":
                ray.jobs[name] = "SUCCEEDED"
        await stage.settle()
        if (stage.objects(kinds.RAY_JOB)[0]["status"])["jobDeploymentStatus"] in ENDED:
            break
    status = stage.objects(kinds.RAY_JOB)[0]["status"]
    await stage.stop()
    assert judgement.violations(stage) == []
    assert looked_at(stage.server.server, rules_of(ray=True, jobs=False), stage.clock.now()) == []
    assert status["jobDeploymentStatus"] in ENDED
    assert max(ray.accepted.values(), default=1) == 1
    assert len({cluster for _, cluster in attempts}) == len(attempts) == len({one for one, _ in attempts})
    if status["jobDeploymentStatus"] == "Failed":
        assert status["reason"]
        assert status["message"]
