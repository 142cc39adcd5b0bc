"""Fair sharing: the share of a queue in what its cohort lends, and preemption that makes shares more equal."""

from shoal.engine.kueue.fair_sharing.share import Share, share_of

__all__ = ["Share", "share_of"]
