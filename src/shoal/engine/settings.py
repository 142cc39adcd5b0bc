"""What an installation may choose about decisions: one typed object, given to the engine when it is made."""

from __future__ import annotations

import msgspec


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    policy: str = "priority"
    """A shipped policy's name, or one's own as `package.module:object`."""
    preemption: bool = False
    """Take back lower-ranked gangs where the policy allows it. Also makes gangs preemptable by quota."""
    quota: bool = False
    """Apply MCAD quota trees. Without any tree there is no quota constraint either way."""
    minimal_victims: bool = False
    """Quota: spare every victim that need not go. Off: oldest first until enough, as MCAD."""
    head_hold: int = 0
    """Microseconds for which nothing may overtake the front of the queue after it was first found not to fit."""
