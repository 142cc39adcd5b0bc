"""The cluster's credentials are out of a pod's reach, in every sandbox, as root and as an ordinary user."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from shoal.api.meta import Json
from shoal.local.nodes.runtime import security
from shoal.local.nodes.runtime.pod import PodRun
from shoal.local.nodes.runtime.process import ContainerProcess
from shoal.local.nodes.sandbox import views
from shoal.local.nodes.sandbox.loopback import LoopbackSandbox
from tests.attacks import pods
from tests.attacks.attack import Unable
from tests.controlplane.plane import free_ports
from tests.faults import proven
from tests.patience import PATIENCE
from tests.processes.conftest import Machine, finished, pod, state, text

WAYS = [
    pytest.param("netns", "", 0, id="netns as root"),
    pytest.param("netns", "", pods.NOBODY, id="netns as an ordinary user"),
    pytest.param("loopback", views.MOUNTS, 0, id="loopback as root, by mounts"),
    pytest.param("loopback", views.LANDLOCK, 0, id="loopback as root, by Landlock"),
    pytest.param("loopback", views.USER_MOUNTS, pods.NOBODY, id="loopback as an ordinary user, by mounts"),
    pytest.param("loopback", views.LANDLOCK, pods.NOBODY, id="loopback as an ordinary user, by Landlock"),
]


def hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "HIDES", False)


@pytest.mark.parametrize(("sandbox", "view", "user"), WAYS)
@proven(without=hides_nothing)
async def test_f210_no_pod_reads_the_clusters_credentials(sandbox: str, view: str, user: int) -> None:
    """F210: a pod looks for the CA's key, the administrator's token and other pods' secrets: in files, links, shared
    memory, other processes, disks, namespaces and below what covers them. Holds: it finds none, and can change neither
    its own record nor the cluster's files."""
    outcome = await pods.attempt(sandbox, view, user if os.geteuid() == 0 else os.geteuid())
    try:
        assert "nothing found" in outcome.judged()
    except Unable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("view", [views.MOUNTS, views.LANDLOCK])
async def test_a_private_view_leaves_a_pod_what_is_its_own(plain: Machine, view: str) -> None:
    """Its volumes, its home, its place for a last message; in commands that enter it, too."""
    if not views._works(view):
        pytest.skip(f"this machine does not allow {view}")
    plain.host.view, plain.host.private = view, (plain.host.directory,)
    plain.things.config_maps["c"] = {"data": {"key": "value"}}
    volumes = [{"name": "own", "emptyDir": {}}, {"name": "told", "configMap": {"name": "c"}}]
    mounts = [{"name": "own", "mountPath": "/own"}, {"name": "told", "mountPath": "/told"}]
    script = (
        "cat /told/key; echo; echo mine > /own/file && cat /own/file; mkdir ~/made && echo home;"
        "echo last > /dev/termination-log; echo x > /told/key || echo read-only; sleep 600"
    )
    run = plain.start(pod("p", "sh", "-c", script, container={"volumeMounts": mounts}, volumes=volumes))
    process = await entered(run)
    assert (await text(run)).split("\n")[0] == "value"
    code, said = await process.enter(["sh", "-c", "cat /own/file /told/key"])
    assert (code, said.decode().split()) == (0, ["mine", "value"])
    code, said = await process.enter(["sh", "-c", "cat $SHOAL_HOSTS && cat $SHOAL_POD_DIR/../peers.json"])
    assert code == 0 and b"localhost" in said and b"127." in said  # names, and where others are
    code, said = await process.enter(["sh", "-c", "echo '{\"80\": 8080}' > $SHOAL_POD_DIR/ports.json"])
    assert (code, said) == (0, b"")
    code, said = await process.enter(["sh", "-c", f"cat {process.directory}/plan.json || echo hidden"])
    assert said.decode().endswith("hidden\n") and "argv" not in said.decode()
    assert "read-only" in await text(run) and "home" in await text(run)
    run.stop(0)
    await finished(run)
    assert state(run)["terminated"]["message"].strip() == "last"


async def entered(run: PodRun) -> ContainerProcess:
    """The container's process, once its script has come to its end."""
    async with asyncio.timeout(PATIENCE):
        while "read-only" not in (await text(run) if run.container("main") else ""):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    found = run.container("main")
    assert found is not None and found.process is not None
    return found.process


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ({}, "DAC_OVERRIDE"),
        ({"capabilities": {"drop": ["ALL"]}}, ""),
        ({"capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}}, "NET_ADMIN"),
        ({"capabilities": {"add": ["CAP_SYS_PTRACE"]}}, "SYS_PTRACE"),
    ],
)
async def test_root_in_a_container_has_the_capabilities_of_a_container(
    isolated: Machine, context: Json, expected: str
) -> None:
    container = {"securityContext": context}
    run = await isolated.ended(pod("p", "grep", "CapEff", "/proc/self/status", container=container))
    found = int((await text(run)).split()[1], 16)
    names = {name for number, name in enumerate(security.CAPABILITIES) if found >> number & 1}
    assert (expected in names) if expected else not names
    assert "SYS_ADMIN" not in names and "MKNOD" not in names


async def test_a_privileged_container_keeps_them_all(isolated: Machine) -> None:
    container = {"securityContext": {"privileged": True}}
    run = await isolated.ended(pod("p", "grep", "CapEff", "/proc/self/status", container=container))
    assert int((await text(run)).split()[1], 16) >> security.CAPABILITIES.index("SYS_ADMIN") & 1


# --- ports


def connects_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopbackSandbox, "_is_pods", lambda self, address, ip, port: True)


async def reached(machine: Machine, run: PodRun, port: int) -> bool:
    assert run.address is not None
    try:
        (await machine.host.sandbox.connect(run.address, "localhost", port)).close()
    except ConnectionRefusedError:
        return False
    return True


@proven(without=connects_anywhere)
async def test_f211_a_port_of_a_pod_leads_to_no_other_program(plain: Machine) -> None:
    """F211: in loopback a user forwards a port of a pod on which another program of the machine listens: on all
    addresses, on 127.0.0.1, or another pod. Holds: refused; what the pod itself listens on is reached, wherever."""
    neighbour, own, local = free_ports(3)
    serving = (
        "import socket,time,sys\ns=[socket.create_server((h,int(p))) for h,p in zip(sys.argv[1::2],sys.argv[2::2])]\n"
    )
    serving += "print('listens',flush=True)\ntime.sleep(600)"
    mine = plain.start(pod("mine", "python3", "-c", serving, "", str(own), "127.0.0.1", str(local), image="python"))
    other = plain.start(pod("other", "python3", "-c", serving, "", str(neighbour), image="python"))
    for run in (mine, other):
        async with asyncio.timeout(PATIENCE):
            while not run.container("main") or "listens" not in await text(run):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    with socket.create_server(("", 0)) as wide, socket.create_server(("127.0.0.1", 0)) as narrow:
        for stranger in (wide.getsockname()[1], narrow.getsockname()[1], neighbour):
            assert not await reached(plain, mine, stranger), stranger
    assert await reached(plain, mine, own) and await reached(plain, mine, local)
    assert await reached(plain, other, neighbour) and not await reached(plain, other, own)


async def test_what_a_pod_tells_of_its_ports_is_read_with_care(plain: Machine) -> None:
    """It may be a pipe that never ends, a link, or no JSON at all."""
    sandbox = plain.host.sandbox
    assert isinstance(sandbox, LoopbackSandbox)
    address = await sandbox.open("p")
    told = sandbox.shared(address) / "ports.json"
    os.mkfifo(told)
    assert sandbox.real_port(address.ip, 80) == 80
    told.unlink()
    for text_of_it in ("[" * 100_000, "[1]", '{"80": []}', '{"80": "x"}', '"x"'):
        told.write_text(text_of_it)
        assert sandbox.real_port(address.ip, 80) == 80
    told.write_text('{"80": 8080}')
    assert sandbox.real_port(address.ip, 80) == 8080
    await sandbox.close(address)
