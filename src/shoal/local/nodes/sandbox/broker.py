"""A process that stays in the machine's own network while the cluster lives in another, and opens sockets for it.

Started by `ownspace.enter` before the namespaces are left; a socket belongs to the network it was made in, wherever it
is used. Standard library only; run as `python -I -S broker.py FD`. Ends with the process that started it.
Loopback addresses are refused unless the request says otherwise: they would be the machine's, not a pod's.
"""

from __future__ import annotations

import ctypes
import ipaddress
import json
import os
import signal
import socket
import sys
import threading

TYPE_CHECKING = False  # as `typing` has it, whose import would cost every container's start
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

PATIENCE = 30.0


def answer(request: dict[str, Any], back: socket.socket) -> None:
    """One socket, or the words that say why not, to `back`."""
    with back:
        try:
            with opened(request) as made:
                socket.send_fds(back, [b"{}"], [made.fileno()])
        except (OSError, ValueError) as error:
            back.sendall(json.dumps({"error": str(error)}).encode())


def opened(request: dict[str, Any]) -> socket.socket:
    if request["kind"] == "datagram":
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    host, port = request["host"], int(request["port"])
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if not request.get("loopback"):
        refuse_machine(str(entry[4][0]) for entry in found)
    refusal = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in found:  # never looked up again: the next answer may be another
        made = socket.socket(family, kind, protocol)
        made.settimeout(PATIENCE)
        try:
            made.connect(address)
            return made
        except OSError as error:
            refusal = error
            made.close()
    raise refusal


def refuse_machine(addresses: Iterable[str]) -> None:
    """The machine's own loopback, however it is written; the kernel takes an unspecified address for it, too."""
    for text in addresses:
        written = ipaddress.ip_address(text.partition("%")[0])
        meant: ipaddress.IPv4Address | ipaddress.IPv6Address = written
        if written.version == 6 and int(written) >> 32 in (0, 0xFFFF):  # ::127.0.0.1 and ::ffff:127.0.0.1
            meant = ipaddress.IPv4Address(int(written) & 0xFFFFFFFF)
        if any(one.is_loopback or one.is_unspecified for one in (written, meant)):
            raise ValueError("loopback addresses of the machine cannot be reached from pods")


def serve(channel: socket.socket) -> None:
    while True:
        text, descriptors, _, _ = socket.recv_fds(channel, 65536, 1)
        if not text:
            return
        back = socket.socket(fileno=descriptors[0])
        threading.Thread(target=answer, args=(json.loads(text), back), daemon=True).start()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    serve(socket.socket(fileno=int(sys.argv[1])))
