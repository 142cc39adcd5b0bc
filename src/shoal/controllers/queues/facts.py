"""From stored queue objects to the engine's facts.

All that was decided is read back from what is stored, so that a restarted controller tells the engine what the last one
knew. The UID of the gang for which another one was evicted is an annotation of the latter's Workload.
"""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from shoal.api import kinds
from shoal.api.booking import booking_of
from shoal.api.gang import PREEMPTED_FOR
from shoal.api.meta import Json
from shoal.api.objects import annotation, controller_of, key_of
from shoal.controllers.demand import RaySidecars, ray
from shoal.controllers.demand.devices import tolerating
from shoal.controllers.demand.pod_defaults import NOTHING, Defaults, completed
from shoal.controllers.queues import checks, requests
from shoal.controllers.queues.caches import QueueCaches
from shoal.controllers.queues.checks import multikueue
from shoal.controllers.queues.jobs.ray import HEAD, SUBMITTER
from shoal.controllers.queues.settings import QueueSettings
from shoal.engine.kueue import ClusterQueue, order_time, read
from shoal.engine.model import Gang

replace = msgspec.structs.replace
# Releases before the annotation stored the UID in the condition's message alone.
_PREEMPTOR = re.compile(r"\(UID: ([^,()]+), JobUID:")


class QueueFacts:
    def __init__(self, caches: QueueCaches, settings: QueueSettings) -> None:
        self._caches = caches
        self._settings = settings
        self._known: dict[str, tuple[object, Gang]] = {}
        self._rules = read.PodRules(
            excluded_prefixes=settings.excluded_prefixes,
            partial_admission=settings.partial_admission,
            priority_boost=settings.priority_boost,
            requeue_by_creation=settings.pods_ready is not None and settings.pods_ready.requeue_by == "Creation",
        )

    def gang(self, workload: Json) -> Gang:
        """The gang that this Workload is, as it is stored."""
        gang = self._read(workload)
        status = workload.get("status") or {}
        # In the line for room it is as old as in that for quota: AppWrappers stand there, too.
        gang = replace(gang, queued_at=order_time(gang), stopping_for=preemptor_of(workload))
        if self._settings.device_tolerations:
            gang = tolerating(gang)
        if gang.state in ("admitted", "stopping") and self._is_counted_by_its_wrapper(workload, gang.state):
            gang = replace(gang, pod_sets=())
        cluster_queue = self._caches.get(kinds.CLUSTER_QUEUE, self._caches.cluster_queue_name(workload))
        rules = checks.rules_of(cluster_queue)
        supply = self._settings.supply
        if multikueue.is_held(workload) or multikueue.dispatches(cluster_queue, self._caches):
            supply = "off"  # its room is in another cluster, which judges it
            if gang.state in ("admitted", "stopping"):
                gang = replace(gang, pod_sets=())
        if gang.state == "waiting" and self._is_on_hold(workload):
            gang = replace(gang, state="held")
        if gang.state in ("waiting", "held"):
            return replace(gang, checks_done=not rules, supply=supply)
        wanted = checks.applying(rules, checks.flavors_of(cluster_queue), status.get("admission") or {})
        done = checks.all_ready(status, wanted)
        gang = replace(gang, checks_done=done, supply=supply)
        return self._on_booked_room(gang, workload, wanted) if gang.state == "reserved" and done else gang

    def _read(self, workload: Json) -> Gang:
        """What the object alone says: read once per revision, asked for often."""
        metadata = workload["metadata"]
        namespace = metadata.get("namespace", "")
        limit_ranges, defaults = self._caches.limit_ranges(namespace), self._caches.pod_defaults(namespace)
        ranges = tuple(one["metadata"].get("resourceVersion") for one in limit_ranges)
        revision = (metadata.get("resourceVersion"), ranges, defaults.classes)
        known = self._known.get(metadata["uid"])
        if known is None or known[0] != revision:
            made = as_stored(with_sidecars(workload, self._settings.ray_sidecars), defaults)
            gang = read.workload(made, replace(self._rules, limit_ranges=limit_ranges))
            known = self._known[metadata["uid"]] = (revision, gang)
        return known[1]

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)

    def _is_on_hold(self, workload: Json) -> bool:
        """Its job can have no pods until a user changes it: so long it is not considered. Nor is one that is deleted
        and kept by a finalizer."""
        found = self._caches.job_of(key_of(workload))
        if workload["metadata"].get("deletionTimestamp"):
            return True
        return found is not None and (
            found[0].is_on_hold(found[1]) or bool(found[1]["metadata"].get("deletionTimestamp"))
        )

    def _is_counted_by_its_wrapper(self, workload: Json, state: str) -> bool:
        """From its start until its last pod is gone an AppWrapper's own controller tells its pods and its room; only
        quota is ours to count. Ours is the room of one that is admitted and not started yet."""
        owner = controller_of(workload)
        if owner is None or owner.get("kind") != kinds.APP_WRAPPER_V1BETA2.kind:
            return False
        found = self._caches.job_of(key_of(workload))
        return state == "stopping" or found is None or not found[0].is_suspended(found[1])

    def _on_booked_room(self, gang: Gang, workload: Json, wanted: list[str]) -> Gang:
        """Nodes were provided for it: it goes first on those. An autoscaler that keeps no book vouches for the room."""
        live = requests.live_requests(self._caches.requests_of(workload), workload, wanted)
        if not live:
            return gang
        bookings = [booking_of(one) for one in live.values()]
        if any(one is None for one in bookings):
            return replace(gang, supply="off")
        new = Counter(pool for one in bookings if one is not None for pool in one.new.values())
        return replace(gang, obtaining=dict(new) or {"": 0})  # no new node: its room is on nodes that are there

    def cluster_queue(self, stored: Json) -> ClusterQueue:
        """Raises BadInput where it cannot be read."""
        fact = read.cluster_queue(stored)
        problem = "; ".join(text for _, text in check_problems(stored, self._caches))
        if stored["metadata"].get("deletionTimestamp"):
            return replace(fact, stopped=True, problem=problem)
        return replace(fact, problem=problem)


def as_stored(workload: Json, defaults: Defaults) -> Json:
    """The Workload with its pods as the API server will store them: what they leave out is filled in."""
    spec = workload.get("spec") or {}
    if defaults == NOTHING or not spec.get("podSets"):
        return workload
    pod_sets = [
        {**one, "template": completed(one["template"], defaults)} if isinstance(one.get("template"), dict) else one
        for one in spec["podSets"]
    ]
    return {**workload, "spec": {**spec, "podSets": pod_sets}}


def with_sidecars(workload: Json, sidecars: RaySidecars) -> Json:
    """The Workload of a Ray cluster with what the operator will add to its pods."""
    owner = controller_of(workload)
    if owner is None or owner.get("kind") not in ("RayCluster", "RayJob"):
        return workload
    spec = workload.get("spec") or {}
    pod_sets = [
        {**one, "template": _as_made(str(one.get("name")), one["template"], sidecars)}
        if isinstance(one.get("template"), dict)
        else one
        for one in spec.get("podSets") or ()
    ]
    return {**workload, "spec": {**spec, "podSets": pod_sets}}


def _as_made(pod_set: str, template: Json, sidecars: RaySidecars) -> Json:
    role = pod_set if pod_set in (HEAD, SUBMITTER) else "worker"
    return ray.as_made(role, template, sidecars, only_named=True)


def check_problems(cluster_queue: Json, caches: QueueCaches) -> list[tuple[str, str]]:
    """Reason and text, for the admission checks that the queue names and that are not there or do not work."""
    missing, inactive = [], []
    for name in checks.rules_of(cluster_queue):
        found = caches.get(kinds.ADMISSION_CHECK, name)
        if found is None:
            missing.append(name)
        elif not is_active(found):
            inactive.append(name)
    problems = []
    if missing:
        problems.append(
            ("AdmissionCheckNotFound", f"references missing AdmissionCheck(s): {','.join(sorted(missing))}")
        )
    if inactive:
        problems.append(
            ("AdmissionCheckInactive", f"references inactive AdmissionCheck(s): {','.join(sorted(inactive))}")
        )
    return problems


def is_active(obj: Json) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Active" and one.get("status") == "True" for one in conditions)


def preemptor_of(workload: Json) -> str:
    """UID of the gang that it was evicted for, until it holds quota again."""
    for one in (workload.get("status") or {}).get("conditions") or ():
        if one.get("type") == "Evicted" and one.get("status") == "True" and one.get("reason") == "Preempted":
            uid, _, moment = annotation(workload, PREEMPTED_FOR).rpartition("@")
            if uid and moment == one.get("lastTransitionTime"):
                return uid
            found = _PREEMPTOR.search(str(one.get("message") or ""))
            return found[1] if found else ""
    return ""


def gang_key(workload: Json) -> str:
    key = key_of(workload)
    return f"Workload/{key.namespace}/{key.name}"
