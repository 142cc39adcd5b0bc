"""What is wrong with a RayJob: all problems at once, each with its field and what to change. Pure; an empty list
means valid.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.pods import submission
from shoal.controllers.ray.settings import DELETION_POLICY, KAI, RaySettings
from shoal.controllers.ray.template_shape import POD_TEMPLATE, problems_of_shape
from shoal.controllers.ray.validation import cluster_rules
from shoal.controllers.ray.validation.extras import needs_gate
from shoal.errors import BadInput

_HARSHNESS = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")
_POLICIES = (*_HARSHNESS, "DeleteNone")


def problems_of_job(job: Json, settings: RaySettings) -> list[str]:
    return [*problems_of_job_metadata(job), *problems_of_job_spec(job, settings), *problems_of_job_status(job)]


def problems_of_job_metadata(job: Json) -> list[str]:
    name = view.name(job)
    problems = []
    if len(name) > names.LONGEST_JOB:
        problems.append(f"metadata.name has {len(name)} characters; use at most {names.LONGEST_JOB}")
    if not cluster_rules.DNS_1035.fullmatch(name):
        problems.append(f"metadata.name {name!r} must be lower-case letters, digits and '-', starting with a letter")
    return problems


def problems_of_job_status(job: Json) -> list[str]:
    if (
        submission.status(job).get("jobDeploymentStatus") == "Waiting"
        and submission.mode(job) != submission.INTERACTIVE
    ):
        return ["status is Waiting, which only InteractiveMode knows; do not change submissionMode of a running job"]
    return []


def problems_of_job_spec(job: Json, settings: RaySettings) -> list[str]:
    if not isinstance(job.get("spec"), dict):
        return ["spec is missing"]
    template = view.spec(job).get("submitterPodTemplate")
    misshapen = [*problems_of_shape(template, POD_TEMPLATE, "spec.submitterPodTemplate")]
    cluster = view.spec(job).get("rayClusterSpec")
    if isinstance(cluster, dict):
        misshapen += (f"spec.rayClusterSpec: {problem}" for problem in cluster_rules.problems_of_shapes(cluster))
    if misshapen:
        return misshapen
    try:
        return [
            *_submission(job, settings),
            *_cluster(job, settings),
            *_limits(job),
            *_deletion(job, settings),
        ]
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        return [f"spec has a field of the wrong type: {error}"]  # where no schema checked it before us


def _submission(job: Json, settings: RaySettings) -> Iterator[str]:
    spec = view.spec(job)
    mode = submission.mode(job)
    if mode not in submission.MODES:
        yield f"spec.submissionMode {mode!r}: use one of {', '.join(submission.MODES)}"
    template = spec.get("submitterPodTemplate")
    own_command = bool((((template or {}).get("spec") or {}).get("containers") or [{}])[0].get("command"))
    needs_entrypoint = mode != submission.INTERACTIVE and not own_command
    if settings.admission == "spec" and needs_entrypoint and not str(spec.get("entrypoint") or "").strip():
        yield "spec.entrypoint is empty; write the command that Ray shall run"  # KubeRay lets the submission fail
    if template is not None and not ((template or {}).get("spec") or {}).get("containers"):
        yield "spec.submitterPodTemplate needs at least one container"
    if spec.get("jobId") and not submission.is_submission_id(str(spec["jobId"])):
        yield "spec.jobId must be letters, digits, '.', '_' and '-', starting with a letter or digit"
    for read in (submission.runtime_env, submission.entrypoint_resources):
        try:
            read(job)
        except BadInput as error:
            yield str(error)
    if mode == submission.SIDECAR:
        if template is not None:
            yield "spec.submitterPodTemplate does not go together with SidecarMode"
        if spec.get("submitterConfig") is not None:
            yield "spec.submitterConfig does not go together with SidecarMode"
        head = view.head({"spec": spec.get("rayClusterSpec") or {}})
        if view.pod_spec(head).get("restartPolicy") not in (None, "", "Never"):
            yield "spec.rayClusterSpec.headGroupSpec: restartPolicy must be Never or unset in SidecarMode"


def _cluster(job: Json, settings: RaySettings) -> Iterator[str]:
    spec = view.spec(job)
    selector, cluster_spec = spec.get("clusterSelector"), spec.get("rayClusterSpec")
    mode = submission.mode(job)
    if settings.batch_scheduler == KAI and mode == submission.K8S_JOB:
        yield "spec.submissionMode: KAI starts no submitter that comes after its cluster; use HTTPMode or SidecarMode"
    if selector:
        if not selector.get(names.CLUSTER):
            yield f"spec.clusterSelector needs {names.CLUSTER}: the name of an existing RayCluster"
        if spec.get("suspend") is True:
            yield "spec.suspend does not go together with clusterSelector: the cluster is not this job's to stop"
        if mode == submission.SIDECAR:
            yield "spec.clusterSelector does not go together with SidecarMode"
        if int(spec.get("backoffLimit") or 0) > 0:
            yield "spec.backoffLimit does not go together with clusterSelector: a retry needs a cluster of its own"
    elif not isinstance(cluster_spec, dict):
        yield "one of spec.rayClusterSpec and spec.clusterSelector is needed"
    if isinstance(cluster_spec, dict):
        labels = {names.ORIGIN_KIND: "RayJob"}
        cluster = {"metadata": {"labels": labels, "annotations": view.annotations_of(job)}, "spec": cluster_spec}
        yield from (f"spec.rayClusterSpec: {problem}" for problem in cluster_rules.problems_of_spec(cluster, settings))
        if (cluster_spec.get("authOptions") or {}).get("enableK8sTokenAuth") is True:
            yield "spec.rayClusterSpec.authOptions.enableK8sTokenAuth is not available for RayJobs"


def _limits(job: Json) -> Iterator[str]:
    spec = view.spec(job)
    shutdown = spec.get("shutdownAfterJobFinishes") is True
    rules = (spec.get("deletionStrategy") or {}).get("deletionRules")
    if spec.get("suspend") is True and not shutdown and not rules:
        yield "spec.suspend needs shutdownAfterJobFinishes: true (or deletion rules)"
    retries = int(spec.get("backoffLimit") or 0)
    if retries < 0:
        yield "spec.backoffLimit must not be negative"
    if retries > 0 and submission.mode(job) == submission.INTERACTIVE:
        yield "spec.backoffLimit does not go together with InteractiveMode"
    ttl = int(spec.get("ttlSecondsAfterFinished") or 0)
    if ttl < 0:
        yield "spec.ttlSecondsAfterFinished must not be negative"
    if ttl > 0 and not shutdown:
        yield "spec.ttlSecondsAfterFinished needs shutdownAfterJobFinishes: true"
    if int((spec.get("submitterConfig") or {}).get("backoffLimit") or 0) < 0:
        yield "spec.submitterConfig.backoffLimit must not be negative"
    for field in ("entrypointNumCpus", "entrypointNumGpus"):
        if float(spec.get(field) or 0) < 0:
            yield f"spec.{field} must not be negative"
    for field in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        if spec.get(field) is not None and int(spec[field]) <= 0:
            yield f"spec.{field} must be positive"


# --- clean-up after the end


def _deletion(job: Json, settings: RaySettings) -> Iterator[str]:
    strategy = view.spec(job).get("deletionStrategy")
    if strategy is None:
        return
    if not settings.gate(DELETION_POLICY):
        yield f"spec.deletionStrategy {needs_gate(DELETION_POLICY)}"
    rules = strategy.get("deletionRules")
    legacy = [strategy.get("onSuccess"), strategy.get("onFailure")]
    if rules and any(legacy):
        yield "spec.deletionStrategy: deletionRules and onSuccess/onFailure exclude each other"
    elif rules:
        yield from _rules(job, rules)
    elif all(legacy):
        yield from _legacy(job, legacy)
    else:
        yield "spec.deletionStrategy needs deletionRules, or both onSuccess and onFailure"


def _legacy(job: Json, policies: list[Json]) -> Iterator[str]:
    for policy in policies:
        name = policy.get("policy")
        if name not in _POLICIES:
            yield f"spec.deletionStrategy: policy {name!r}: use one of {', '.join(_POLICIES)}"
            continue
        if name == "DeleteNone" and view.spec(job).get("shutdownAfterJobFinishes") is True:
            yield "spec.deletionStrategy: DeleteNone does not go together with shutdownAfterJobFinishes"
        yield from _policy_fits(job, name, "spec.deletionStrategy")


def _rules(job: Json, rules: list[Json]) -> Iterator[str]:
    if view.spec(job).get("shutdownAfterJobFinishes") is True:
        yield "spec.deletionStrategy.deletionRules: remove shutdownAfterJobFinishes, the rules say it all"
    seen: set[tuple[str, str]] = set()
    delays: dict[str, dict[str, int]] = {}
    for index, rule in enumerate(rules):
        where = f"spec.deletionStrategy.deletionRules[{index}]"
        policy = str(rule.get("policy") or "")
        condition = rule.get("condition") or {}
        by_job, by_deployment = condition.get("jobStatus"), condition.get("jobDeploymentStatus")
        ttl = int(condition.get("ttlSeconds") or 0)
        if policy not in _POLICIES:
            yield f"{where}: policy {policy!r}: use one of {', '.join(_POLICIES)}"
        if bool(by_job) == bool(by_deployment):
            yield f"{where}: condition needs exactly one of jobStatus and jobDeploymentStatus"
        if by_job and by_job not in ("SUCCEEDED", "FAILED", "STOPPED"):
            yield f"{where}: jobStatus {by_job!r}: use SUCCEEDED, FAILED or STOPPED"
        if by_deployment and by_deployment != "Failed":
            yield f"{where}: jobDeploymentStatus {by_deployment!r}: use Failed"
        if ttl < 0:
            yield f"{where}: ttlSeconds must not be negative"
        yield from _policy_fits(job, policy, where)
        state = f"{by_job or ''}/{by_deployment or ''}"
        if (policy, state) in seen:
            yield f"{where}: the same policy and condition stand in an earlier rule"
        seen.add((policy, state))
        delays.setdefault(state, {})[policy] = ttl
    for by_policy in delays.values():
        order = [(policy, by_policy[policy]) for policy in _HARSHNESS if policy in by_policy]
        for (softer, earlier), (harsher, later) in itertools.pairwise(order):
            if later < earlier:
                yield f"spec.deletionStrategy: {harsher} after {later} s comes before {softer} after {earlier} s"


def _policy_fits(job: Json, policy: str, where: str) -> Iterator[str]:
    spec = view.spec(job)
    if spec.get("clusterSelector") and policy in ("DeleteWorkers", "DeleteCluster"):
        yield f"{where}: {policy} does not go together with clusterSelector"
    if policy == "DeleteWorkers" and (spec.get("rayClusterSpec") or {}).get("enableInTreeAutoscaling") is True:
        yield f"{where}: DeleteWorkers does not go together with autoscaling"
