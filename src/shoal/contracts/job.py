"""The contract of a kind of job: held back, started whole, stopped, and put back as it was.

Called by tests of packages that add a kind, with its manifest. Asks the class only; no server and no queue is needed.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.contracts.loading import load
from shoal.controllers.queues.inject import InjectedInfo
from shoal.controllers.queues.jobs import GangJob
from shoal.controllers.queues.jobs.base import lacking
from shoal.controllers.queues.jobs.blueprint import NoBlueprint, has_blueprint
from shoal.errors import BadInput

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MARK = {"shoal.dev/contract": "kept"}


def missing_from_job(job: str | GangJob, example: Json, blueprint: Json | None = None) -> list[str]:
    """What keeps the class or object (or the path of one) from being a kind of job; `example` is a manifest of it, and
    `blueprint` one of the object that describes its pods, where another one does."""
    try:
        kind: Any = load(job) if isinstance(job, str) else job() if isinstance(job, type) else job
    except BadInput as error:
        return [str(error)]
    if missing := lacking(kind):
        return [f"it lacks {', '.join(missing)}; take what most kinds answer from queues.jobs.base.Suspendable"]
    if found := _kind(kind, example):
        return found
    before = copy.deepcopy(example)
    try:
        if found := _blueprint(kind, example, blueprint):
            return found
        kind = kind.knowing(blueprint, ()) if has_blueprint(kind) else kind
        found = _held_back(kind, example) or _pod_sets(kind, example) or _walk(kind, example)
    except Exception as error:  # whatever a stranger's code raises is what is wrong with it
        return [f"it raised {type(error).__name__}: {error}"]
    if example != before:
        found.append("it changed the manifest that it was given; return a copy")
    return found


def _kind(job: GangJob, example: Json) -> list[str]:
    if not isinstance(job.kind, Kind) or not job.kind.namespaced:
        return ["`kind` must be a shoal.api.kind.Kind of objects that live in namespaces"]
    named = (example.get("apiVersion"), example.get("kind"))
    wanted = (job.kind.api_version, job.kind.kind)
    return [] if named == wanted else [f"`kind` is {'/'.join(wanted)} and the example is {named[0]}/{named[1]}"]


def _blueprint(job: GangJob, example: Json, blueprint: Json | None) -> list[str]:
    """It finds the object that the example names, and says so where that is not there."""
    if not has_blueprint(job):
        return []
    if blueprint is None:
        return ["its pods are described by another object; give that one, too, as a second manifest"]
    metadata = blueprint.get("metadata") or {}
    name, wanted = job.blueprint_name(example), (blueprint.get("apiVersion"), blueprint.get("kind"), metadata["name"])
    named = (name.kind.api_version, name.kind.kind, name.key.name) if name is not None else None
    if named != wanted or (name is not None and name.kind not in job.blueprint_kinds):
        return [f"`blueprint_name` is {named} and the second manifest is {wanted}"]
    without = job.knowing(None, ())
    found = [] if without.is_on_hold(without.suspended(example)) else ["`is_on_hold` without its blueprint is not true"]
    try:
        without.pod_sets(example)
    except NoBlueprint:
        return found
    return [*found, "`pod_sets` without its blueprint must raise NoBlueprint"]


def _held_back(job: GangJob, example: Json) -> list[str]:
    held = job.suspended(example)
    found = []
    if job.is_skipped(example):
        found.append("`is_skipped` leaves the example to itself; give one that a queue can hold")
    if not job.is_suspended(held):
        found.append("`suspended` returns a job that `is_suspended` does not call suspended")
    if job.suspended(held) != held:
        found.append("`suspended` changes a job that is suspended already")
    if job.is_active(held):
        found.append("`is_active` says that a new, suspended job may have pods")
    if job.is_half_stopped(held):
        found.append("`is_half_stopped` says so of a job that was never started")
    if job.end(held) is not None:
        found.append("`end` says that a new job has ended")
    if problems := job.problems(example):
        found.append(f"`problems` refuses the example: {'; '.join(problems)}")
    if job.are_pods_ready(held, {str(one["name"]): int(one["count"]) for one in job.pod_sets(held)}):
        found.append("`are_pods_ready` says so of a job without pods")
    return found


def _pod_sets(job: GangJob, example: Json) -> list[str]:
    sets = job.pod_sets(example)
    if not sets:
        return ["`pod_sets` is empty; a gang has pods"]
    names = [str(one.get("name")) for one in sets]
    found = [
        f"pod set {name!r} needs a name of lower-case letters, digits and dashes" for name in names if not _ok(name)
    ]
    if len(set(names)) < len(names):
        found.append("two pod sets have the same name")
    for one in sets:
        if not isinstance(one.get("count"), int) or one["count"] < 0:
            found.append(f"pod set {one.get('name')}: `count` must be a whole number")
        if not ((one.get("template") or {}).get("spec") or {}).get("containers"):
            found.append(f"pod set {one.get('name')}: `template.spec.containers` is empty")
    return found


def _ok(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def _walk(job: GangJob, example: Json) -> list[str]:
    """Held, started with what an admission adds, stopped: then it asks for the same as before."""
    held = job.suspended(example)
    held.setdefault("metadata", {}).setdefault("name", "example")
    sets = job.pod_sets(held)
    infos = [
        InjectedInfo(name=str(one["name"]), count=int(one["count"]), node_selector=dict(_MARK), labels=dict(_MARK))
        for one in sets
    ]
    running = job.started(held, infos)
    found = []
    if job.is_suspended(running):
        found.append("`started` returns a job that is still suspended")
    if str(running).count(next(iter(_MARK))) < 2 * len(sets):
        found.append("`started` does not write label and node selector of the admission for every pod set")
    stopped = job.stopped(running, sets)
    if not job.is_suspended(stopped):
        found.append("`stopped` returns a job that is not suspended")
    if job.is_half_stopped(stopped):
        stopped = job.restored(stopped, sets)
    if job.pod_sets(stopped) != sets:
        found.append("after `stopped` (and `restored`) the pod sets are not those from before the start")
    if job.pod_sets(job.started(job.suspended(stopped), infos)) != job.pod_sets(running):
        found.append("a second start differs from the first")
    return found
