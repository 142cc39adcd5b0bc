"""The nouns of every decision: facts that go in, plans that come out.

Controllers, the simulator and the tests build facts and read plans; the rest of the engine only passes them on.
Everything here is frozen data, in which there is no cycle for a collector to find (`gc=False`). Amounts are exact
integers (cpu in milli, all else in units), moments are microseconds since the epoch.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Amounts = dict[str, int]
"""Resource name to amount: `{"cpu": 1500, "memory": 2147483648}`."""

Dialect = Literal["mcad", "kueue", "plain"]
"""plain: room alone decides. Such a gang has no quota, pushes no other out and is pushed out by none."""
Supply = Literal["fit", "aggregate", "off"]
"""How room is judged: pods packed onto nodes, cluster-wide sums, or not at all (quota alone decides)."""

State = Literal["waiting", "reserved", "admitted", "stopping", "finished", "held"]
"""waiting: wants to start. reserved: has quota, awaits its last checks. admitted: holds quota and room, started or
about to be. stopping: being taken back, holds its room until its pods are gone. finished: holds nothing. held: asked
not to be considered (a stopped queue, a deactivated gang)."""


class Taint(msgspec.Struct, frozen=True, gc=False):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


class Toleration(msgspec.Struct, frozen=True, gc=False):
    """As in a pod spec. An empty key with `Exists` tolerates everything; an empty effect matches every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class HostPort(msgspec.Struct, frozen=True, gc=False):
    port: int
    protocol: str = "TCP"
    address: str = "0.0.0.0"


class PodSet(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Identical pods of one gang. `min_count` below `count` allows a partial start, where the dialect has one."""

    name: str
    count: int
    min_count: int | None = None
    requests: Amounts = {}
    """Of one pod, as the scheduler counts them (init containers and overhead included)."""
    labels: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    affinity: dict[str, Any] = {}
    """The pod's `spec.affinity`, untouched."""
    tolerations: tuple[Toleration, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    topology_request: dict[str, Any] = {}
    quota_requests: Amounts | None = None
    """Of one pod as quota counts it, where that is not what its node must have; None: `requests`."""
    scheduling_gates: tuple[str, ...] = ()
    opaque: bool = False
    """True when only amounts are declared and the pod template is not known (MCAD's custompodresources)."""

    @property
    def charged(self) -> Amounts:
        """What quota counts of one pod."""
        return self.requests if self.quota_requests is None else self.quota_requests


class Seat(msgspec.Struct, frozen=True, gc=False):
    """Where a gang sits in one quota tree. `order` is its place among those at the same node, oldest first."""

    node: str
    order: int = 0


class DomainShare(msgspec.Struct, frozen=True, gc=False):
    """So many pods in one lowest domain of a topology: a node, or what no level tells apart."""

    values: tuple[str, ...]
    """One label value per level of the placement."""
    count: int


class TopologyPlacement(msgspec.Struct, frozen=True, gc=False):
    """All pods of one pod set by lowest domain of a topology, ordered as their labels are."""

    levels: tuple[str, ...]
    domains: tuple[DomainShare, ...] = ()

    @property
    def count(self) -> int:
        return sum(domain.count for domain in self.domains)

    def has(self, name: str) -> bool:
        """Is one of its lowest domains called this (a node, where nodes are the lowest)?"""
        return any(domain.values[-1] == name for domain in self.domains)

    def first(self, count: int) -> TopologyPlacement:
        """The same, cut down to so many pods."""
        kept: list[DomainShare] = []
        for domain in self.domains:
            if count <= 0:
                break
            kept.append(domain if domain.count <= count else DomainShare(domain.values, count))
            count -= domain.count
        return TopologyPlacement(self.levels, tuple(kept))


class PodSetAssignment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one pod set was given: how many pods, on which flavors (Kueue), and how many on which node (fit)."""

    name: str
    count: int
    flavors: dict[str, str] = {}
    """Resource name to flavor name."""
    usage: Amounts = {}
    """What the whole pod set is charged, by resource."""
    nodes: dict[str, int] = {}
    """Node name to number of pods planned there; empty when room was not judged by fit."""
    topology: TopologyPlacement | None = None
    """Where in the topology of its flavor its pods go (Kueue)."""
    delayed_topology: str = ""
    """`Pending`: its places are found once the nodes are there that an admission check brings; `Ready`: they were."""


class Gang(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One workload that starts whole or not at all. `key` is `Kind/namespace/name`."""

    key: str
    uid: str
    namespace: str
    name: str
    dialect: Dialect = "mcad"
    queue: str = ""
    """The queue's name (Kueue: the LocalQueue, within `namespace`); MCAD has one queue and leaves it empty."""
    priority: int = 0
    priority_slope: float = 0.0
    """MCAD: priority gained per second since `queued_at`, where dynamic priority is on."""
    created_at: int = 0
    queued_at: int = 0
    """FIFO key and start of ageing (MCAD: `controllerfirsttimestamp`)."""
    pod_sets: tuple[PodSet, ...] = ()
    labels: dict[str, str] = {}
    """The object's labels; MCAD quota trees are named by label key, the leaf by its value."""
    supply: Supply = "fit"
    node_selector: dict[str, str] = {}
    """MCAD's `schedulingSpec.nodeSelector`: only such nodes count."""
    preemptable: bool = True
    state: State = "waiting"
    checks_done: bool = True
    """Kueue: every admission check but our own is ready. Before that, a gang with quota does not ask for room."""
    # Facts of an admission, stored with the object and told again after a restart.
    admitted_at: int = 0
    seats: dict[str, Seat] = {}
    """Quota tree name to seat. Depends on history, therefore stored."""
    assignment: tuple[PodSetAssignment, ...] = ()
    gone: dict[str, int] = {}
    """Pod set name to number of its pods that are gone for good: nothing makes them again, and no room is kept."""
    stopping_for: str = ""
    """UID of the gang this one was stopped for. Stays until it starts again: that gang keeps its claim so long. On a
    gang that is `reserved`: it is to leave, and holds its quota until that is stored."""
    obtaining: dict[str, int] = {}
    """Node pool name to number of nodes that were asked for on its behalf (`Obtain`) and may still come. Empty: nothing
    is under way, or it came to nothing."""
    may_obtain: bool = True
    """False: do not ask for nodes now (its last request failed and a back-off runs)."""
    elastic: bool = False
    """It may have more pods than it was admitted with, while no gang needs what they take: such pods wait behind a gate
    (`PodFact.bids`), are granted one by one (`Grow`) and are the first to leave (`Shrink`)."""
    problem: str = ""
    """Why these facts cannot be right (set by the dialect that read them); such a gang is held with this text."""
    nowhere: str = ""
    """Kueue, of a gang that only other clusters may run: why none of them would start it now. It waits with this text
    and holds no quota."""
    details: dict[str, Any] = {}
    """What only one dialect needs (Kueue: conditions, requeue state, checks); opaque to the rest of the engine."""


class NodeFact(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    name: str
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    allocatable: Amounts = {}
    """Resources a node does not name are zero; only `pods` is unlimited when absent."""
    unschedulable: bool = False
    ready: bool = True
    held_for: str = ""
    """UID of the gang on whose behalf it was brought: while that gang is obtaining, the node is for no other."""


class NodePool(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Nodes that can be had on request: what each would be like, and how many more than exist may come."""

    name: str
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    allocatable: Amounts = {}
    obtainable: int = 0


class PodFact(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that exists. `gang` is the UID of the gang at the top of its owner chain, never a name."""

    uid: str
    namespace: str = ""
    name: str = ""
    node: str = ""
    requests: Amounts = {}
    gang: str = ""
    pod_set: str = ""
    """Name of its pod set where known; otherwise the engine matches by requests."""
    phase: str = "Pending"
    labels: dict[str, str] = {}
    affinity: dict[str, Any] = {}
    host_ports: tuple[HostPort, ...] = ()
    deleting: bool = False
    gated: bool = False
    """A gate still holds it back from the scheduler."""
    by_topology: bool = False
    """A topology says where it goes; its gang is charged there."""
    grows_since: int = 0
    """The moment since which it waits behind a gate of ours to come on top of what its gang was admitted with; else 0.
    Plans say when it may (`Grow`)."""
    bids: bool = False
    """That gate is the one of elastic jobs: the pod is a bid for quota of a queue, and for room."""
    leaving: bool = False
    """It was told to leave, and that is stored on it; it holds what it has until it is gone."""

    @property
    def is_terminal(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


class QuotaNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One node of an MCAD quota tree. A resource absent from `quota` is zero, not unlimited."""

    name: str
    quota: Amounts = {}
    hard: bool = False
    disabled: bool = False


class QuotaSubtree(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One QuotaSubtree object: nodes it adds to a tree below `parent` (empty or `nil`: as roots)."""

    key: str
    tree: str
    parent: str = ""
    nodes: tuple[QuotaNode, ...] = ()


class Namespace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Labels of a namespace, for affinity terms that select namespaces and for queues that do."""

    name: str
    labels: dict[str, str] = {}


Fact = Gang | NodeFact | NodePool | PodFact | QuotaSubtree | Namespace


def key_of(fact: Fact) -> str:
    """The name under which `Engine.remove` knows a fact: a gang's own key, `Node/<name>`, `Pod/<uid>`, …"""
    match fact:
        case Gang():
            return fact.key
        case PodFact():
            return f"Pod/{fact.uid}"
        case NodeFact():
            return f"Node/{fact.name}"
        case NodePool():
            return f"NodePool/{fact.name}"
        case QuotaSubtree():
            return f"QuotaSubtree/{fact.key}"
        case Namespace():
            return f"Namespace/{fact.name}"


# What comes out.

ShortfallKind = Literal[
    "aggregate", "fragmentation", "selector", "taint", "affinity", "ports", "quota", "order", "bad-fact", "stopping",
    "obtaining", "clusters",
]  # fmt: skip


class Shortfall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing that is missing. `place` names where: `nodes`, `tree/node` of a quota forest, a queue, a cohort."""

    kind: ShortfallKind
    resource: str = ""
    missing: int = 0
    needed: int = 0
    available: int = 0
    place: str = ""
    pod_set: str = ""
    nodes: int = 0
    """How many nodes were ruled out by this, of those looked at."""
    message: str = ""


Measure = Literal["least", "enough"]
"""least: it would do, and nothing less of it would. enough: it would do; whether less would, was too costly to find."""


class QuotaIncrease(msgspec.Struct, frozen=True, gc=False):
    """An increase of one quota that would start the gang; at `nodes`, what one more node would have to offer."""

    place: str
    amounts: Amounts
    measure: Measure = "least"


class NewNodes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Nodes that would start the gang: so many, each with these labels, no taints, and these amounts free."""

    count: int = 1
    amounts: Amounts
    labels: dict[str, str] = {}
    measure: Measure = "least"


class Together(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Several things that would start the gang, all of them done; none is enough alone."""

    quotas: tuple[QuotaIncrease, ...] = ()
    nodes: NewNodes | None = None
    measure: Measure = "least"


WaitReason = Literal[
    "", "quota", "resources", "order", "preempting", "obtaining", "bad-fact", "held", "backing-off", "starting",
]  # fmt: skip
"""Why a gang waits, in one word that never changes its meaning. `starting`: nothing is in its way."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a gang waits, good enough to print. `plan` fills what is cheap; `Engine.explain` fills everything."""

    message: str
    reason: WaitReason = ""
    shortfalls: tuple[Shortfall, ...] = ()
    place: str = ""
    position: int = 0
    """1 is the front of its queue (Kueue: of the whole ClusterQueue); 0 when not computed."""
    queue_length: int = 0
    own_position: int = 0
    """The same among the gangs of its own LocalQueue (Kueue) or namespace (MCAD); 0 when not computed."""
    own_queue_length: int = 0
    holders: tuple[str, ...] = ()
    """Keys of the gangs that hold what is short where this gang could use it, largest holder first."""
    starts_by_itself: bool = False
    """It starts without anything being done: it is its turn, or all that it waits for is on its way."""
    least_increase: QuotaIncrease | None = None
    """What one quota would have to grow by; where nodes are what is short, what one more node would have to offer."""
    new_nodes: NewNodes | None = None
    together: Together | None = None
    """Given where no single quota and no node alone would do."""
    release: tuple[str, ...] = ()
    """Running gangs whose end would start it, gangs ahead of it being served first; empty when no list was found."""
    release_measure: Measure = "enough"
    """least: no part of the list would do."""
    too_large: bool = False
    """Not even empty nodes have room for it."""
    explored: bool = True
    """False: so many gangs matter to it that what would help was not worked out."""


class Admit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Start this gang. Store seats and assignment with it before the first object is created."""

    gang: str
    uid: str
    seats: dict[str, Seat] = {}
    assignment: tuple[PodSetAssignment, ...] = ()


class Reservation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Kueue: quota is reserved for this gang, on these flavors. Store it before its checks are asked."""

    gang: str
    uid: str
    queue: str
    """The ClusterQueue."""
    assignment: tuple[PodSetAssignment, ...]
    backfilled: bool = False
    """It leaves when the front of its queue can start, until its own turn comes. Store that with it."""


class Turn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Kueue: the turn of this gang, which was started by backfill, has come: it holds its quota as any other now."""

    gang: str
    uid: str


class Preempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Take this gang back, to make room for another. Store `preemptor` with it as `stopping_for`."""

    gang: str
    uid: str
    preemptor: str
    """Key of the gang that gets the room."""
    preemptor_uid: str
    cause: str
    """One word for machines: `quota`, `priority`, `reclaim`, `fair-share`, `backfill`, or for no other gang
    `node-failure`."""
    message: str = ""
    term: str = ""
    """Kueue: the reason of its `Preempted` condition."""


class Obtain(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """This gang would fit if these nodes came, all of them. Ask for them as one request, whole or not at all, and tell
    the gang with the same `obtaining` from then on; nothing is started before they are there."""

    gang: str
    uid: str
    nodes: dict[str, int]
    """Node pool name to number of nodes; none of these numbers could be smaller."""
    pod_sets: tuple[tuple[str, int], ...] = ()
    """Name and number of the pods that will run on those nodes, per pod set that has any there."""


HoldReason = Literal["resources", "quota", "order", "preempting", "obtaining", "bad-fact"]


class Hold(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """This gang waits, and why."""

    gang: str
    uid: str
    reason: HoldReason
    explanation: Explanation
    term: str = ""
    """Kueue: the reason of its `QuotaReserved` condition; empty for a gang that has quota and waits for room."""


class Reseat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A running gang's seats moved (it was pushed up, or slid down). Store them; it goes on running."""

    gang: str
    uid: str
    seats: dict[str, Seat]


class Grow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that comes on top of what its gang was admitted with: without shortfalls it may come and counts from now
    on, so open its gate; else it has to wait, and this is what quota lacks. Said again when that changes."""

    pod: str
    """UID of the pod."""
    gang: str
    uid: str
    """Key and UID of its gang; empty where no gang is known."""
    shortfalls: tuple[Shortfall, ...] = ()


class Shrink(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that an elastic gang has beyond what it was admitted with has to leave: another gang needs what it takes.
    Any pod of its pod set does as well, where only quota is short (`node` is empty)."""

    pod: str
    """UID of the pod."""
    gang: str
    uid: str
    """Key and UID of its gang."""
    preemptor: str
    preemptor_uid: str
    node: str = ""
    """The node on which the other gang needs the room."""
    message: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of one cycle. `holds` lists the gangs judged in this cycle, not all that wait."""

    reservations: tuple[Reservation, ...] = ()
    places: tuple[Reservation, ...] = ()
    """Kueue: gangs that have quota and get other places in their topology, or places at last."""
    admits: tuple[Admit, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    holds: tuple[Hold, ...] = ()
    reseats: tuple[Reseat, ...] = ()
    obtains: tuple[Obtain, ...] = ()
    grows: tuple[Grow, ...] = ()
    shrinks: tuple[Shrink, ...] = ()
    turns: tuple[Turn, ...] = ()
    warnings: tuple[str, ...] = ()
    """Facts that could not be used, each naming the object at fault."""
    unfinished: bool = False
    """The cycle's step budget ran out: plan again, even if nothing changed."""
    wake_at: int = 0
    """Plan again at this moment, even if nothing changed; 0: no need."""

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to do; holds alone change nothing."""
        grows = any(not one.shortfalls for one in self.grows)
        moves = self.preempts or self.shrinks or self.reseats or self.obtains or grows
        return not (self.reservations or self.places or self.admits or self.turns or moves)
