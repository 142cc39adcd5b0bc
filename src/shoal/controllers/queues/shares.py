"""What statuses say of sharing: weighted shares of ClusterQueues and Cohorts, and what LocalQueues had lately.

The engine's figures in the words of Kueue's statuses; made when a status is published. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from shoal.api.gang import USER_USAGE
from shoal.api.kueue import ClusterQueue, Cohort, LocalQueue
from shoal.api.objects import annotation
from shoal.api.quantity import NANO, Quantity
from shoal.api.times import seconds_text
from shoal.controllers.queues.checks.draft import Draft
from shoal.controllers.queues.settings import QueueSettings
from shoal.engine import Engine

MOST_USERS = 500
"""Users whose usage is stored, those who had most: an annotation has its limits."""
LARGEST_SHARE = 2**63 - 1
"""What Kueue shows for a share without an end: of a weight of 0."""


class QueueShares:
    def __init__(self, engine: Engine, settings: QueueSettings) -> None:
        self._engine = engine
        self._settings = settings

    def cluster_queue(self, draft: Draft, queue: ClusterQueue) -> None:
        self._weighted(draft, "ClusterQueue", queue.metadata.name)

    def cohort(self, draft: Draft, cohort: Cohort) -> None:
        self._weighted(draft, "Cohort", cohort.metadata.name)

    def _weighted(self, draft: Draft, kind: Literal["ClusterQueue", "Cohort"], name: str) -> None:
        share = self._engine.weighted_share(kind, name) if self._settings.fair_sharing else None
        _set(draft, {"weightedShare": share} if share is not None else None)

    def local_queue(self, draft: Draft, queue: LocalQueue, covered: Iterable[str]) -> None:
        """`covered`: resources that its ClusterQueue has quotas of; those it had nothing of are told, too, as 0."""
        usage = self._engine.usage(queue.metadata.namespace or "", queue.metadata.name)
        if usage is None:
            _set(draft, None)
            return
        status = {
            "consumedResources": shown({**dict.fromkeys(covered, 0.0), **usage.consumed.amounts}),
            "lastUpdate": seconds_text(usage.consumed.at),
        }
        share = LARGEST_SHARE if usage.share >= LARGEST_SHARE else round(usage.share)
        _set(draft, {"weightedShare": share, "admissionFairSharingStatus": status})

    def user_usage(self, queue: LocalQueue) -> str | None:
        """What users had lately, as it is to be stored; None where it is stored."""
        usage = self._engine.usage(queue.metadata.namespace or "", queue.metadata.name)
        if usage is None or not usage.consumed.users:
            return None
        most = sorted(usage.consumed.users, key=lambda user: -usage.user_shares[user])[:MOST_USERS]
        users = {user: shown(usage.consumed.users[user]) for user in sorted(most)}
        text = msgspec.json.encode(users).decode()
        return text if annotation(queue, USER_USAGE) != text else None


def shown(amounts: Mapping[str, float]) -> dict[str, str]:
    """Amounts with fractions, in thousandths as Kueue keeps them."""
    thousandths = {name: round(amount * (1 if name == "cpu" else 1000)) for name, amount in amounts.items()}
    return {name: str(Quantity(count * NANO // 1000)) for name, count in sorted(thousandths.items())}


def _set(draft: Draft, value: dict[str, object] | None) -> None:
    """A status that never had the field does not get it."""
    if value is not None or "fairSharing" in draft.status:
        draft.set("fairSharing", value)
