"""An in-memory cluster with the controllers in the loop that plans, and no history."""

from tests.unit.queues.conftest import cluster, quiet

__all__ = ["cluster", "quiet"]
