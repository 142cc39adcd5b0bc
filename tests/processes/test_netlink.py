"""Pods' networks made by netlink: no program of the machine is asked, and translated addresses really are."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from shoal.local import machine
from shoal.local.nodes.sandbox import nat, netlink
from shoal.local.nodes.sandbox.netlink import NetworkFailed
from shoal.local.nodes.sandbox.netns import NETNS_DIRECTORY, NetnsSandbox
from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(not machine.may_use_namespaces(), reason="network namespaces need root")


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as one:
        yield one


@pytest.fixture
def spaces(tmp_path: Path, thread: ThreadPoolExecutor) -> Iterator[Callable[[str], Path]]:
    """Network namespaces by name; gone after the test."""
    made: list[Path] = []

    def make(name: str) -> Path:
        path = tmp_path / "spaces" / name
        thread.submit(netlink.add_namespace, path).result()
        made.append(path)
        return path

    yield make
    for path in made:
        netlink.remove_namespace(path)
    netlink.remove_namespace(tmp_path / "spaces" / "none")  # nothing there is no error
    os.system(f"umount -l {tmp_path / 'spaces'} 2>/dev/null")


async def test_no_program_of_the_machine_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minimal image has neither `ip` nor `nft`; a pod gets its network all the same."""
    monkeypatch.setenv("PATH", "/nonexistent")
    assert machine.sandbox_finding().good
    sandbox = NetnsSandbox(f"bare@{tmp_path}")
    await sandbox.start()
    try:
        address = await sandbox.open("a" * 12)
        assert address.namespace in _namespaces()
        with pytest.raises(ConnectionRefusedError):  # the pod's network answers, and nothing listens there
            await sandbox.connect(address, address.ip, 9)
        await sandbox.close(address)
        assert address.namespace not in _namespaces()
    finally:
        await sandbox.stop()
    assert sandbox.bridge not in dict(socket.if_nameindex()).values()


def test_a_pods_way_out_shows_the_machines_address_and_lets_no_one_in(
    spaces: Callable[[str], Path], thread: ThreadPoolExecutor
) -> None:
    """Pod, machine and a host outside, each a network namespace; the machine forwards and translates."""
    router, outside = spaces("machine"), spaces("outside")
    inside = spaces("pod")

    def wire() -> str:
        netlink.add_bridge("shoaltest", "10.64.0.1")
        netlink.add_bridge("uplink", "172.30.0.1")
        netlink.connect_namespace(inside, "shoaltest", "veth-pod", "10.64.1.1", "10.64.0.1")
        netlink.connect_namespace(outside, "uplink", "veth-out", "172.30.0.2", "172.30.0.1")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        return nat.open_way("test", "shoaltest", IPv4Network("10.64.0.0/16"))

    def listener() -> socket.socket:
        return socket.create_server(("", 7777))

    def caller(target: str) -> Callable[[], socket.socket]:
        return lambda: socket.create_connection((target, 7777), timeout=2)

    def do(space: Path, work: Callable[[], object]) -> object:
        return thread.submit(netlink.within, space, work).result(PATIENCE)

    why = do(router, lambda: _without(nat, "routes", lambda: [("x", IPv4Network("0.0.0.0/0"))], wire))
    assert why == ""
    server = do(outside, listener)
    assert isinstance(server, socket.socket)
    with server:
        seen: list[str] = []
        accepting = threading.Thread(target=lambda: seen.append(server.accept()[1][0]), daemon=True)
        accepting.start()
        client = do(inside, caller("172.30.0.2"))
        assert isinstance(client, socket.socket)
        accepting.join(PATIENCE)
        client.close()
    assert seen == ["172.30.0.1"]  # not 10.64.1.1

    back = do(inside, listener)
    assert isinstance(back, socket.socket)
    with back, pytest.raises(OSError):
        do(outside, caller("10.64.1.1"))
    do(router, lambda: nat.close_way("test"))
    with do(inside, listener), do(outside, caller("10.64.1.1")):  # type: ignore[attr-defined]
        pass  # it was the table that kept it out


def test_a_refusal_by_the_kernel_says_what_and_what_to_do(
    spaces: Callable[[str], Path], thread: ThreadPoolExecutor
) -> None:
    space = spaces("odd")

    def twice_and_wrong() -> None:
        netlink.add_bridge("shoaltest", "10.64.0.1")
        netlink.add_bridge("shoaltest", "10.64.0.1")  # what is there already is no error
        netlink.add_bridge("a-name-that-is-far-too-long", "10.64.0.1")

    with pytest.raises(NetworkFailed, match=r"bridge a-name-that-is-far-too-long.*shoal doctor"):
        thread.submit(netlink.within, space, twice_and_wrong).result(PATIENCE)


def _namespaces() -> list[str]:
    return [str(path) for path in Path(NETNS_DIRECTORY).iterdir()]


def _without(module: object, name: str, instead: object, work: Callable[[], str]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, instead)
        return work()
