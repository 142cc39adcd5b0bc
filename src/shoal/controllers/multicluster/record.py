"""What a hub remembers of one gang: the round of its dispatch, the clusters that may hold a copy, the job made there.

Stored in one annotation of the Workload, before the first copy is made and until the last one is known to be gone.
Rounds are numbered by the time they begin, so that a hub restored from a backup never gives a number twice. Pure.
"""

from __future__ import annotations

import msgspec

from shoal.api.meta import Json
from shoal.controllers.multicluster import words

FORMAT = 1
"""Of what is written here. A field that an earlier release may drop leaves it as it is; other changes count it up."""
MOST_PAST = 20


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    format: int = 1
    """1, the first, is not written."""
    epoch: int = 0
    on: tuple[str, ...] = ()
    """Clusters that may hold a copy."""
    job: str = ""
    """UID of the job in the chosen cluster, once it was seen there."""
    ends: bool = False
    """It is taken back although it holds quota: its queue gives nothing to other clusters any more."""

    leaving: tuple[str, ...] = ()
    """Clusters among `on` that were cordoned before one was chosen: their copies go."""

    asked: int = 0
    """When clusters were added to `on` last; 0: when the round began."""

    loss: str = ""
    """What its ClusterQueue said of a lost cluster when the round began."""

    fence: int = 0
    """Seconds after the hub's last word after which nothing of this round runs in a cluster; 0: it runs on."""

    past: tuple[int, ...] = ()
    """Rounds before this one, the newest last. A copy of a round that is not named here is of unknown origin."""

    def next(self, now: int, clusters: tuple[str, ...], loss: str = "", fence: int = 0) -> Record:
        """The next round."""
        past = (*self.past, self.epoch)[-MOST_PAST:] if self.epoch else ()
        return Record(epoch=max(self.epoch + 1, now), on=clusters, loss=loss, fence=fence, past=past)

    @property
    def last_asked(self) -> int:
        return self.asked or self.epoch

    def over(self) -> Record:
        """The round is over, and nothing of it is anywhere."""
        return Record(epoch=self.epoch, past=self.past)

    def is_past(self, epoch: int) -> bool:
        return epoch in self.past or (len(self.past) == MOST_PAST and epoch < self.past[0])

    def without(self, *clusters: str) -> Record:
        return msgspec.structs.replace(
            self,
            on=tuple(one for one in self.on if one not in clusters),
            leaving=tuple(one for one in self.leaving if one not in clusters),
        )


def record_of(workload: Json) -> Record:
    """An annotation that a user has spoilt counts as none: what it named is found by its marks and removed."""
    text = (workload["metadata"].get("annotations") or {}).get(words.RECORD) or "{}"
    try:
        return msgspec.json.decode(text, type=Record)
    except msgspec.MsgspecError:
        return Record()


def stored(record: Record) -> str:
    return msgspec.json.encode(record).decode()


class Removal(msgspec.Struct, frozen=True, array_like=True):
    """Copies of this hub Workload, up to this round, must go."""

    workload: str
    epoch: int


MOST_REMOVALS = 3000
"""What fits into an annotation with room to spare."""


def removals_of(cluster: Json) -> tuple[Removal, ...]:
    text = (cluster["metadata"].get("annotations") or {}).get(words.REMOVALS) or "[]"
    try:
        return msgspec.json.decode(text, type=tuple[Removal, ...])
    except msgspec.MsgspecError:
        return ()


def with_removal(removals: tuple[Removal, ...], one: Removal) -> tuple[Removal, ...]:
    """One that is known keeps its place: two gangs, looked at in turn, must not change what is stored in turn."""
    if not any(known.workload == one.workload for known in removals):
        return (*removals, one)
    return tuple(
        Removal(known.workload, max(known.epoch, one.epoch)) if known.workload == one.workload else known
        for known in removals
    )


def stored_removals(removals: tuple[Removal, ...]) -> str | None:
    return msgspec.json.encode(removals).decode() if removals else None
