"""How a process that keeps many objects for long spares Python's collector of cycles.

Called by the controllers once their caches are filled, and by benchmarks of what they do. Imports nothing else.
"""

from __future__ import annotations

import gc


def spare_collector() -> None:
    """Call once after the first lists: what is held then lives long, and looking through it again and again costs most
    of the time of decoding. What comes later is looked through when it has grown by a tenth of a million objects."""
    gc.unfreeze()  # what an earlier term of a leader held is garbage now
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
