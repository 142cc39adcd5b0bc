"""From stored queue objects to the engine's facts.

All that was decided is read back from what is stored, so that a restarted controller tells the engine what the last one
knew. The UID of the gang for which another one was evicted is an annotation of the latter's Workload.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import msgspec

from shoal.api import kinds, kueue
from shoal.api.booking import booking_of
from shoal.api.gang import PREEMPTED_FOR, VICTIMS
from shoal.api.kueue_names import ELASTIC, PROVISIONING_CHECK
from shoal.api.kueue_workload import PodSet, Workload
from shoal.api.labels import KUEUE_MULTIKUEUE
from shoal.api.meta import Json, controller_of
from shoal.api.objects import annotation, key_of
from shoal.controllers.demand import RaySidecars, ray
from shoal.controllers.demand.devices import tolerating
from shoal.controllers.demand.pod_defaults import NOTHING, Defaults, completed
from shoal.controllers.planning.creators import submitter_of
from shoal.controllers.queues import backfill, checks, losses
from shoal.controllers.queues.caches import QueueCaches
from shoal.controllers.queues.checks import multikueue, requests
from shoal.controllers.queues.jobs.ray import HEAD, SUBMITTER
from shoal.controllers.queues.settings import QueueSettings
from shoal.controllers.queues.stored import condition, is_true
from shoal.engine.facts import tolerations
from shoal.engine.kueue import ClusterQueue, order_time, read, terms_of
from shoal.engine.model import Gang, Supply
from shoal.remembered import Remembered

replace = msgspec.structs.replace
MOST_ALIKE = 1_000
"""Kinds of pods that are remembered; then it starts over."""
# Releases before the annotation stored the UID in the condition's message alone.
_PREEMPTOR = re.compile(r"\(UID: ([^,()]+), JobUID:")


class QueueFacts:
    def __init__(self, caches: QueueCaches, settings: QueueSettings) -> None:
        self._caches = caches
        self._settings = settings
        self._known: dict[str, tuple[str, int, object, Gang]] = {}
        """By UID: the revision, how often limits had changed, what its pods depend on (they are read once for it), and
        the gang."""
        self._alike: Remembered[bytes, Gang] = Remembered(MOST_ALIKE)
        """By what its pods depend on and are: a gang whose pods were read. Most of many gangs ask for the same."""
        self._shape: object = None
        self._rules = read.PodRules(
            excluded_prefixes=settings.excluded_prefixes,
            transformations=settings.transformations,
            partial_admission=settings.partial_admission,
            priority_boost=settings.priority_boost,
            requeue_by_creation=settings.pods_ready is not None and settings.pods_ready.requeue_by == "Creation",
        )

    def gang(self, workload: Workload) -> Gang:
        """The gang that this Workload is, as it is stored."""
        gang = self.alone(workload)
        if gang.state == "finished":
            return gang
        if self._settings.device_tolerations:
            gang = tolerating(gang)
        if gang.state in ("reserved", "admitted"):
            gang = with_updates(gang, workload)
        if self._settings.admission_fair_sharing is not None and self._settings.admission_fair_sharing.per_user:
            found = self._caches.job_of(key_of(workload))
            terms = replace(terms_of(gang), user=submitter_of(found[1]) if found is not None else "")
            gang = replace(gang, details={**gang.details, "kueue": terms})
        if gang.state == "admitted":
            found = self._caches.job_of(key_of(workload))
            if found is not None and (saved := losses.saved_at(found[1])):
                gang = replace(gang, details={**gang.details, "kueue": replace(terms_of(gang), saved_at=saved)})
        if gang.state in ("admitted", "stopping") and self._is_counted_by_its_wrapper(workload, gang.state):
            gang = replace(gang, pod_sets=())
        cluster_queue = self._caches.cluster_queue_of(workload)
        if cluster_queue is not None and backfill.is_asked_for(cluster_queue):
            found = self._caches.job_of(key_of(workload))
            if backfill.is_drainable(workload, found[1] if found is not None else None, cluster_queue, self._settings):
                gang = replace(gang, details={**gang.details, "kueue": replace(terms_of(gang), drainable=True)})
        rules = checks.rules_of(cluster_queue)
        supply = self._settings.supply
        if multikueue.is_held(workload) or multikueue.dispatches(cluster_queue, self._caches):
            supply = "off"  # its room is in another cluster, which judges it
            if gang.state in ("admitted", "stopping"):
                gang = replace(gang, pod_sets=())
        if gang.state == "waiting" and self._is_on_hold(workload):
            gang = replace(gang, state="held")
        if gang.state in ("waiting", "held"):
            return _with(gang, checks_done=not rules, supply=supply)
        wanted = checks.applying(rules, checks.flavors_of(cluster_queue), checks.flavors_used(workload))
        done = checks.all_ready(workload, wanted) and not terms_of(gang).awaits_places
        gang = _with(gang, checks_done=done, supply=supply)
        return self._on_booked_room(gang, workload, wanted) if gang.state == "reserved" and done else gang

    def alone(self, workload: Workload) -> Gang:
        """What the object alone says: read once per revision, asked for often."""
        namespace, uid, revision = (
            workload.metadata.namespace,
            workload.metadata.uid,
            workload.metadata.resource_version,
        )
        known, turn = self._known.get(uid), self._caches.limits_turn
        if known is not None and known[0] == revision and known[1] == turn:
            return known[3]
        if is_true(workload, "Finished"):
            self.forget(uid)
            return read.ended(workload)
        limit_ranges, defaults = self._caches.limit_ranges(namespace), self._caches.pod_defaults(namespace)
        ranges = tuple((one["metadata"].get("uid"), one["metadata"].get("resourceVersion")) for one in limit_ranges)
        owner = controller_of(workload.metadata)
        given = (owner.kind if owner is not None else "", ranges, defaults.classes)
        shape = self._shared((workload.metadata.generation, given))
        if known is not None and bool(workload.metadata.generation) and known[2] == shape:
            gang = read.workload(workload, self._rules, before=known[3])
        else:
            gang = self._read(workload, given, limit_ranges, defaults)
        # In the line for room it is as old as in that for quota: AppWrappers stand there, too.
        elastic, stopping_for = annotation(workload, ELASTIC) == "true", preemptor_of(workload)
        supply = self._settings.supply
        gang = replace(gang, queued_at=order_time(gang), stopping_for=stopping_for, elastic=elastic, supply=supply)
        self._known[uid] = (revision, turn, shape, gang)
        return gang

    def _read(self, workload: Workload, given: object, limit_ranges: tuple[Json, ...], defaults: Defaults) -> Gang:
        """Its pods are read, unless another gang asks for the very same."""
        asked = msgspec.json.encode((workload.spec.pod_sets, given))
        alike = self._alike.get(asked)
        if alike is not None:
            return read.workload(workload, self._rules, before=alike)
        made = as_stored(with_sidecars(workload, self._settings.ray_sidecars), defaults)
        gang = read.workload(made, replace(self._rules, limit_ranges=limit_ranges))
        return self._alike.remember(asked, gang)

    def _shared(self, shape: object) -> object:
        """What the pods of most gangs depend on is the same: for gangs that come one after the other it is there
        once."""
        if shape != self._shape:
            self._shape = shape
        return self._shape

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)

    def _is_on_hold(self, workload: Workload) -> bool:
        """Its job can have no pods until a user changes it: so long it is not considered. Nor is one that is deleted
        and kept by a finalizer."""
        found = self._caches.job_of(key_of(workload))
        if workload.metadata.deletion_timestamp:
            return True
        return found is not None and (
            found[0].is_on_hold(found[1]) or bool(found[1]["metadata"].get("deletionTimestamp"))
        )

    def _is_counted_by_its_wrapper(self, workload: Workload, state: str) -> bool:
        """From its start until its last pod is gone an AppWrapper's own controller tells its pods and its room; only
        quota is ours to count. Ours is the room of one that is admitted and not started yet."""
        owner = controller_of(workload.metadata)
        if owner is None or owner.kind != kinds.APP_WRAPPER_V1BETA2.kind:
            return False
        found = self._caches.job_of(key_of(workload))
        return state == "stopping" or found is None or not found[0].is_suspended(found[1])

    def _on_booked_room(self, gang: Gang, workload: Workload, wanted: list[str]) -> Gang:
        """Nodes were provided for it: it goes first on those. An autoscaler that keeps no book vouches for the room."""
        live = requests.live_requests(self._caches.requests_of(workload), workload, wanted)
        if not live:
            return gang
        bookings = [booking_of(one) for one in live.values()]
        if any(one is None for one in bookings):
            return replace(gang, supply="off")
        new = Counter(pool for one in bookings if one is not None for pool in one.new.values())
        return replace(gang, obtaining=dict(new) or {"": 0})  # no new node: its room is on nodes that are there

    def cluster_queue(self, stored: kueue.ClusterQueue) -> ClusterQueue:
        """Raises BadInput where it cannot be read."""
        fact = read.cluster_queue(stored)
        problem = "; ".join(text for _, text in check_problems(stored, self._caches))
        fact = replace(
            fact,
            problem=problem,
            places_later=self._provisioned(stored),
            places_elsewhere=multikueue.dispatches(stored, self._caches),
            backfill=backfill.is_asked_for(stored),
            least_loss=annotation(stored, VICTIMS) == "least-loss",
        )
        return replace(fact, stopped=True, deleted=True) if stored.metadata.deletion_timestamp else fact

    def _provisioned(self, stored: kueue.ClusterQueue) -> frozenset[str]:
        """Flavors whose nodes a provisioning check brings: places on them are found once they are there."""
        found: set[str] = set()
        every = checks.flavors_of(stored)
        for name, flavors in checks.rules_of(stored).items():
            check = self._caches.check(name)
            if check is not None and check.spec.controller_name == PROVISIONING_CHECK:
                found.update(flavors or every)
        return frozenset(found)


def _with(gang: Gang, *, checks_done: bool, supply: Supply) -> Gang:
    """The very same where nothing is to be changed: there may be many."""
    if gang.checks_done == checks_done and gang.supply == supply:
        return gang
    return replace(gang, checks_done=checks_done, supply=supply)


def as_stored(workload: Workload, defaults: Defaults) -> Workload:
    """The Workload with its pods as the API server will store them: what they leave out is filled in."""
    if defaults == NOTHING:
        return workload
    return _with_templates(workload, lambda one: completed(one.template, defaults))


def with_sidecars(workload: Workload, sidecars: RaySidecars) -> Workload:
    """The Workload of a Ray cluster with what the operator will add to its pods."""
    owner = controller_of(workload.metadata)
    if owner is None or owner.kind not in ("RayCluster", "RayJob"):
        return workload
    return _with_templates(workload, lambda one: _as_made(one.name, one.template, sidecars))


def _with_templates(workload: Workload, made: Callable[[PodSet], Json]) -> Workload:
    pod_sets = tuple(replace(one, template=made(one)) if one.template else one for one in workload.spec.pod_sets)
    return replace(workload, spec=replace(workload.spec, pod_sets=pod_sets))


def _as_made(pod_set: str, template: Json, sidecars: RaySidecars) -> Json:
    role = pod_set if pod_set in (HEAD, SUBMITTER) else "worker"
    return ray.as_made(role, template, sidecars, only_named=True)


def check_problems(cluster_queue: kueue.ClusterQueue, caches: QueueCaches) -> list[tuple[str, str]]:
    """Reason and text, for the admission checks that the queue names and that are not there or do not work."""
    missing, inactive = [], []
    for name in checks.rules_of(cluster_queue):
        found = caches.check(name)
        if found is None:
            missing.append(name)
        elif not is_true(found, "Active"):
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
    return problems + _other_cluster_problems(cluster_queue, caches)


def _other_cluster_problems(cluster_queue: kueue.ClusterQueue, caches: QueueCaches) -> list[tuple[str, str]]:
    """As Kueue: a gang goes to other clusters by one check alone, whatever its flavors, and its nodes come there."""
    rules, all_flavors = checks.rules_of(cluster_queue), checks.flavors_of(cluster_queue)
    by_controller: dict[str, list[str]] = {}
    for name in sorted(rules):
        found = caches.check(name)
        if found is not None:
            by_controller.setdefault(found.spec.controller_name, []).append(name)
    elsewhere = by_controller.get(KUEUE_MULTIKUEUE, [])
    here = by_controller.get(PROVISIONING_CHECK, [])
    partly = [name for name in elsewhere if rules[name] and rules[name] != all_flavors]
    found_problems = []
    if len(elsewhere) > 1:
        text = "Cannot use multiple MultiKueue AdmissionChecks on the same ClusterQueue, found"
        found_problems.append(("MultipleMultiKueueAdmissionChecks", f"{text}: {','.join(elsewhere)}"))
    if partly:
        text = f"Cannot specify MultiKueue AdmissionCheck per flavor, found: {','.join(partly)}"
        found_problems.append(("MultiKueueAdmissionCheckAppliedPerFlavor", text))
    if elsewhere and here:
        text = "Cannot use both MultiKueue and ProvisioningRequest AdmissionChecks together, found"
        named = f"{','.join(elsewhere)}, {','.join(here)}"
        found_problems.append(("MultiKueueWithProvisioningRequest", f"{text}: {named}"))
    return found_problems


def preemptor_of(workload: Workload) -> str:
    """The gang that it was evicted for, as it is stored, until it holds quota again."""
    evicted = condition(workload, "Evicted")
    if evicted is None or evicted.status != "True" or evicted.reason != "Preempted":
        return ""
    uid, _, moment = annotation(workload, PREEMPTED_FOR).rpartition("@")
    if uid and moment == evicted.last_transition_time:
        return uid
    found = _PREEMPTOR.search(evicted.message)
    return found[1] if found and found[1] != "UNKNOWN" else ""


def with_updates(gang: Gang, workload: Workload) -> Gang:
    """With the node selectors and tolerations that its checks add to its pods: places in a topology are sought by them,
    too. Without a topology a check's word is not doubted: its nodes may be yet to come."""
    updates = [one for check in workload.status.admission_checks or () for one in check.pod_set_updates or ()]
    if not any(one.node_selector or one.tolerations for one in updates):
        return gang
    given = workload.status.admission.pod_set_assignments if workload.status.admission is not None else ()
    if not any(one.topology_assignment or one.delayed_topology_request for one in given or ()):
        return gang
    pod_sets = []
    for pod_set in gang.pod_sets:
        own = [one for one in updates if one.name == pod_set.name]
        selector = {key: value for one in own for key, value in (one.node_selector or {}).items()}
        added = [msgspec.to_builtins(each) for one in own for each in one.tolerations or ()]
        tolerated = (*pod_set.tolerations, *tolerations({"tolerations": added}))
        pod_sets.append(replace(pod_set, node_selector={**pod_set.node_selector, **selector}, tolerations=tolerated))
    return replace(gang, pod_sets=tuple(pod_sets))


def gang_key(workload: Workload) -> str:
    return f"Workload/{workload.metadata.namespace}/{workload.metadata.name}"
