"""Pods as their controllers see them: made from a template, active or ended, ready or not, theirs or another's."""

from __future__ import annotations

import copy
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.errors import BadInput
from shoal.kube.errors import Conflict, NotFound
from shoal.local.apiserver.requests.selectors import label_selector
from shoal.local.builtin.context import WorkloadContext, reference_to

TRACKING = "batch.kubernetes.io/job-tracking"
_COST = "controller.kubernetes.io/pod-deletion-cost"


MOST_AT_ONCE = 500  # as Kubernetes: a set of millions grows by so many a turn, and never all of them in memory


def from_template(kind: Kind, owner: Json, template: Json, name: str) -> Json:
    """A pod body: the template's labels, annotations and spec, owned by `owner`."""
    metadata = template.get("metadata") or {}
    made: Json = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": owner["metadata"]["namespace"],
                     "labels": dict(metadata.get("labels") or {}),
                     "ownerReferences": [reference_to(kind, owner)]},
        "spec": copy.deepcopy(template.get("spec") or {}),
    }  # fmt: skip
    if metadata.get("annotations"):
        made["metadata"]["annotations"] = dict(metadata["annotations"])
    if metadata.get("finalizers"):
        made["metadata"]["finalizers"] = list(metadata["finalizers"])
    return made


def phase(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def is_deleting(obj: Json) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def is_terminal(pod: Json) -> bool:
    return phase(pod) in ("Succeeded", "Failed")


def is_active(pod: Json) -> bool:
    return not is_terminal(pod) and not is_deleting(pod)


def condition(obj: Json, name: str) -> Json | None:
    return next((c for c in (obj.get("status") or {}).get("conditions") or () if c.get("type") == name), None)


def is_ready(pod: Json) -> bool:
    found = condition(pod, "Ready")
    return found is not None and found.get("status") == "True"


def available_in(pod: Json, least_ready: int, now: int) -> float | None:
    """Seconds until a pod counts as available, 0 if it does, None if it is not even ready."""
    found = condition(pod, "Ready")
    if found is None or found.get("status") != "True":
        return None
    if not least_ready:
        return 0.0
    try:
        since = parse_time(str(found.get("lastTransitionTime")))
    except BadInput:
        return 0.0
    return max(0.0, least_ready - (now - since) / 1_000_000)


def matches(owner: Json, pod: Json) -> bool:
    """Whether the owner's selector selects the pod. Nothing is selected by an empty one."""
    selector = (owner.get("spec") or {}).get("selector") or {}
    if all(type(value) is str for value in selector.values()):
        selector = {"matchLabels": selector}  # a ReplicationController's is the labels themselves
    if not (selector.get("matchLabels") or selector.get("matchExpressions")):
        return False
    return label_selector(selector)(pod["metadata"].get("labels") or {})


async def claim(context: WorkloadContext, kind: Kind, owner: Json, what: Kind = kinds.POD) -> list[Json]:
    """The owner's pods: what no longer fits its selector is let go, what fits and has no controller is taken in.

    A Deployment claims ReplicaSets in the same way.
    """
    known = context.cache(what)
    mine = []
    for one in known.by_index("owner", owner["metadata"]["uid"]):
        if matches(owner, one) or is_deleting(owner):
            mine.append(one)
        elif not is_deleting(one):
            await _release(context, owner, what, one)
    if is_deleting(owner):
        return mine
    for one in known.by_index("orphan", owner["metadata"]["namespace"]):
        if not is_deleting(one) and not is_terminal(one) and matches(owner, one):
            adopted = await _adopt(context, kind, owner, what, one)
            if adopted is not None:
                mine.append(adopted)
    return mine


async def _release(context: WorkloadContext, owner: Json, what: Kind, one: Json) -> None:
    metadata = one["metadata"]
    change: Json = {
        "ownerReferences": [
            o for o in metadata.get("ownerReferences") or () if o.get("uid") != owner["metadata"]["uid"]
        ]
    }
    if TRACKING in (metadata.get("finalizers") or ()):  # its Job no longer waits to count it
        change["finalizers"] = [name for name in metadata["finalizers"] if name != TRACKING] or None
    try:
        await context.patch(what, one, {"metadata": change})
    except (Conflict, NotFound):
        return  # seen again with the next event


async def _adopt(context: WorkloadContext, kind: Kind, owner: Json, what: Kind, one: Json) -> Json | None:
    """Take in what has no controller, if the owner is really still there."""
    try:
        current = await context.client.get(kind, owner["metadata"]["name"], owner["metadata"]["namespace"])
        if current["metadata"]["uid"] != owner["metadata"]["uid"] or is_deleting(current):
            return None
        change: Json = {"ownerReferences": [*(one["metadata"].get("ownerReferences") or ()), reference_to(kind, owner)]}
        held = one["metadata"].get("finalizers") or []
        if kind == kinds.JOB and TRACKING not in held:
            change["finalizers"] = [*held, TRACKING]  # its Job waits to count it
        return await context.patch(what, one, {"metadata": change})
    except (Conflict, NotFound):
        return None


def least_wanted(pod: Json) -> tuple[Any, ...]:
    """Sort key: the first is the first to go, as Kubernetes ranks them."""
    cost = (pod["metadata"].get("annotations") or {}).get(_COST, "0")
    ranked = {"Pending": 0, "Unknown": 1, "Running": 2}.get(phase(pod), 0)
    made = pod["metadata"].get("creationTimestamp") or ""
    return (bool((pod.get("spec") or {}).get("nodeName")), ranked, is_ready(pod),
            int(cost) if cost.removeprefix("-").isdecimal() else 0, _newest_first(made))  # fmt: skip


def _newest_first(made: str) -> int:
    try:
        return -parse_time(made)
    except BadInput:
        return 0
