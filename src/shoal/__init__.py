"""Shoal queues Ray workloads and starts each one whole or not at all.

`import shoal` is the Python door: `shoal.submit`, `shoal.attach`, `shoal.Cluster`, and `shoal.aio` with the same for
asyncio. What is used is loaded when it is used, so that the import itself costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.version import __version__

if TYPE_CHECKING:
    from shoal.sdk import aio
    from shoal.sdk.aio import GangExplanation, JobResult
    from shoal.sdk.blocking import Cluster, SubmittedJob, attach, submit

_HOMES = {
    "aio": "shoal.sdk.aio",
    "GangExplanation": "shoal.sdk.aio",
    "JobResult": "shoal.sdk.aio",
    "Cluster": "shoal.sdk.blocking",
    "SubmittedJob": "shoal.sdk.blocking",
    "attach": "shoal.sdk.blocking",
    "submit": "shoal.sdk.blocking",
}

__all__ = ["Cluster", "GangExplanation", "JobResult", "SubmittedJob", "__version__", "aio", "attach", "submit"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    import importlib

    module = importlib.import_module(_HOMES[name])
    return module if name == "aio" else getattr(module, name)
