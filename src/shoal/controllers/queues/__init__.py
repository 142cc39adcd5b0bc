"""Queues as Kueue has them: a job that names one stays suspended until quota, checks and room say yes.

`QueueController` is a source of the planning loop; `admission` answers for objects before they are stored.
"""

from shoal.controllers.queues.controller import QueueController
from shoal.controllers.queues.settings import PodsReady, QueueSettings

__all__ = ["PodsReady", "QueueController", "QueueSettings"]
