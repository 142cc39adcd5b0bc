"""One attempt of a RayJob: its cluster, submitter and head, found by name and owner, and taken back as a whole."""

from __future__ import annotations

import msgspec

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.controllers.ray import names, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.cluster.deletion import ended
from shoal.controllers.ray.cluster_token import read_token
from shoal.controllers.ray.job.dashboard import DashboardError, DashboardTarget, checked_address
from shoal.controllers.ray.job.poller import Poller
from shoal.controllers.ray.owned_writer import OwnedWriter, key_of, owned_by
from shoal.controllers.ray.pods import auth, builder, observed, submission
from shoal.controllers.ray.settings import SIDECAR_RESTART, RaySettings
from shoal.errors import BadInput
from shoal.kube.events import Recorder

MOST_RESTARTS = 2
SUBMITTER_FAREWELL = 60
"""Seconds."""


class Submitter(msgspec.Struct, frozen=True):
    """How the submitter ended: `Complete` or `Failed`, when (RFC 3339, may be empty) and why."""

    outcome: str
    at: str = ""
    message: str = ""


class Attempt:
    def __init__(self, writer: OwnedWriter, caches: Caches, poller: Poller, settings: RaySettings) -> None:
        self.writer, self.caches, self.poller, self.settings = writer, caches, poller, settings
        self._tokens: dict[str, str] = {}

    def cluster(self, job: Json) -> Json | None:
        """The attempt's cluster: the one it made, or the one it selects."""
        name = str(submission.status(job).get("rayClusterName") or "")
        found = self.caches.clusters.get(Key(view.namespace(job), name))
        if found is None or view.spec(job).get("clusterSelector") or owned_by(found, job):
            return found
        return None

    def head(self, cluster: Json) -> Json | None:
        heads = [pod for pod in self.caches.pods_of(cluster) if view.labels(pod).get(names.NODE_TYPE) == names.HEAD]
        return next((pod for pod in heads if not view.deleting(pod) and not observed.is_dead(pod)), None)

    def dashboard_url(self, cluster: Json) -> str:
        """Host and port, without a scheme, as users and SDKs read it."""
        return f"{builder.head_host(cluster, self.settings)}:{view.dashboard_port(cluster)}"

    def target(self, job: Json, cluster: Json) -> DashboardTarget | None:
        """Where to ask. Always made from the cluster itself, never from what a status says."""
        host, service = builder.head_host(cluster, self.settings), view.head_service_name(cluster)
        if self.settings.dashboard_by_pod_address:
            head = self.head(cluster)
            host = str(((head or {}).get("status") or {}).get("podIP") or "")
        try:
            address = checked_address(host, view.dashboard_port(cluster))
        except DashboardError:
            return None
        body = b""
        if submission.mode(job) == submission.HTTP and not submission.status(job).get("jobStatus"):
            try:
                body = msgspec.json.encode(submission.request_body(job))
            except BadInput:
                return None  # edited into something that cannot be submitted; it was valid when the attempt began
        proxy = f"/api/v1/namespaces/{view.namespace(cluster)}/services/{service}:dashboard/proxy"
        return DashboardTarget(
            address, submission.submission_id(job), self._tokens.get(view.uid(cluster), ""), body, proxy
        )

    async def follow(self, job: Json, cluster: Json) -> None:
        """Have the poller ask about this attempt."""
        if auth.uses_token(cluster, self.settings):
            latest = self.poller.latest(key_of(job))
            if view.uid(cluster) not in self._tokens or (latest is not None and latest.error):
                self._tokens[view.uid(cluster)] = await read_token(
                    self.writer.client, cluster
                )  # read again: it may have been rotated
        target = self.target(job, cluster)
        if target is not None:
            self.poller.follow(key_of(job), target)

    def forget(self, cluster: Json) -> None:
        self._tokens.pop(view.uid(cluster), None)

    def submitter(self, job: Json, cluster: Json) -> Submitter | None:
        """How the submitter ended; None while it runs or where there is none."""
        if submission.mode(job) == submission.K8S_JOB:
            return _job_outcome(self.caches.submitters.get(key_of(job)))
        if submission.mode(job) == submission.SIDECAR:
            heads = [pod for pod in self.caches.pods_of(cluster) if view.labels(pod).get(names.NODE_TYPE) == names.HEAD]
            return _sidecar_outcome(heads[0], self.settings.gate(SIDECAR_RESTART)) if heads else None
        return None

    async def pause_submitter(self, job: Json) -> None:
        """A submitter that outlives its cluster must not hand the job to the next head."""
        held = self.caches.submitters.get(key_of(job))
        if held is not None and owned_by(held, job) and ended(held) is None:
            await self.writer.patch(kinds.JOB, held, {"spec": {"suspend": True}}, self.caches.submitters)

    async def end_submitter(self, job: Json, now: int) -> None:
        """One that runs on after its job's end gets a moment to tell the rest of the log, and no more."""
        held = self.caches.submitters.get(key_of(job))
        if (
            held is None
            or not deletable(held, job)
            or ended(held) is not None
            or view.spec(held).get("suspend") is True
        ):
            return
        began = str((held.get("status") or {}).get("startTime") or view.metadata(held).get("creationTimestamp") or "")
        limit = SUBMITTER_FAREWELL + (max(0, now - parse_time(began)) // 1_000_000 if began else 0)
        if int(view.spec(held).get("activeDeadlineSeconds") or limit + 1) > limit:
            await self.writer.patch(kinds.JOB, held, {"spec": {"activeDeadlineSeconds": limit}}, self.caches.submitters)


async def remove_attempt(job: Json, attempt: Attempt, recorder: Recorder) -> bool:
    """Delete cluster and submitter; True when both are gone. A selected cluster is not ours to delete."""
    submitter = attempt.caches.submitters.get(key_of(job))
    if deletable(submitter, job):
        assert submitter is not None
        await attempt.writer.delete(kinds.JOB, submitter, attempt.caches.submitters)
        recorder.event(job, "Normal", "DeletedRayJobSubmitter", f"Deleted submitter Job {view.name(submitter)}")
    cluster = attempt.cluster(job)
    if cluster is not None and not view.spec(job).get("clusterSelector") and not view.deleting(cluster):
        await attempt.writer.delete(kinds.RAY_CLUSTER, cluster, attempt.caches.clusters)
        recorder.event(job, "Normal", "DeletedRayCluster", f"Deleted RayCluster {view.name(cluster)}")
    return gone(job, attempt)


def deletable(submitter: Json | None, job: Json) -> bool:
    return submitter is not None and owned_by(submitter, job) and not view.deleting(submitter)


def gone(job: Json, attempt: Attempt) -> bool:
    submitter = attempt.caches.submitters.get(key_of(job))
    if submitter is not None and owned_by(submitter, job):
        return False
    return attempt.cluster(job) is None or bool(view.spec(job).get("clusterSelector"))


def _job_outcome(job: Json | None) -> Submitter | None:
    if job is None:
        return None
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True":
            at = str(condition.get("lastTransitionTime") or "")
            return Submitter(str(condition["type"]), at, str(condition.get("message") or ""))
    return None


def _sidecar_outcome(head: Json, restarts: bool) -> Submitter | None:
    """How it ended; where it may be restarted, a failure counts from the second restart on."""
    terminated = observed.container_terminated(head, submission.CONTAINER)
    if restarts and (terminated or {}).get("exitCode") != 0:
        tried = observed.restarts(head, submission.CONTAINER)
        return Submitter("Failed", "", f"it was restarted {tried} times") if tried >= MOST_RESTARTS else None
    if terminated is None:
        return None
    outcome = "Complete" if terminated.get("exitCode") == 0 else "Failed"
    reason = f"{terminated.get('reason') or 'ended'}, exit code {terminated.get('exitCode')}"
    return Submitter(outcome, str(terminated.get("finishedAt") or ""), str(terminated.get("message") or reason))
