"""What a Job's pods amount to: counts, indexes, failures, and whether the Job is done. Pure, no writes.

Called by `jobs.py` with a Job and its pods as the cache has them. All rules are those of batch/v1.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from shoal.api.labels import BATCH_COMPLETION_INDEX
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.errors import BadInput
from shoal.local.builtin import pods
from shoal.local.builtin.context import number

TRACKING = pods.TRACKING
FAILURES = "batch.kubernetes.io/job-index-failure-count"
FIRST_BACKOFF, LONGEST_BACKOFF = 10.0, 600.0

Outcome = Literal["running", "succeeded", "failed", "ignored"]


class JobVerdict(NamedTuple):
    """Why a Job ends: the condition it will get, and the words."""

    complete: bool
    reason: str
    message: str


# --- indexes


def parse_indexes(text: str | None) -> set[int]:
    """`0-2,5` as numbers; what cannot be read is left out."""
    found: set[int] = set()
    for part in (text or "").split(","):
        first, dash, last = part.partition("-")
        if first.isdecimal() and (last.isdecimal() or not dash):
            found.update(range(int(first), int(last if dash else first) + 1))
    return found


def print_indexes(indexes: set[int]) -> str:
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(a) if a == b else f"{a},{b}" if b == a + 1 else f"{a}-{b}" for a, b in runs)


def is_indexed(job: Json) -> bool:
    return bool(job["spec"].get("completionMode") == "Indexed")


def index_of(pod: Json) -> int | None:
    metadata = pod["metadata"]
    text = (
        (metadata.get("annotations") or {}).get(BATCH_COMPLETION_INDEX)
        or (metadata.get("labels") or {}).get(BATCH_COMPLETION_INDEX)
        or ""
    )
    return int(text) if text.isdecimal() else None


# --- pods


def is_tracked(pod: Json) -> bool:
    return TRACKING in (pod["metadata"].get("finalizers") or ())


def outcome(job: Json, pod: Json) -> Outcome:
    """How a pod counts. One that is being deleted has failed, unless its Job was suspended or waits for real ends."""
    found = pods.phase(pod)
    if found == "Succeeded":
        return "succeeded"
    if found == "Failed":
        rule = matching_rule(job, pod)
        return "ignored" if rule is not None and rule[1].get("action") == "Ignore" else "failed"
    if not pods.is_deleting(pod):
        return "running"
    if job["spec"].get("suspend"):
        return "ignored"
    placed = bool((pod.get("spec") or {}).get("nodeName"))
    return "running" if job["spec"].get("podReplacementPolicy") == "Failed" and placed else "failed"


def matching_rule(job: Json, pod: Json) -> tuple[int, Json, str] | None:
    """The first rule of the pod failure policy that fits a failed pod, with its place and what it saw."""
    for place, rule in enumerate((job["spec"].get("podFailurePolicy") or {}).get("rules") or ()):
        codes, patterns = rule.get("onExitCodes"), rule.get("onPodConditions")
        if codes:
            seen = _exit_code(pod, codes)
            if seen:
                return place, rule, seen
        for pattern in patterns or ():
            found = pods.condition(pod, str(pattern.get("type")))
            if found is not None and found.get("status") == pattern.get("status", "True"):
                return place, rule, f"has condition {pattern.get('type')}"
    return None


def _exit_code(pod: Json, rule: Json) -> str:
    status = pod.get("status") or {}
    values = rule.get("values") or ()
    for container in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
        ended = (container.get("state") or {}).get("terminated")
        if not ended or not ended.get("exitCode"):
            continue
        if rule.get("containerName") and rule["containerName"] != container.get("name"):
            continue
        if (ended["exitCode"] in values) == (rule.get("operator") == "In"):
            return f"failed with exit code {ended['exitCode']}"
    return ""


def ended_at(pod: Json) -> int | None:
    """When a pod ended, in microseconds."""
    texts = [str(((c.get("state") or {}).get("terminated") or {}).get("finishedAt") or "")
             for c in (pod.get("status") or {}).get("containerStatuses") or ()]  # fmt: skip
    ready = pods.condition(pod, "Ready") or {}
    texts += [str(ready.get("lastTransitionTime") or ""), str(pod["metadata"].get("deletionTimestamp") or "")]
    for text in texts:
        try:
            return parse_time(text)
        except BadInput:
            continue
    return None


def backoff(job: Json, mine: list[Json], now: int) -> float:
    """Seconds to wait before the next pod is made: doubled with every failure since the last success."""
    failures, successes = [], [0]
    for pod in mine:
        found = outcome(job, pod)
        moment = ended_at(pod)
        if found == "failed" and not (pods.is_deleting(pod) and not pods.is_terminal(pod)):
            failures.append(moment if moment is not None else now)
        elif found == "succeeded" and moment is not None:
            successes.append(moment)
    recent = [moment for moment in failures if moment > max(successes)]
    if not recent:
        return 0.0
    delay = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(len(recent) - 1, 16))
    return max(0.0, delay - (now - max(recent)) / 1_000_000)


# --- the Job


class Tally(NamedTuple):
    """What has happened so far. `uncounted` pods are in the sums, but not yet in the stored counters."""

    succeeded: int
    failed: int
    completed: set[int]
    given_up: set[int]


def finished(job: Json) -> Json | None:
    for name in ("Complete", "Failed"):
        found = pods.condition(job, name)
        if found is not None and found.get("status") == "True":
            return found
    return None


def wanted_active(job: Json, tally: Tally, active: int) -> int:
    """How many pods should be running now."""
    spec = job["spec"]
    parallel = number(spec.get("parallelism"), 1)
    completions = spec.get("completions")
    if completions is None:
        return active if tally.succeeded else parallel
    left = int(completions) - (len(tally.completed | tally.given_up) if is_indexed(job) else tally.succeeded)
    return max(0, min(parallel, left))


def verdict(job: Json, mine: list[Json], tally: Tally, now: int) -> JobVerdict | None:
    """Whether the Job is over, and why."""
    pending = _announced(job)
    if pending is not None:
        return pending
    return _policy_failure(job, mine) or _failure(job, mine, tally, now) or _success(job, mine, tally)


def _announced(job: Json) -> JobVerdict | None:
    """A verdict that was stored before its last pods were gone: it stands, whatever they do."""
    for name, complete in (("SuccessCriteriaMet", True), ("FailureTarget", False)):
        found = pods.condition(job, name)
        if found is not None and found.get("status") == "True":
            return JobVerdict(complete, str(found.get("reason") or ""), str(found.get("message") or ""))
    return None


def _policy_failure(job: Json, mine: list[Json]) -> JobVerdict | None:
    for pod in mine:
        rule = matching_rule(job, pod) if pods.phase(pod) == "Failed" else None
        if rule is not None and rule[1].get("action") == "FailJob":
            name = f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}"
            words = f"Pod {name} {rule[2]} matching FailJob rule at index {rule[0]}"
            return JobVerdict(False, "PodFailurePolicy", words)
    return None


def _failure(job: Json, mine: list[Json], tally: Tally, now: int) -> JobVerdict | None:
    spec = job["spec"]
    limit = number(spec.get("backoffLimit"), 6)
    if tally.failed > limit or _restarted_too_often(job, mine, limit):
        return JobVerdict(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    deadline = seconds_to_deadline(job, now)
    if deadline is not None and deadline <= 0:
        return JobVerdict(False, "DeadlineExceeded", "Job was active longer than specified deadline")
    if spec.get("backoffLimitPerIndex") is not None:
        most = spec.get("maxFailedIndexes")
        if most is not None and len(tally.given_up) > most:
            return JobVerdict(
                False, "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
            )
        if tally.given_up and len(tally.given_up | tally.completed) >= number(spec.get("completions")):
            return JobVerdict(False, "FailedIndexes", "Job has failed indexes")
    return None


def _restarted_too_often(job: Json, mine: list[Json], limit: int) -> bool:
    """With restartPolicy OnFailure the restarts of containers count instead of pods."""
    if ((job["spec"].get("template") or {}).get("spec") or {}).get("restartPolicy") != "OnFailure":
        return False
    restarts = 0
    for pod in mine:
        if pods.phase(pod) in ("Running", "Pending"):
            status = pod.get("status") or {}
            every = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
            restarts += sum(number(container.get("restartCount")) for container in every)
    return restarts > 0 if limit == 0 else restarts >= limit


def _success(job: Json, mine: list[Json], tally: Tally) -> JobVerdict | None:
    for place, rule in enumerate((job["spec"].get("successPolicy") or {}).get("rules") or ()):
        asked = parse_indexes(rule["succeededIndexes"]) if rule.get("succeededIndexes") else None
        met = tally.completed & asked if asked is not None else tally.completed
        least = rule.get("succeededCount", len(asked) if asked is not None else None)
        if least is not None and len(met) >= least:
            return JobVerdict(True, "SuccessPolicy", f"Matched rules at index {place}")
    reached = JobVerdict(True, "CompletionsReached", "Reached expected number of succeeded pods")
    completions = job["spec"].get("completions")
    if completions is None:
        return reached if tally.succeeded and not any(outcome(job, pod) == "running" for pod in mine) else None
    done = len(tally.completed) if is_indexed(job) else tally.succeeded
    return reached if done >= completions else None


def seconds_to_deadline(job: Json, now: int) -> float | None:
    limit, start = job["spec"].get("activeDeadlineSeconds"), (job.get("status") or {}).get("startTime")
    if limit is None or not start or job["spec"].get("suspend"):
        return None
    return float(limit) - (now - parse_time(start)) / 1_000_000


def failures_of_index(mine: list[Json], index: int) -> int:
    """How often an index has failed, by what its pods carry: each new pod is marked with the failures before it."""
    found = 0
    for pod in mine:
        if index_of(pod) == index and pods.phase(pod) == "Failed":
            text = (pod["metadata"].get("annotations") or {}).get(FAILURES, "0")
            found = max(found, (int(text) if text.isdecimal() else 0) + 1)
    return found


def given_up_indexes(job: Json, mine: list[Json], before: set[int]) -> set[int]:
    limit: Any = job["spec"].get("backoffLimitPerIndex")
    if limit is None:
        return set()
    found = set(before)
    for pod in mine:
        index = index_of(pod)
        if index is None or pods.phase(pod) != "Failed":
            continue
        rule = matching_rule(job, pod)
        if failures_of_index(mine, index) > limit or (rule is not None and rule[1].get("action") == "FailIndex"):
            found.add(index)
    return found
