"""Question of shoal.dev: a user asks about a gang, and the leading controller answers in the status.

A small kind instead of an aggregated API, so that it works on every API server. The asker creates one beside the gang
and watches it; the leader writes the answer once and removes the object a minute later. Reasons are stable words for
programs, messages are for people. A question about a manifest that is not stored yet carries it beside `target`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from shoal.api.fields import Embedded, Immutable, Int32, Int64, Rule, Timestamp
from shoal.api.meta import Object, Part

WHY = "Why"
"""Why does this gang run or wait, and what would help?"""
CONSUMERS = "Consumers"
"""Which gangs are charged at the nodes of this quota?"""
WOULD_START = "WouldStart"
"""Would the gang of this manifest, which is not stored, start now? Nothing is created."""
HISTORY = "History"
"""What did gangs do in a time: waits, runs, requeues, GPU-hours? Those that the asker may read are named."""
LOGS = "Logs"
"""What is kept of the logs of a gang whose pods are gone? For askers who may read the logs of that namespace's pods."""
QUESTIONS = (WHY, CONSUMERS, WOULD_START, HISTORY, LOGS)
VERDICTS = ("Starts", "Waits", "Never", "Unknown")
"""Never: not even if every other gang and pod ended, as quotas and nodes are. Unknown: too large to try out."""

REASONS = (
    "Quota",  # a quota does not suffice
    "Room",  # the nodes do not suffice
    "Order",  # others go first
    "Preempting",  # gangs that leave for it are not gone yet
    "NodesToCome",  # nodes were asked for and may still come
    "QueueStopped",  # its LocalQueue or ClusterQueue is stopped
    "Misconfigured",  # something it needs is missing or wrong, and named
    "AdmissionChecks",  # it has quota, and checks that are not ready
    "Backoff",  # it is tried again at a set time
    "Gated",  # an admission gate holds it
    "Held",  # its owner suspended or deactivated it
    "Stopping",  # it was evicted and its pods are ending
    "Starting",  # it was admitted and is being started
    "PodsPending",  # it runs without a queue, and some of its pods do not
    "Running",
    "Finished",
    "NotSeen",  # the controller has not looked at it yet
    "NotFound",  # there is no such gang, or the asker may not read it
    "UnknownQuestion",  # this controller does not know the question
)


class Target(Part):
    """The gang or quota that is asked about, in the namespace of the question."""

    group: Annotated[str, Rule(max_length=253)] = ""
    kind: Annotated[str, Rule(required=True, min_length=1, max_length=63)] = ""
    name: Annotated[str, Rule(required=True, min_length=1, max_length=253)] = ""


class HistoryWindow(Part):
    """Which rounds are asked for: those that overlap the time. Empty fields choose everything.

    `allNamespaces`: not only those of the question's own namespace.
    """

    since: Timestamp | None = None
    until: Timestamp | None = None
    all_namespaces: bool = False
    user: Annotated[str, Rule(max_length=253)] = ""
    queue: Annotated[str, Rule(max_length=253)] = ""
    name: Annotated[str, Rule(max_length=253)] = ""
    by: Annotated[str, Rule(enum=["user", "namespace", "queue"], default="user")] = "user"
    limit: Annotated[Int32, Rule(minimum=0, maximum=500, default=100)] = 100


class LogChoice(Part):
    """Which log is asked for. Without `uid` that of the gang of this name that ended last; without `role` the driver's,
    or where there is none the head's."""

    name: Annotated[str, Rule(required=True, min_length=1, max_length=253)] = ""
    kind: Annotated[str, Rule(max_length=63)] = ""
    uid: Annotated[str, Rule(max_length=63)] = ""
    role: Annotated[str, Rule(enum=["head", "worker", "submitter", ""])] = ""
    previous: bool = False


class QuestionSpec(Part):
    question: Annotated[str, Rule(enum=list(QUESTIONS), default=WHY)] = WHY
    target: Target | None = None
    fresh: bool = False
    manifest: Embedded = msgspec.Raw()
    largest: Annotated[str, Rule(max_length=253)] = ""
    history: HistoryWindow | None = None
    logs: LogChoice | None = None


class AnswerShortfall(Part):
    """One thing that is missing, amounts as people write them."""

    kind: str = ""
    resource: str = ""
    needed: str = ""
    available: str = ""
    missing: str = ""
    place: str = ""
    message: str = ""


class LeastIncrease(Part):
    """At `nodes`: what one more node would have to offer. Elsewhere: by how much that quota would have to grow.
    `measure`: least, or enough where finding the least was too costly."""

    place: str = ""
    amounts: dict[str, str] | None = None
    measure: str = ""


class NewNodes(Part):
    """So many nodes, each with these labels, no taints, and these amounts free."""

    count: Int32 = 0
    amounts: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    measure: str = ""


class Together(Part):
    """Several things that would start the gang, all of them done; none is enough alone."""

    quotas: tuple[LeastIncrease, ...] | None = None
    nodes: NewNodes | None = None
    measure: str = ""


class UnplacedPod(Part):
    name: str = ""
    message: str = ""


class QuotaConsumers(Part):
    """One node of a quota. `hidden`: gangs that the asker may not read; `more`: those that are too many to list."""

    node: str = ""
    gangs: tuple[str, ...] | None = None
    hidden: Int32 = 0
    more: Int32 = 0


class MadeFrom(Part):
    """What the answer knows: everything that was stored before `at`, where `at` is given."""

    plan: Int64 = 0
    at: Timestamp | None = None


class StartEstimate(Part):
    """When a gang that waits would start, and what that is from. `at` is missing where it is not known.

    `basis`: DeclaredLimits, History, Mixed, Known (nothing has to end) or Unknown; `ends`: gangs that end before it.
    """

    at: Timestamp | None = None
    basis: str = ""
    message: str = ""
    ends: Int32 = 0


class PastRun(Part):
    """One round of a gang: it came or came back, it ran, it ended. `outcome` is empty while it goes on."""

    uid: str = ""
    round: Int32 = 0
    kind: str = ""
    namespace: str = ""
    name: str = ""
    user: str = ""
    queue: str = ""
    cluster_queue: str = ""
    queued_at: Timestamp | None = None
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None
    outcome: str = ""
    pods: Int32 = 0
    cpu: str = ""
    memory: str = ""
    gpus: Int64 = 0


class PastTotal(Part):
    """Of one user, namespace or queue. Seconds are whole; what goes on counts up to now."""

    of: str = ""
    gangs: Int32 = 0
    runs: Int32 = 0
    failed: Int32 = 0
    requeues: Int32 = 0
    waited_seconds: Int64 = 0
    longest_wait_seconds: Int64 = 0
    ran_seconds: Int64 = 0
    gpu_seconds: Int64 = 0


class PastAnswer(Part):
    """`hidden`: gangs that the asker may not read, which no number here counts; `more`: older runs than those listed
    are there."""

    runs: tuple[PastRun, ...] | None = None
    totals: tuple[PastTotal, ...] | None = None
    hidden: Int32 = 0
    more: bool = False


class KeptLogText(Part):
    """The end of one container's log. `cut`: bytes before it that were not kept."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    role: str = ""
    pod: str = ""
    container: str = ""
    ended_at: Timestamp | None = None
    cut: Int64 = 0
    text: str = ""


class QuestionStatus(Part):
    answered_at: Timestamp | None = None
    made_from: MadeFrom | None = None
    state: str = ""
    reason: Annotated[str, Rule(max_length=63)] = ""
    message: Annotated[str, Rule(max_length=4096)] = ""
    uid: str = ""
    local_queue: str = ""
    cluster_queue: str = ""
    position: Int32 = 0
    queue_length: Int32 = 0
    local_position: Int32 = 0
    local_queue_length: Int32 = 0
    shortfalls: tuple[AnswerShortfall, ...] | None = None
    holders: tuple[str, ...] | None = None
    holders_hidden: Int32 = 0
    more_holders: Int32 = 0
    release: tuple[str, ...] | None = None
    release_hidden: Int32 = 0
    more_release: Int32 = 0
    release_measure: str = ""
    least_increase: LeastIncrease | None = None
    new_nodes: NewNodes | None = None
    together: Together | None = None
    starts_by_itself: bool = False
    not_explored: bool = False
    cluster_too_small: bool = False
    pending_pods: tuple[UnplacedPod, ...] | None = None
    consumers: tuple[QuotaConsumers, ...] | None = None
    named_by: Annotated[str, Rule(enum=["Rights", "Namespace", ""])] = ""
    verdict: Annotated[str, Rule(enum=[*VERDICTS, ""])] = ""
    largest: Int32 | None = None
    history: PastAnswer | None = None
    estimate: StartEstimate | None = None
    logs: tuple[KeptLogText, ...] | None = None


class Question(Object):
    spec: Annotated[QuestionSpec, Rule(required=True, cel=Immutable)] = QuestionSpec()
    status: QuestionStatus = QuestionStatus()
