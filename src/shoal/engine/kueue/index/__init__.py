"""Which gang of a queue is next: `Heads` is the protocol, `heads.IndexedHeads` finds them by what has changed,
`plain.PlainHeads` by trying all. `WaitingIndex` keeps the gangs of one queue in order and what they wait for."""

from shoal.engine.kueue.index.protocol import Heads
from shoal.engine.kueue.index.waiting import WaitingIndex

__all__ = ["Heads", "WaitingIndex"]
