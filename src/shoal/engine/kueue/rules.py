"""Where decisions differ from Kueue's, each difference with its name and its reason: all of them, and only here.

`Settings.exact` chooses KUEUE, for comparison with Kueue cycle by cycle; OURS is what is shipped. Nothing else in this
dialect asks whether it is to decide exactly as Kueue.
"""

from __future__ import annotations

import msgspec


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    keeps_room: bool
    """Quota freed by a preemption is kept for the gang that caused it, and no gang evicts one that evicted it, or that
    it evicted before, until something outside changes. In Kueue others may take what was freed, and gangs may evict
    each other, for ever."""
    leads_awaited: bool
    """After a restart a gang for which others leave is the head of its queue again. Kueue forgets."""
    takes_back: bool
    """A gang that got quota and had to yield within one plan was never given any. Kueue stores each cycle."""
    indexes: bool
    """Gangs without a chance take up no turn, and what gangs wait for is indexed. Kueue tries one head after the
    other, in every cycle."""
    calls_evictors: bool
    """Gangs that found no victims try again when new gangs hold quota. In Kueue they wait until something ends."""
    counts_age: bool
    """Where newer gangs may be evicted, the oldest of equal gangs is tried by itself. Kueue does not ask it, and misses
    some evictions."""
    new_head_frees: bool
    """A new head of a strict queue lets others have what the former one kept from them."""
    demotes_preemptors: bool
    """A gang that evicted others is the head of its queue only as long as they leave for it. In Kueue it stays first
    until it is admitted, whatever it waits for."""
    only_strict_heads_keep: bool
    """Only the head of a strict queue keeps from others what it waits for. In Kueue any head does, for one cycle, so
    that decisions depend on which gang was looked at when."""
    lets_others_pass: bool
    """A head that fits, and that the head of a strict queue keeps from starting, lets those behind it pass. In Kueue it
    stays first, and they are never looked at."""
    looks_at_all_flavors: bool
    """Flavors passed over by earlier scans are looked at once more before a gang gives up, and the memory of a scan is
    of one plan only. In Kueue a flavor may be passed over for good."""
    fits_everywhere: bool
    """A gang fits only if all its resources do. In Kueue, where little borrowing is preferred, a resource that is
    borrowed hides another that has to be freed; such a gang is judged to fit and never starts."""
    starts_on_free_quota: bool
    """A gang starts on quota and places that are free now. In Kueue the victims of a cycle count as gone for all that
    are served after, so that more may be held than there is until they have left."""
    hides_overtaken: bool
    """A gang that others of the same cycle were faster than is told nothing: it is tried again at once. Kueue tells
    it that it no longer fits."""
    last_in_line_leaves: bool
    """Of gangs that got their quota at one moment, the last in line leaves first. In Kueue their UIDs decide, so that a
    gang may have to leave while an equal one behind it stays."""


def _all(value: bool) -> Rules:
    return Rules(**dict.fromkeys(Rules.__struct_fields__, value))


KUEUE = _all(False)
OURS = _all(True)
