"""A server in a process of its own, to be killed: `python -m tests.integration.apiserver.child STATE KUBECONFIG`."""

from __future__ import annotations

import asyncio
import sys

from shoal.local.apiserver import Server


async def main(state: str, kubeconfig: str) -> None:
    server = Server(state)
    await server.start()
    port = await server.serve()
    server.write_kubeconfig(kubeconfig)
    print(port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
