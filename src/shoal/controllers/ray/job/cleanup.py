"""What is deleted after a RayJob has ended, and when. Pure: a job in, the next step out.

As KubeRay: rules first, then the older pair of policies, then the shutdown flag. A stopped job counts as failed unless
a rule names it, so that its cluster is not left behind.
"""

from __future__ import annotations

import msgspec

from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.controllers.ray import view
from shoal.controllers.ray.pods import submission
from shoal.controllers.ray.settings import RaySettings

SELF, CLUSTER, WORKERS, NONE = "DeleteSelf", "DeleteCluster", "DeleteWorkers", "DeleteNone"
_HARSHEST_FIRST = (SELF, CLUSTER, WORKERS, NONE)


class Step(msgspec.Struct, frozen=True):
    """Do `policy` now, or look again after `wait` seconds; neither when nothing is left to do."""

    policy: str = ""
    wait: float | None = None


def next_step(job: Json, done: set[str], now: int, settings: RaySettings) -> Step:
    """`done` holds the policies whose effect is already there."""
    planned = _planned(job, settings)
    if view.spec(job).get("clusterSelector"):
        planned = [(policy, ttl) for policy, ttl in planned if policy == SELF]
    ended = submission.status(job).get("endTime")
    age = (now - parse_time(str(ended))) / 1_000_000 if ended else 0.0
    due = [policy for policy, ttl in planned if ttl <= age and policy not in done and policy != NONE]
    later = [ttl - age for policy, ttl in planned if ttl > age and policy not in done and policy != NONE]
    if due:
        return Step(policy=min(due, key=_HARSHEST_FIRST.index))
    return Step(wait=min(later) if later else None)


def _planned(job: Json, settings: RaySettings) -> list[tuple[str, float]]:
    spec = view.spec(job)
    strategy = spec.get("deletionStrategy") or {}
    rules = strategy.get("deletionRules")
    if rules:
        return [(str(rule["policy"]), _ttl(rule)) for rule in rules if _matches(job, rule, rules)]
    ttl = float(spec.get("ttlSecondsAfterFinished") or 0)
    if strategy.get("onSuccess") or strategy.get("onFailure"):
        side = "onSuccess" if _status(job) == "SUCCEEDED" else "onFailure"
        if _status(job) in ("SUCCEEDED", "FAILED", "STOPPED"):
            return [(str((strategy.get(side) or {}).get("policy") or NONE), ttl)]
        return []
    if spec.get("shutdownAfterJobFinishes") is True:
        return [(SELF if settings.delete_finished_rayjob else CLUSTER, ttl)]
    return []


def _matches(job: Json, rule: Json, rules: list[Json]) -> bool:
    condition = rule.get("condition") or {}
    wanted = condition.get("jobStatus")
    if not wanted:
        return condition.get("jobDeploymentStatus") == submission.status(job).get("jobDeploymentStatus")
    if wanted == _status(job):
        return True
    named = any((other.get("condition") or {}).get("jobStatus") == "STOPPED" for other in rules)
    return _status(job) == "STOPPED" and wanted == "FAILED" and not named


def _status(job: Json) -> str:
    return str(submission.status(job).get("jobStatus") or "")


def _ttl(rule: Json) -> float:
    return float((rule.get("condition") or {}).get("ttlSeconds") or 0)
