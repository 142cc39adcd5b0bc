"""Shoal queues Ray workloads and starts each one whole or not at all."""

__version__ = "0.1.0"
