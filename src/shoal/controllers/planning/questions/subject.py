"""What a dialect knows of a gang that is asked about, beside what the engine explains.

Each dialect makes these from its caches (`appwrapper/subjects.py`, `queues/subjects.py`); the desk adds the engine's
explanation and the names that the asker may read.
"""

from __future__ import annotations

import msgspec

from shoal.api.questions import UnplacedPod
from shoal.engine.model import Hold


class QuestionSubject(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    state: str
    """How it fares, as `shoal get` says it."""
    reason: str
    """One of `api.questions.REASONS`; for a gang that waits, what is so unless the engine knows more."""
    message: str = ""
    gang: str = ""
    """Its key in the engine, where that can explain why it waits."""
    hold: Hold | None = None
    """What the last plan said of it."""
    settled: bool = False
    """What keeps it is known without the engine (a stopped queue, a gate); only its position is asked for."""
    local_queue: str = ""
    cluster_queue: str = ""
    pending_pods: tuple[UnplacedPod, ...] = ()
