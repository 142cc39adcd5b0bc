"""Datagrams from one port to the pods behind it, and their answers back to the sender.

For Services of protocol UDP. Every client gets a socket of its own towards one pod, so that answers find their way; of
very many the one that was silent the longest is forgotten.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable
from typing import cast

from shoal.local.nodes.runtime.services import Target

MOST_CLIENTS = 1024


class DatagramRelay(asyncio.DatagramProtocol):
    """`choose` gives the next pod's address and port, or None when there is none."""

    def __init__(self, choose: Callable[[], Target | None]) -> None:
        self._choose = choose
        self._ours: asyncio.DatagramTransport | None = None
        self._flows: OrderedDict[Target, socket.socket] = OrderedDict()
        self._unconnected: dict[socket.socket, Target] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._ours = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, client: Target) -> None:
        flow = self._flows.get(client) or self._open(client)
        if flow is None:
            return
        self._flows.move_to_end(client)
        try:
            if flow in self._unconnected:
                flow.sendto(data, self._unconnected[flow])
            else:
                flow.send(data)
        except BlockingIOError:
            pass  # as a network that is full: lost
        except OSError:  # the pod is gone, or nothing listens there: another one next time
            self._forget(client)

    def connection_lost(self, error: Exception | None) -> None:
        for client in list(self._flows):
            self._forget(client)

    def _open(self, client: Target) -> socket.socket | None:
        target = self._choose()
        if target is None:
            return None
        flow = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        flow.setblocking(False)
        try:
            if target[0].startswith("127."):  # where a server on all addresses answers from another
                flow.bind(("127.0.0.1", 0))
                self._unconnected[flow] = target
            else:
                flow.connect(target)
        except OSError:
            flow.close()
            return None
        asyncio.get_running_loop().add_reader(flow, self._answer, client, flow)
        self._flows[client] = flow
        if len(self._flows) > MOST_CLIENTS:
            self._forget(next(iter(self._flows)))
        return flow

    def _answer(self, client: Target, flow: socket.socket) -> None:
        try:
            data = flow.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            self._forget(client)
            return
        if self._ours is not None:
            self._ours.sendto(data, client)

    def _forget(self, client: Target) -> None:
        flow = self._flows.pop(client, None)
        if flow is not None:
            asyncio.get_running_loop().remove_reader(flow)
            self._unconnected.pop(flow, None)
            flow.close()
