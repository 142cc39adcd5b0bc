"""All built-in controllers in one task group, over one census of the server's objects."""

from __future__ import annotations

import asyncio

from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.local.builtin.census import Census
from shoal.local.builtin.collector import Collector
from shoal.local.builtin.namespaces import Namespaces


async def run_all(client: Client, clock: Clock | None = None, *, root_ca: str = "") -> None:
    """Until cancelled. `root_ca` is the PEM text of the server's CA, which every namespace gets for its pods."""
    clock = clock or SystemClock()
    census = Census(client, clock)
    async with asyncio.TaskGroup() as group:
        group.create_task(census.run())
        group.create_task(Collector(census).run())
        group.create_task(Namespaces(census, root_ca).run())
