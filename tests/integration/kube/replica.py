"""One replica as a process of its own: takes part in an election and, while it leads, writes as fast as it may.

Run by test_lease.py: `python -m tests.integration.kube.replica KUBECONFIG NAME SECONDS`. Each write is a new ConfigMap
whose name tells the replica and the term; many wait in line at any time, so that a freeze always catches some. On
SIGTERM it is to stop, and its work hangs: it goes on writing as if no signal had come.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
from contextlib import suppress

from shoal.api.kinds import CONFIG_MAP
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.kubeconfig import load
from shoal.kube.lease import Leadership, LeaseSettings, Term
from shoal.kube.writes import Writer, Writes

WAITING = 40


async def main(kubeconfig: str, name: str, seconds: float) -> None:
    client = Client(load(kubeconfig))
    leadership = Leadership(client, "walk", "default", name, settings=LeaseSettings(seconds))

    async def lead(term: Term) -> None:
        print(f"leads {term.number}", flush=True)
        writer = Writes(leadership.fenced(term), in_flight=2, attempts=1).writer(name)
        numbers = itertools.count()
        work = asyncio.gather(*(write_on(writer, term, numbers) for _ in range(WAITING)))
        await asyncio.shield(work)

    async def write_on(writer: Writer, term: Term, numbers: itertools.count[int]) -> None:
        for number in numbers:
            body = {"metadata": {"name": f"{name}-{term.number}-{number}", "namespace": "default"}}
            try:
                await writer.create(CONFIG_MAP, body)
            except KubeError:
                await asyncio.sleep(0.05)

    print("takes part", flush=True)
    running = asyncio.ensure_future(leadership.run(lead))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with suppress(asyncio.CancelledError):
        await running
    print("stopped", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
