"""A job that is created from what the server returned of an earlier one: its templates hold what a queue put there.

The marks of the old Workload would contradict those of the new one, and a flavor's node labels would pin the job to
nodes that its user never named. What a start adds beside the marks is written down on the job, so that admission can
take it out when the job is created again. Pure; called by the reconciler at the start and by admission.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.api import kueue_names
from shoal.api.gang import PREFIX
from shoal.api.labels import KUEUE_TOPOLOGY_GATE
from shoal.api.meta import Json
from shoal.api.objects import annotation
from shoal.controllers.queues.inject import InjectedInfo
from shoal.controllers.queues.jobs import GangJob
from shoal.errors import BadInput

INJECTED = PREFIX + "injected"
"""On a job that a queue started: by pod set, what its admission added to the template beside the marks."""

_MARKS = (kueue_names.POD_SET, kueue_names.LOCAL_QUEUE, kueue_names.CLUSTER_QUEUE)
_TAKEN_OUT = {"labels": _MARKS, "annotations": (kueue_names.WORKLOAD,), "gates": (KUEUE_TOPOLOGY_GATE,)}


def recorded(job: Json, started: Json, kind: GangJob, infos: Sequence[InjectedInfo]) -> Json:
    """The started job, with a record of what was added that the job did not have itself; without one if nothing was."""
    sets = {one["name"]: one.get("template") or {} for one in kind.pod_sets(job)}
    added = {info.name: _added(sets.get(info.name) or {}, info) for info in infos}
    told = {name: what for name, what in added.items() if what}
    held = annotation(started, INJECTED)
    text = msgspec.json.encode(told, order="sorted").decode() if told else ""
    if text == held:
        return started
    annotations = {**(started["metadata"].get("annotations") or {}), INJECTED: text}
    if not text:
        del annotations[INJECTED]
    return {**started, "metadata": {**started["metadata"], "annotations": annotations}}


def as_before(kind: GangJob, job: Json) -> Json:
    """The job without what an earlier start added; the same object where nothing was. It may come back suspended."""
    try:
        sets = kind.pod_sets(job)
    except (BadInput, TypeError, ValueError, AttributeError, KeyError, IndexError):
        return job  # the check of its shape says so
    if not any(kueue_names.WORKLOAD in (_metadata(one).get("annotations") or {}) for one in sets):
        return job
    record = _record(job)
    made = kind.stopped(job, [_taken_out(one, record.get(one["name"])) for one in sets])
    metadata = dict(made["metadata"])
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != INJECTED}
    metadata["annotations"] = annotations
    if not annotations:
        del metadata["annotations"]
    return {**made, "metadata": metadata}


def _added(template: Json, info: InjectedInfo) -> Json:
    spec = template.get("spec") or {}
    marked = {"labels": info.labels, "annotations": info.annotations}
    found: dict[str, Any] = {
        "nodeSelector": sorted(set(info.node_selector) - set(spec.get("nodeSelector") or {})),
        "tolerations": [one for one in info.tolerations if one not in (spec.get("tolerations") or ())],
    }
    for field, given in marked.items():
        before = (template.get("metadata") or {}).get(field) or {}
        found[field] = sorted(set(given) - set(before) - set(_TAKEN_OUT[field]))
    return {name: value for name, value in found.items() if value}


def _record(job: Json) -> dict[str, Any]:
    """What a start wrote down; nothing where a user made something else of it."""
    try:
        return msgspec.json.decode(annotation(job, INJECTED) or "{}", type=dict[str, dict[str, list[Any]]])
    except msgspec.DecodeError:
        return {}


def _taken_out(pod_set: Json, added: dict[str, list[Any]] | None) -> Json:
    """The pod set as it was: without the marks, and without what the record names."""
    known = added or {}
    template = copy.deepcopy(pod_set.get("template") or {})
    metadata, spec = template.setdefault("metadata", {}), template.setdefault("spec", {})
    for field in ("labels", "annotations"):
        gone = {*_TAKEN_OUT[field], *map(str, known.get(field, ()))}
        metadata[field] = {key: value for key, value in (metadata.get(field) or {}).items() if key not in gone}
    selectors = set(map(str, known.get("nodeSelector", ())))
    spec["nodeSelector"] = {key: one for key, one in (spec.get("nodeSelector") or {}).items() if key not in selectors}
    spec["tolerations"] = [one for one in spec.get("tolerations") or () if one not in known.get("tolerations", ())]
    gates = spec.get("schedulingGates") or ()
    spec["schedulingGates"] = [one for one in gates if one.get("name") not in _TAKEN_OUT["gates"]]
    return {**pod_set, "template": template}


def _metadata(pod_set: Json) -> Json:
    return (pod_set.get("template") or {}).get("metadata") or {}
