"""What the queue dialect is told: flavors, cluster queues, cohorts, local queues, and a gang's own terms.

Built by `read` from Kubernetes objects, or by hand in tests; kept by `Ledger`. Frozen data only. Gangs themselves are
`shoal.engine.model.Gang`; what only this dialect needs of them travels as `Terms` in `gang.details["kueue"]`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from shoal.engine.kueue.rules import KUEUE, OURS, Rules
from shoal.engine.kueue.topology.settings import TopologySettings
from shoal.engine.model import Gang, Taint, Toleration

Strategy = Literal["StrictFIFO", "BestEffortFIFO"]
Policy = Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority", "Any"]
ShareStrategy = Literal["LessThanOrEqualToFinalShare", "LessThanInitialShare"]

UNLIMITED = 1 << 100
"""A quota too large for 64 bits. Far above any sum of bounded amounts, so plain arithmetic treats it as infinite."""

WHOLE_WEIGHT = 10**9
"""A fair-sharing weight of one; weights are integers in billionths."""


class _FlavorResource(NamedTuple):
    flavor: str
    resource: str


class FlavorResource(_FlavorResource):
    """The unit of all quota: one resource on one flavor. Equal ones are the same object, so that a ledger finds them
    by where they are instead of reading two names every time."""

    __slots__ = ()
    _known: ClassVar[dict[tuple[str, str], FlavorResource]] = {}

    def __new__(cls, flavor: str, resource: str) -> FlavorResource:
        known = cls._known.get((flavor, resource))
        if known is None:
            known = cls._known[flavor, resource] = super().__new__(cls, flavor, resource)
        return known

    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__


Usage = dict[FlavorResource, int]


class Limits(msgspec.Struct, frozen=True):
    """Quota of one resource on one flavor. `None` means no limit of that kind."""

    nominal: int
    borrowing: int | None = None
    lending: int | None = None


class FlavorQuota(msgspec.Struct, frozen=True):
    """One flavor of a resource group: resource name to its limits."""

    name: str
    limits: dict[str, Limits]


class ResourceGroup(msgspec.Struct, frozen=True):
    """Resources that land on one flavor together; flavors in the order they are tried."""

    resources: tuple[str, ...]
    flavors: tuple[FlavorQuota, ...]


class Preemption(msgspec.Struct, frozen=True):
    reclaim_within_cohort: Policy = "Never"
    within_cluster_queue: Policy = "Never"
    borrow_within_cohort: Policy = "Never"
    borrow_threshold: int | None = None

    @property
    def may_borrow(self) -> bool:
        return self.borrow_within_cohort != "Never"

    @property
    def may_evict(self) -> bool:
        return self.within_cluster_queue != "Never" or self.reclaim_within_cohort != "Never"


class Fungibility(msgspec.Struct, frozen=True):
    """Whether the search goes on after a flavor that needs borrowing, or preemption."""

    next_when_borrowing: bool = False
    next_when_preempting: bool = True
    prefer_preempting: bool = False


class ClusterQueue(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cohort: str = ""
    groups: tuple[ResourceGroup, ...] = ()
    strategy: Strategy = "BestEffortFIFO"
    namespace_selector: dict[str, Any] | None = None
    """A LabelSelector; None matches nothing, `{}` everything."""
    fungibility: Fungibility = Fungibility()
    preemption: Preemption = Preemption()
    stopped: bool = False
    deleted: bool = False
    """Its users deleted it, and it is there until its gangs are gone; stopped, too."""
    problem: str = ""
    """Why it cannot admit, as its controller found out (a missing admission check); empty when nothing is wrong."""
    places_later: frozenset[str] = frozenset()
    """Flavors whose nodes an admission check brings: places on them are found after it."""
    places_elsewhere: bool = False
    """Another cluster finds the places (MultiKueue)."""
    weight: int = WHOLE_WEIGHT
    by_usage: bool = False
    """`UsageBasedAdmissionFairSharing`: LocalQueues that had less lately go first, where usage is kept."""
    least_loss: bool = False
    """Of the gangs that may be evicted for one of this queue, those leave first that lose least. Ours."""
    backfill: bool = False
    """Gangs behind the front may have what it waits for, until it can start; see `backfill`. Ours: Kueue keeps it."""


class Cohort(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    parent: str = ""
    groups: tuple[ResourceGroup, ...] = ()
    weight: int = WHOLE_WEIGHT


class ConsumedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a LocalQueue has had, faded up to the moment `at`; amounts in fractions of the engine's units."""

    amounts: dict[str, float] = {}
    at: int
    users: dict[str, dict[str, float]] = {}
    """The same by user, where users share within a queue."""


class LocalQueueUsage(msgspec.Struct, frozen=True, kw_only=True):
    """How a LocalQueue stands against the others of its ClusterQueue: the lower share goes first."""

    consumed: ConsumedUsage
    share: float
    user_shares: dict[str, float] = {}


class LocalQueue(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    cluster_queue: str
    stopped: bool = False
    weight: int = WHOLE_WEIGHT
    consumed: ConsumedUsage | None = None
    """As it was stored; counts where nothing is known of the queue yet, that is after a restart."""


class Flavor(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    topology: str = ""
    """The topology in whose domains its pods are placed; empty: anywhere."""


class TopologyFact(msgspec.Struct, frozen=True, kw_only=True):
    """Levels of domains, highest first: the node label that names the domain at each."""

    name: str
    levels: tuple[str, ...]


class Terms(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a gang's queue object says beyond the gang itself."""

    cluster_queue: str = ""
    """Where quota is reserved; empty while waiting."""
    evicted_at: int | None = None
    """When `Evicted` became true, while it is."""
    evicted_reason: str = ""
    checks_failed: bool = False
    """An admission check says Retry or Rejected."""
    requeue_at: int = 0
    """Not considered before this moment."""
    backing_off: bool = False
    """`Requeued` is false: not considered until told otherwise."""
    reclaimable: dict[str, int] = {}
    """Pod set name to pods whose quota is given back already."""
    job_uid: str = ""
    pods_ready: bool = True
    gated: bool = False
    """It may not evict others for now."""
    replaces: str = ""
    """Key of the slice of the same elastic job whose place it takes; see `Gates.slices`."""
    unhealthy_nodes: tuple[str, ...] = ()
    """Nodes that failed under it and whose pods need another place."""
    one_pod: bool = False
    """Its job is a single Pod, which cannot move."""
    user: str = ""
    """The user who submitted its job, as admission recorded it; empty: not known."""
    longest: int = 0
    """Microseconds that it may run at most from its admission on, as it declared; 0: any time."""
    saved_at: int = 0
    """When it last saved its work, as it said; 0: not known."""
    drainable: bool = False
    """It loses little when it is stopped: it is told before, or said so itself."""
    backfilled: bool = False
    """It has quota that the front of its queue waits for, and leaves when that one can start."""
    awaits_places: bool = False
    """All its checks are ready, and places for its pods were to be found after them."""


NO_TERMS = Terms()


class Gates(msgspec.Struct, frozen=True, kw_only=True):
    """Kueue's feature gates as far as they change decisions; only a comparison with Kueue sets them.

    They stand as Kueue releases them, but for `slices`, which our controllers do not make.
    """

    recompute_on_overlap: bool = True
    """A preemptor whose victims were just taken by another is judged again in the same cycle."""
    share_prefers_lenders: bool = True
    """Fair sharing: gangs that stay within their own quota go before borrowers."""
    share_reclaims_nominal: bool = True
    """Fair sharing: a preemptor within its own quota reclaims from borrowers whatever the shares."""
    slices: bool = False
    """A larger slice of an elastic job takes the place of the one that runs: it asks for the difference only, on the
    same flavors. A caller with this on must end the smaller slice once the larger has quota (`Reserve.replaces`)."""
    recompute_topology: bool = True
    """A gang whose places were just taken by another is judged again in the same cycle."""
    replace_at_once: bool = True
    """`TASFailedNodeReplacementFailFast`: a gang for whose failed node none is found is evicted."""


class UsageSharing(msgspec.Struct, frozen=True, kw_only=True):
    """`admissionFairSharing`: how usage fades. Microseconds."""

    half_life: int = 0
    """After which an old sample counts half; 0: nothing is accumulated."""
    sampling: int = 300_000_000
    weights: dict[str, float] = {}
    """By resource, in its whole unit; one that is not named counts 1."""
    per_user: bool = False
    """Users share within a LocalQueue, too. Ours; Kueue does not know users."""


class KueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the dialect decides. The defaults are Kueue's own, plus what keeps decisions from going in circles."""

    fair_sharing: bool = False
    share_strategies: tuple[ShareStrategy, ...] = ("LessThanOrEqualToFinalShare", "LessThanInitialShare")
    partial_admission: bool = True
    ignore_undeclared: bool = False
    """`quotaCheckStrategy: IgnoreUndeclared`: resources no group covers are free."""
    wait_for_pods_ready: bool = False
    """`waitForPodsReady.blockAdmission`: nothing new while an admitted gang is not ready."""
    topology_aware: bool = True
    """Flavors with a topology place pods in it. Off: topologies have no effect, whatever objects say."""
    topology: TopologySettings = TopologySettings()
    gates: Gates = Gates()
    usage_sharing: UsageSharing | None = None
    """Admission fair sharing, in cluster queues that ask for it; None: in none."""
    patience: int | None = 0
    """Microseconds for which a gang that could evict others waits for them to end by themselves; what they hold is kept
    for it. None: where gangs end within seconds. Kueue evicts at once."""
    exact: bool = False
    """Decide as Kueue in every step, even where that goes in circles; for comparison. What is different otherwise is
    named in `rules`."""

    @property
    def rules(self) -> Rules:
        return KUEUE if self.exact else OURS


def terms_of(gang: Gang) -> Terms:
    """The gang's terms, or the defaults when it carries none."""
    terms = gang.details.get("kueue")
    return terms if isinstance(terms, Terms) else NO_TERMS


def order_time(gang: Gang) -> int:
    """The moment that decides FIFO. As Kueue: creation, or the eviction when pods or checks were at fault."""
    terms = terms_of(gang)
    if terms.evicted_at is not None and terms.evicted_reason in ("PodsReadyTimeout", "AdmissionCheck"):
        return terms.evicted_at
    return gang.queued_at or gang.created_at


Fact = ClusterQueue | Cohort | LocalQueue | Flavor | TopologyFact
