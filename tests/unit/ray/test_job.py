"""A RayJob from submission to clean-up, and what it survives on the way."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from aiohttp import web

from shoal.api import gang, kinds
from shoal.api.kind import Key
from shoal.controllers.ray import from_environment, names, view
from shoal.controllers.ray.job import attempt, poller, progress
from shoal.controllers.ray.job import reconciler as job
from shoal.controllers.ray.job.dashboard import DashboardError, DashboardTarget, HttpDashboard, JobInfo, checked_address
from shoal.controllers.ray.job.poller import Poller
from shoal.controllers.ray.pods import submission
from shoal.kube.clock import SystemClock
from tests.conformance.kuberay_traces import Stage
from tests.faults import proven
from tests.unit.ray.builders import ray_job

READY = {"do": "setPods", "phase": "Running", "ready": True}
HEAD = {names.NODE_TYPE: names.HEAD}


async def started(stage: Stage, mode: str = "HTTPMode", **more):
    """A job whose Ray job runs."""
    await stage.client.create(kinds.RAY_JOB, ray_job(mode=mode, **more), "default")
    await stage.settle()
    await stage.play(READY)
    await stage.settle()
    stage.dashboard.info = {"status": "RUNNING", "message": "running"}
    await stage.settle()
    return await read(stage)


async def read(stage: Stage, name: str = "train"):
    return await stage.client.get(kinds.RAY_JOB, name, "default")


async def patched(stage: Stage, **spec):
    await stage.client.patch(kinds.RAY_JOB, "train", "default", {"spec": spec})
    await stage.settle()
    return (await read(stage))["status"]


async def passes(stage: Stage, seconds: float):
    stage.clock.advance(seconds)
    await stage.settle()
    return (await read(stage))["status"]


def submitters_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*arguments: object) -> None:
        return None

    monkeypatch.setattr(attempt.Attempt, "end_submitter", nothing)


@proven(without=submitters_are_left_alone)
async def test_f083_a_submitter_does_not_wait_for_ever_for_a_cluster_that_is_gone(stage):
    """F83: a deadline passes and the cluster goes while the submitter runs; it would be started again and wait for a
    dashboard that never comes. Holds: it has a minute for the rest of its log."""
    await started(stage, "K8sJobMode", activeDeadlineSeconds=600, shutdownAfterJobFinishes=True)
    assert (await passes(stage, 601))["reason"] == "DeadlineExceeded"
    submitter = await stage.client.get(kinds.JOB, "train", "default")
    assert 600 <= submitter["spec"]["activeDeadlineSeconds"] - attempt.SUBMITTER_FAREWELL <= 602
    await passes(stage, 30)
    assert (await stage.client.get(kinds.JOB, "train", "default"))["spec"] == submitter["spec"]


# --- the head dies


def heads_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_from_lost_head", lambda *seen: None)
    monkeypatch.setattr(progress, "_from_lost_job", lambda *seen: None)


@proven(without=heads_do_not_matter)
@pytest.mark.parametrize("mode", ["HTTPMode", "K8sJobMode", "SidecarMode"])
async def test_f074_a_job_whose_head_dies_ends_with_the_evidence(stage, mode):
    """F74: the head dies under a running job. Holds: Failed with the cause in the message; never Running for ever."""
    await started(stage, mode)
    await stage.play({"do": "setPods", "delete": True, "match": HEAD})
    stage.dashboard.info = {"notFound": True}  # what a new head would say
    await stage.settle()
    status = await passes(stage, 15)
    assert status["jobDeploymentStatus"] == "Failed"
    assert status["reason"] == "AppFailed"
    assert "head" in status["message"]
    assert status["jobStatus"] == "FAILED"


async def test_a_cluster_that_is_deleted_under_its_job_is_told_as_lost(stage):
    await started(stage)
    await stage.play({"do": "deleteClusterOf", "name": "train"})
    await stage.settle()
    assert (await read(stage))["status"]["reason"] == "ClusterLost"


async def test_a_lost_cluster_is_retried_on_a_new_one(stage):
    before = (await started(stage, backoffLimit=1))["status"]
    await stage.play({"do": "deleteClusterOf", "name": "train"})
    stage.dashboard.info = {"notFound": True}
    await stage.settle()
    after = (await read(stage))["status"]
    assert after["failed"] == 1
    assert after["jobDeploymentStatus"] == "Initializing"
    assert after["rayClusterName"] != before["rayClusterName"]


# --- submission


def submits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_from_lost_job", lambda *seen: None)
    monkeypatch.setattr(progress, "_from_lost_head", lambda *seen: None)
    monkeypatch.setattr(
        poller._Followed, "submitted", property(lambda self: False, lambda self, value: None), raising=False
    )
    monkeypatch.setattr(attempt.submission, "status", lambda job: {**(job.get("status") or {}), "jobStatus": ""})


@proven(without=submits_again)
async def test_f078_a_job_that_ray_once_knew_is_never_submitted_again(stage):
    """F78: after the head was replaced Ray does not know the id. Holds: one submission per id; it ends as lost."""
    await started(stage)
    assert stage.dashboard.submitted
    stage.dashboard.submitted = False
    stage.dashboard.info = {"notFound": True}
    await stage.settle()
    assert not stage.dashboard.submitted
    status = (await read(stage))["status"]
    assert status["reason"] == "AppFailed" and "its head was replaced" in status["message"]


async def test_the_submitters_failure_is_judged_by_what_ray_says(stage):
    """The submitter exits 1 because the job failed: that is the application's failure, not the submission's."""
    await started(stage, "K8sJobMode")
    stage.dashboard.info = {"status": "FAILED", "message": "boom"}
    await stage.play({"do": "setSubmitter", "name": "train", "condition": "Failed"})
    await stage.settle()
    status = (await read(stage))["status"]
    assert (status["reason"], status["message"]) == ("AppFailed", "boom")


@pytest.mark.parametrize(
    "age, said, reason",
    [
        (0, {"notFound": True}, "AppFailed"),
        (31, {"notFound": True}, "JobDeploymentStatusTransitionGracePeriodExceeded"),
        (31, {"status": "RUNNING"}, ""),  # a follower that was cut off is no lost job
        (31, {"status": "SUCCEEDED"}, ""),  # what Ray says comes first, however late we look
    ],
)
async def test_a_submitter_that_ended_decides_only_what_ray_does_not_know(stage, age, said, reason):
    await stage.client.create(kinds.RAY_JOB, ray_job(), "default")
    await stage.settle()
    await stage.play(READY)
    await stage.settle()
    stage.dashboard.info = said
    await stage.play({"do": "setSubmitter", "name": "train", "condition": "Complete", "ageSeconds": age})
    await stage.settle()
    assert (await read(stage))["status"].get("reason", "") == reason


def waits_for_its_submitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_from_ray", lambda *seen: None)


@proven(without=waits_for_its_submitter)
@pytest.mark.parametrize("mode", ["K8sJobMode", "SidecarMode"])
@pytest.mark.parametrize("ray, stage_after", [("SUCCEEDED", "Complete"), ("STOPPED", "Complete"), ("FAILED", "Failed")])
@pytest.mark.parametrize("tells_when", [True, False])
async def test_f351_a_submitter_that_hangs_does_not_keep_a_job_that_ended(stage, mode, ray, stage_after, tells_when):
    """F351: Ray's job has ended and its submitter hangs. Holds: after the grace period the RayJob has Ray's outcome and
    the reason that says so, whether or not Ray tells when the job ended."""
    await started(stage, mode)
    end = {"end_time": int(stage.clock.now() / 1000)} if tells_when else {}
    stage.dashboard.info = {"status": ray, "message": "", **end}
    await stage.settle()
    assert (await passes(stage, 290))["jobDeploymentStatus"] == "Running"
    status = await passes(stage, 20)
    assert (status["jobDeploymentStatus"], status["jobStatus"]) == (stage_after, ray)
    assert status["reason"] == "JobDeploymentStatusTransitionGracePeriodExceeded"
    assert "submitter has not ended" in status["message"]


def same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "suffix", lambda *parts: "same5")


@proven(without=same_names)
async def test_f079_a_new_attempt_has_new_names_and_waits_for_the_old_cluster_to_go(stage):
    """F79: a retry starts while the old cluster is still terminating. Holds: it waits, then uses new names."""
    before = (await started(stage, backoffLimit=1))["status"]
    held = {"metadata": {"finalizers": ["test/hold"]}}
    await stage.client.patch(kinds.RAY_CLUSTER, before["rayClusterName"], "default", held)
    stage.dashboard.info = {"status": "FAILED", "message": "boom"}
    await stage.settle()
    assert (await read(stage))["status"]["jobDeploymentStatus"] == "Retrying"
    told = [event["message"] for event in stage.objects(kinds.EVENT) if event["reason"] == "RayJobAttemptFailed"]
    assert told == ["Attempt 1 of 2 failed (AppFailed): boom"]
    await stage.client.patch(kinds.RAY_CLUSTER, before["rayClusterName"], "default", {"metadata": {"finalizers": []}})
    stage.dashboard.info = {"notFound": True}
    await stage.settle()
    after = (await read(stage))["status"]
    assert after["jobDeploymentStatus"] == "Initializing"
    assert {after["jobId"], after["rayClusterName"]} & {before["jobId"], before["rayClusterName"]} == set()


# --- the dashboard


class SlowDashboard:
    """One job's dashboard never answers; the others do."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def job(self, target: DashboardTarget) -> JobInfo | None:
        self.asked.append(target.submission_id)
        if target.submission_id == "stuck":
            await asyncio.Event().wait()
        return JobInfo("RUNNING")

    async def submit(self, target: DashboardTarget) -> None: ...

    async def stop(self, target: DashboardTarget) -> None: ...

    async def close(self) -> None: ...


def one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "_AT_ONCE", 1)


@proven(without=one_after_the_other)
async def test_f082_a_dead_dashboard_delays_no_other_job():
    """F82: one dashboard never answers. Holds: other jobs are asked all the same, and nothing waits for it."""
    slow = SlowDashboard()
    woken: set[str] = set()
    asking = Poller(slow, SystemClock(), lambda key: woken.add(key.name))
    task = asyncio.create_task(asking.run())
    await asyncio.sleep(0)
    for name in ("stuck", "a", "b", "c"):
        asking.follow(Key("default", name), DashboardTarget("host:1", name))
    for _ in range(50):
        await asyncio.sleep(0)
    task.cancel()
    assert {"a", "b", "c"} <= woken


async def test_what_a_dashboard_refuses_is_told_at_once_and_at_the_end(stage):
    """A job that Ray never takes, for its runtime environment say, does not fail in silence after five minutes."""
    await started(stage)
    stage.dashboard.info = {"error": "the dashboard refused the job with 500: no such package"}
    await stage.settle()
    assert "no such package" in (await read(stage))["status"]["message"]
    late = await passes(stage, 301)
    assert late["reason"] == "JobStatusCheckTimeoutExceeded"
    assert "no such package" in late["message"]


async def test_a_dashboard_that_answers_again_is_not_spoken_of_any_more(stage):
    await started(stage)
    stage.dashboard.info = {"error": "conn refused"}
    await stage.settle()
    stage.dashboard.info = {"status": "RUNNING", "message": "Job is running."}
    await stage.settle()
    assert (await read(stage))["status"]["message"] == "Job is running."


def every_lost_answer_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.controllers.ray.job.poller.NEWS", 1)


@proven(without=every_lost_answer_is_news)
async def test_f586_a_busy_dashboard_that_loses_single_answers_is_no_news(stage):
    """F586: a head is so busy that now and then one question about its job gets no answer. Holds: nothing is written
    about it; two lost in a row are told."""
    await started(stage)
    stage.dashboard.info = {"status": "RUNNING", "message": "Job is running."}
    await stage.settle()
    before = (await read(stage))["metadata"]["resourceVersion"]
    for _ in range(3):
        stage.dashboard.info = {"error": "timeout"}
        await stage.operator.poller.poll_once()
        stage.dashboard.info = {"status": "RUNNING", "message": "Job is running."}
        await stage.settle()
    assert (await read(stage))["metadata"]["resourceVersion"] == before
    stage.dashboard.info = {"error": "timeout"}
    await stage.operator.poller.poll_once()
    await stage.settle()
    assert "timeout" in (await read(stage))["status"]["message"]


class HostileServer:
    """A dashboard that misbehaves as told, and remembers who called."""

    def __init__(self) -> None:
        self.calls: list[web.Request] = []

    async def __aenter__(self) -> HostileServer:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(request)
        name = request.path.rsplit("/", 1)[-1]
        if name == "huge":
            return web.Response(body=b'{"status": "RUNNING", "message": "' + b"x" * (3 << 20) + b'"}')
        if name == "elsewhere":
            raise web.HTTPFound(f"http://{self.address}/stolen")
        if name == "liar":
            return web.json_response({"status": "WONDERFUL"})
        if name == "garbage":
            return web.Response(body=b"\xff\xfe<html>")
        return web.json_response({"status": "RUNNING", "message": "fine"})


@pytest.mark.parametrize("name", ["huge", "liar", "garbage"])
async def test_a_lying_or_huge_answer_is_an_error_and_no_more(name):
    """Bounded, and no more than an error."""
    async with HostileServer() as server:
        client = HttpDashboard()
        with pytest.raises(DashboardError):
            await client.job(DashboardTarget(server.address, name))
        assert (await client.job(DashboardTarget(server.address, "good"))) == JobInfo("RUNNING", "fine")
        await client.close()


async def test_status_comes_back_when_the_dashboard_does(stage):
    """Down for two minutes: the job stays Running meanwhile."""
    await started(stage)
    stage.dashboard.info = {"error": "connection refused"}
    await stage.settle()
    assert (await passes(stage, 120))["jobDeploymentStatus"] == "Running"
    stage.dashboard.info = {"status": "SUCCEEDED"}
    await stage.settle()
    assert (await read(stage))["status"]["jobDeploymentStatus"] == "Complete"


def follows_redirects(monkeypatch: pytest.MonkeyPatch) -> None:
    import aiohttp

    original = aiohttp.ClientSession.request
    monkeypatch.setattr(
        aiohttp.ClientSession, "request", lambda self, *a, **k: original(self, *a, **{**k, "allow_redirects": True})
    )


@proven(without=follows_redirects)
async def test_f131_a_dashboard_cannot_send_us_elsewhere_with_its_token():
    """F131: a dashboard redirects us. Holds: refused; no other server is called, and no token but its own was sent."""
    async with HostileServer() as server:
        client = HttpDashboard()
        with pytest.raises(DashboardError, match="redirects"):
            await client.job(DashboardTarget(server.address, "elsewhere", token="secret"))
        await client.close()
        assert [call.path for call in server.calls] == ["/api/jobs/elsewhere"]
        assert server.calls[0].headers["x-ray-authorization"] == "Bearer secret"
        assert "authorization" not in server.calls[0].headers


@pytest.mark.parametrize(
    "host",
    ["169.254.169.254", "evil.example", "a.svc.x/../y", "0.0.0.0", "fe80::1", "x.default.svc.cluster.local@evil", ""],
)
def test_only_pods_and_head_services_are_called(host):
    """Not the metadata service, not another name, not odd text."""
    with pytest.raises(DashboardError):
        checked_address(host, 8265)


async def test_a_forged_dashboard_url_in_the_status_is_not_called(stage):
    """The address is made from the cluster, not from what a status says."""
    await started(stage)
    forged = {"status": {"dashboardURL": "evil.example:80"}}
    await stage.client.patch(kinds.RAY_JOB, "train", "default", forged, subresource="status")
    await stage.settle()
    held = stage.operator.poller._followed[Key("default", "train")]
    assert held.target.address.endswith("-head-svc.default.svc.cluster.local:8265")


# --- suspend and deadlines


def suspend_ignores_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job.JobReconciler, "_stopped", lambda self, *args, **more: True)


@proven(without=suspend_ignores_ray)
@pytest.mark.parametrize("mode", submission.MODES)
async def test_f083_suspend_means_no_pod_and_no_running_ray_job(stage, mode):
    """F83: suspend while the job runs, in every mode. Holds: Ray is asked to stop it, and nothing of it is left."""
    await started(stage, mode, shutdownAfterJobFinishes=True)
    if mode == submission.INTERACTIVE:
        await patched(stage, jobId="by-hand")
    status = await patched(stage, suspend=True)
    assert status["jobDeploymentStatus"] == "Suspended"
    assert stage.dashboard.stopped
    left = [kind.kind for kind in (kinds.POD, kinds.RAY_CLUSTER, kinds.JOB) if stage.objects(kind)]
    assert left == []
    resumed = await patched(stage, suspend=False)
    assert resumed["jobDeploymentStatus"] == "Initializing"


async def test_a_passed_deadline_stops_the_ray_job(stage):
    await started(stage, activeDeadlineSeconds=60)
    status = await passes(stage, 61)
    assert stage.dashboard.stopped
    assert (status["reason"], status["jobStatus"]) == ("DeadlineExceeded", "STOPPED")


async def test_a_stop_that_is_never_answered_does_not_hold_up_the_suspension(stage):
    await started(stage, shutdownAfterJobFinishes=True)

    async def never(target: DashboardTarget) -> None:
        await asyncio.Event().wait()

    stage.dashboard.stop = never
    assert (await patched(stage, suspend=True))["jobDeploymentStatus"] == "Running"
    assert (await passes(stage, 31))["jobDeploymentStatus"] == "Suspended"


# --- the rest of the life


async def test_a_sidecar_that_is_done_before_the_workers_are_up_does_not_hold_up_its_job(stage):
    """A finished submitter makes the head pod NotReady; the cluster still comes up and the job ends."""
    await stage.client.create(kinds.RAY_JOB, ray_job(mode="SidecarMode"), "default")
    await stage.settle()
    ended = [
        {"name": "ray-head", "ready": True, "state": {"running": {}}},
        {"name": "ray-job-submitter", "ready": False, "state": {"terminated": {"exitCode": 0}}},
    ]
    await stage.play({**READY, "ready": False, "match": HEAD, "containerStatuses": ended})
    await stage.play({**READY, "match": {names.NODE_TYPE: names.WORKER}})
    stage.dashboard.info = {"status": "SUCCEEDED"}
    await stage.settle()
    assert (await read(stage))["status"]["jobDeploymentStatus"] == "Complete"


async def test_a_dead_dashboard_does_not_hold_up_a_deletion(stage):
    await started(stage)

    async def never(target: DashboardTarget) -> None:
        await asyncio.Event().wait()

    stage.dashboard.stop = never
    await stage.client.delete(kinds.RAY_JOB, "train", "default")
    await stage.settle()
    assert len(stage.objects(kinds.RAY_JOB)) == 1
    stage.clock.advance(6)
    await stage.settle()
    assert stage.objects(kinds.RAY_JOB) == []


async def test_a_rotated_token_is_read_again(stage):
    spec = ray_job()["spec"]["rayClusterSpec"]
    await started(stage, rayClusterSpec={**spec, "authOptions": {"mode": "token"}})
    name = view.name(stage.objects(kinds.SECRET)[0])
    await stage.client.patch(kinds.SECRET, name, "default", {"data": {"auth_token": "bmV3"}})
    stage.dashboard.info = {"error": "401"}
    await stage.settle()
    assert stage.operator.poller._followed[Key("default", "train")].target.token == "new"


async def test_the_submitter_counts_in_the_gang_of_its_cluster(stage):
    await started(stage, "K8sJobMode")
    annotations = stage.objects(kinds.JOB)[0]["spec"]["template"]["metadata"]["annotations"]
    assert annotations[gang.GANG_UID] == view.uid(stage.objects(kinds.RAY_CLUSTER)[0])
    assert annotations[gang.GANG_SIZE] == "2"  # what stands before it: head and worker


async def test_an_interactive_job_says_what_it_waits_for_at_every_step(stage):
    await stage.client.create(kinds.RAY_JOB, ray_job(mode="InteractiveMode"), "default")
    await stage.settle()
    await stage.play(READY)
    await stage.settle()
    waiting = (await read(stage))["status"]
    assert waiting["jobDeploymentStatus"] == "Waiting" and "into spec.jobId" in waiting["message"]
    unknown = await patched(stage, jobId="mine")
    assert "Ray does not know job mine yet" in unknown["message"]
    stage.dashboard.info = {"status": "RUNNING", "message": "Job is currently running."}
    assert (await passes(stage, 3))["message"] == "Job is currently running."


async def test_a_corrected_spec_recovers_from_validation_failed(stage):
    await stage.client.create(kinds.RAY_JOB, ray_job(runtimeEnvYAML="oops"), "default")
    await stage.settle()
    status = (await read(stage))["status"]
    assert status["jobDeploymentStatus"] == "ValidationFailed"
    assert "runtimeEnvYAML" in status["message"]
    assert (await patched(stage, runtimeEnvYAML="pip: []"))["jobDeploymentStatus"] == "Initializing"


async def test_an_edit_does_not_disturb_a_running_job(stage):
    before = (await started(stage))["status"]
    after = await patched(stage, runtimeEnvYAML="just text")
    assert (after["jobDeploymentStatus"], after["rayClusterName"]) == ("Running", before["rayClusterName"])
    stage.dashboard.info = {"status": "SUCCEEDED"}
    await stage.settle()
    assert (await read(stage))["status"]["jobDeploymentStatus"] == "Complete"


async def test_initializing_says_what_it_waits_for(stage):
    await stage.play({"do": "quota", "deny": True})
    await stage.client.create(kinds.RAY_JOB, ray_job(), "default")
    await stage.settle()
    assert "exceeded quota" in (await read(stage))["status"]["message"]


@pytest.mark.parametrize("name, kept", [("DeleteWorkers", True), ("DeleteCluster", False)])
async def test_a_stopped_job_is_cleaned_up_as_a_failed_one(stage, name, kept):
    rules = [{"policy": name, "condition": {"jobStatus": "FAILED", "ttlSeconds": 0}}]
    await started(stage, deletionStrategy={"deletionRules": rules})
    stage.dashboard.info = {"status": "STOPPED"}
    await stage.settle()
    assert bool(stage.objects(kinds.RAY_CLUSTER)) is kept
    workers = [pod for pod in stage.objects(kinds.POD) if view.labels(pod)[names.NODE_TYPE] == names.WORKER]
    assert workers == []


async def test_the_token_is_given_to_the_dashboard_of_its_own_cluster_only(stage):
    spec = ray_job()["spec"]["rayClusterSpec"]
    await started(stage, rayClusterSpec={**spec, "authOptions": {"mode": "token"}})
    secret = stage.objects(kinds.SECRET)[0]
    held = stage.operator.poller._followed[Key("default", "train")]
    assert held.target.token
    assert held.target.token not in str(stage.objects(kinds.RAY_JOB)) + str(stage.objects(kinds.EVENT))
    assert msgspec.json.encode(secret["data"])


@pytest.mark.parametrize(
    ("said", "stages_then"),
    [
        ({"notFound": True}, ["Running", "Running", "Failed"]),
        ({"status": "RUNNING"}, ["Running", "Running", "Running"]),  # Ray has the job: its outcome is Ray's
    ],
)
async def test_a_sidecar_that_may_restart_fails_with_its_second_restart_unless_ray_has_the_job(said, stages_then):
    stage = Stage(from_environment({}, {"SidecarSubmitterRestart": True}))
    await stage.start()
    await stage.client.create(kinds.RAY_JOB, ray_job(mode="SidecarMode"), "default")
    await stage.settle()
    await stage.play(READY)
    stage.dashboard.info = said
    await stage.settle()
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    stages = []
    for count in (0, 1, 2):
        statuses = [
            {"name": "ray-head", "ready": True, "state": {"running": {}}},
            {"name": submission.CONTAINER, "ready": False, "restartCount": count, "state": ended},
        ]
        head = {"phase": "Running", "ready": False, "containerStatuses": statuses}
        await stage.play({"do": "setPods", "match": {names.NODE_TYPE: names.HEAD}, **head})
        await stage.settle()
        stages.append((await read(stage))["status"])
    await stage.stop()
    assert [one["jobDeploymentStatus"] for one in stages] == stages_then
    if stages_then[2] == "Failed":
        assert (stages[2]["reason"], "restarted 2 times" in stages[2]["message"]) == ("SubmissionFailed", True)


async def test_a_submitter_that_hangs_does_not_keep_an_ended_job_running(stage):
    """Also when the dashboard has gone away since Ray said that the job has ended."""
    await started(stage, mode="K8sJobMode")
    stage.dashboard.info = {"status": "SUCCEEDED", "message": "done", "end_time": stage.clock.now() // 1000}
    assert (await passes(stage, 1))["jobDeploymentStatus"] == "Running"
    stage.dashboard.info = {"error": "the dashboard does not answer"}
    status = await passes(stage, 301)
    assert (status["jobDeploymentStatus"], status["reason"]) == ("Complete", progress.GRACE_EXCEEDED)
