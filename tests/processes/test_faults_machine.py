"""What a pod tries on its machine: links that lead root out, and the machine's loopback by other names."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from shoal.local.nodes.sandbox import broker, outside, outward
from shoal.local.nodes.sandbox.outward import Direct
from tests.faults import proven
from tests.patience import PATIENCE
from tests.processes.conftest import Machine, change_shim, forget_changed_shim, pod, state


def follows_links(monkeypatch: pytest.MonkeyPatch) -> None:
    change_shim(
        monkeypatch,
        "root",
        "    point = reach(root, target, os.path.isdir(held))\n",
        "    os.makedirs(root + target, exist_ok=True)\n    point = os.open(root + target, os.O_PATH)\n",
    )


@proven(without=follows_links)
async def test_f200_a_link_in_a_volume_does_not_lead_root_onto_the_machine(isolated: Machine, tmp_path: Path) -> None:
    """F200: a container leaves a link to the machine's files in its volume, and the next one mounts something below it.
    Holds: nothing is created there; the container does not start, and says why."""
    (tmp_path / "machine").mkdir()
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "way").symlink_to(tmp_path / "machine")
    mounts = [{"name": "own", "mountPath": "/data"}, {"name": "more", "mountPath": "/data/way/planted"}]
    volumes = [{"name": "own", "hostPath": {"path": str(tmp_path / "volume")}}, {"name": "more", "emptyDir": {}}]
    try:
        run = await isolated.ended(pod("sly", "true", container={"volumeMounts": mounts}, volumes=volumes))
    finally:
        forget_changed_shim()
    assert list((tmp_path / "machine").iterdir()) == []
    assert "'way' is a link" in state(run)["terminated"]["message"]


def takes_any_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (broker, outward, outside):
        monkeypatch.setattr(module, "refuse_machine", lambda addresses: None)


SPELLINGS = ("127.0.0.1", "127.1", "127.8.9.1", "0.0.0.0", "0", "0x7f000001", "localhost", "::ffff:127.0.0.1")
SPELLINGS += ("::ffff:0.0.0.0", "::127.0.0.1", "::1", "::")


@pytest.mark.parametrize("spelling", SPELLINGS)
@proven(without=takes_any_address)
async def test_f201_the_machines_loopback_is_refused_however_it_is_written(spelling: str) -> None:
    """F201: a pod asks its way out for the machine's own loopback by another name. Holds: refused in every spelling, by
    this process, by the broker and where the machine has a proxy; nothing is connected."""
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ValueError, match="loopback"):
            (await Direct().connect(spelling, port)).close()
        with pytest.raises(ValueError, match="loopback"):
            broker.opened({"kind": "connect", "host": spelling, "port": port}).close()
        answer = await asked_through_a_proxy(f"[{spelling}]:{port}", listener.getsockname()[1])
    assert answer.startswith(b"HTTP/1.1 502")


async def asked_through_a_proxy(target: str, proxy: int) -> bytes:
    """What a pod is answered that sends CONNECT, where the machine has a proxy on its own loopback."""
    here, there = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=there)
    serving = asyncio.create_task(outside.serve(reader, writer, ("127.0.0.1", proxy), Direct()))
    pod_reader, pod_writer = await asyncio.open_connection(sock=here)
    pod_writer.write(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
    try:
        return await asyncio.wait_for(pod_reader.read(12), PATIENCE / 10)
    except TimeoutError:
        return b"connected"
    finally:
        serving.cancel()
        pod_writer.close()


def looks_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(request: dict[str, object]) -> socket.socket:
        broker.refuse_machine(e[4][0] for e in socket.getaddrinfo(str(request["host"]), None))
        return socket.create_connection((str(request["host"]), request["port"]), 2)  # type: ignore[arg-type]

    monkeypatch.setattr(broker, "opened", connect)


@proven(without=looks_up_again)
def test_f201_a_name_that_changes_its_mind_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """F201: a name leads elsewhere when it is judged, and to the machine when it is connected.
    Holds: the judged address is the one that is connected."""
    connected: list[str] = []

    class Recorder:
        def __init__(self, *_: object) -> None: ...
        def settimeout(self, _: float) -> None: ...
        def close(self) -> None: ...
        def connect(self, address: tuple[str, int]) -> None:
            connected.append(address[0])
            raise ConnectionRefusedError

    answers = iter(["192.0.2.1", "127.0.0.1"])
    found = lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), 80))]  # noqa: E731
    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr(socket, "socket", Recorder)
    with pytest.raises(ConnectionRefusedError):
        broker.opened({"kind": "connect", "host": "twoface", "port": 80})
    assert connected == ["192.0.2.1"]
