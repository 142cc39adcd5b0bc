"""An in-memory cluster with one node of 16 cores, one queue of four, and the controllers in the loop that plans."""

from tests.unit.queues.conftest import cluster, quiet

__all__ = ["cluster", "quiet"]
