"""Services between pods: translated ports, named ports, headless ones, names and variables, in both sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from typing import Any

import pytest

from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.kube.cache import Change
from shoal.kube.clock import SystemClock
from shoal.local.nodes.agent.names import Names
from shoal.local.nodes.runtime.names import hosts_text, service_lines
from shoal.local.nodes.runtime.pod import PodRun
from shoal.local.nodes.runtime.processes import ProcessRuntime
from shoal.local.nodes.runtime.services import PublishedPort, host_ports, link_variables, service_views
from shoal.local.nodes.sandbox.relays import RelayPlace
from tests.controlplane.plane import free_ports
from tests.patience import PATIENCE
from tests.processes.conftest import Machine, pod, state, text
from tests.processes.test_pods import until

SERVER = (
    "import http.server as h, sys\n"
    "class Hello(h.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200); self.end_headers(); self.wfile.write(b'hello from %d' % PORT)\n"
    "    def log_message(self, *words): pass\n"
    "h.HTTPServer(('', PORT), Hello).serve_forever()"
)


def service(name: str, port: int, target: int | str, cluster_ip: str, port_name: str = "http") -> Json:
    ports = [{"name": port_name, "port": port, "targetPort": target}]
    spec: Json = {"selector": {"app": "web"}, "clusterIP": cluster_ip, "ports": ports}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def web_pod(address: str, **labels: str) -> Json:
    found = pod("web", container={"ports": [{"name": "front", "containerPort": 18080}]})
    found["status"] = {"podIP": address, "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return found


def test_ports_are_found_by_number_and_by_name() -> None:
    services = [
        service("translated", 80, 18080, "10.96.0.10"),
        service("named", 80, "front", "10.96.0.11"),
        service("same", 18080, 18080, "10.96.0.12"),
        service("headless", 80, 18080, "None"),
    ]
    views = {view.name: view for view in service_views(services, [web_pod("10.1.2.3")])}
    assert views["translated"].ports[0].targets == views["named"].ports[0].targets == (("10.1.2.3", 18080),)
    assert {name for name, view in views.items() if view.direct} == {"same", "headless"}
    lines = dict(service_lines(views.values(), {f"10.96.0.{n}": f"10.96.0.{n}" for n in (10, 11, 12)})["default"])
    assert lines == {
        "translated": ["10.96.0.10"],
        "named": ["10.96.0.11"],
        "same": ["10.1.2.3"],
        "headless": ["10.1.2.3"],
    }


def test_variables_name_the_services_of_the_namespace() -> None:
    views = service_views([service("my-web", 80, 18080, "10.96.0.10"), service("bare", 80, 80, "None")], [])
    found = link_variables(views, "default", {"10.96.0.10": "127.9.253.2"})
    assert found["MY_WEB_SERVICE_HOST"] == "127.9.253.2" and found["MY_WEB_SERVICE_PORT"] == "80"
    assert found["MY_WEB_SERVICE_PORT_HTTP"] == "80" and found["MY_WEB_PORT"] == "tcp://127.9.253.2:80"
    assert found["MY_WEB_PORT_80_TCP_ADDR"] == "127.9.253.2"
    assert not any(name.startswith("BARE") for name in found)
    assert link_variables(views, "elsewhere", {}) == {}


class Network:
    """What the agent does for names and Services, over the pods of a test."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.runtime = ProcessRuntime(machine.host)

    async def publish(self, services: list[Json], behind: PodRun) -> None:
        sandbox = self.machine.host.sandbox
        assert behind.address is not None
        views = service_views(services, [web_pod(behind.address.ip)])
        await sandbox.publish(views)
        lines = service_lines(views, sandbox.service_addresses)
        self.machine.host.links = lambda namespace: link_variables(views, namespace, sandbox.service_addresses)

        def look_up(name: str) -> list[str] | None:
            from shoal.local.nodes.runtime.names import lookup

            return lookup(name, lines)

        sandbox.lookup = look_up
        self.runtime.hosts_text = lambda manifest, own: hosts_text(own, "default", lines)

    def start(self, manifest: Json) -> PodRun:
        run = self.runtime.create(manifest, lambda: None)
        run.start()
        self.machine.pods.append(run)
        return run


async def test_a_translated_port_is_reached_by_every_name_and_by_variable(one_machine: Machine) -> None:
    network, (port,) = Network(one_machine), free_ports(1)
    server = network.start(pod("web", "python3", "-c", SERVER.replace("PORT", str(port)), image="python"))
    await until(lambda: "running" in state(server))
    services = [service("front", 8123, port, "10.96.7.7"), service("plain", port, port, "None")]
    await network.publish(services, server)
    names = ("front", "front.default", "front.default.svc", "front.default.svc.cluster.local")
    urls = [*(f"http://{name}:8123" for name in names), f"http://plain:{port}"]
    script = (
        "import os, time, sys, urllib.request as u\n"
        "def get(url):\n"
        "    for _ in range(100):\n"
        "        try: return u.build_opener(u.ProxyHandler({})).open(url, timeout=3).read().decode()\n"
        "        except OSError as e: error = e; time.sleep(0.05)\n"
        "    return str(error)\n"
        "for url in [*sys.argv[1:], f\"http://{os.environ['FRONT_SERVICE_HOST']}:{os.environ['FRONT_SERVICE_PORT']}\"]:\n"
        "    print(get(url), flush=True)"
    )
    client = network.start(pod("client", "python3", "-c", script, *urls, image="python"))
    await client.finished.wait()
    assert (await text(client)).splitlines() == [f"hello from {port}"] * 6
    await network.publish([], server)
    assert one_machine.host.sandbox.service_addresses == {}


ECHO = (
    "import socket\n"
    "ours = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    "ours.bind(('', PORT))\n"
    "while True:\n"
    "    data, asker = ours.recvfrom(1000)\n"
    "    ours.sendto(b'heard ' + data, asker)"
)
ASK = (
    "import os, socket, sys\n"
    "ours = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    "ours.settimeout(0.2)\n"
    "host = os.environ.get('FRONT_SERVICE_HOST') or '127.0.0.1'\n"
    "for _ in range(200):\n"
    "    try:\n"
    "        ours.sendto(sys.argv[2].encode(), (host, int(sys.argv[1])))\n"
    "        print(ours.recv(1000).decode()); break\n"
    "    except OSError: continue"
)


async def test_datagrams_find_their_way_there_and_back(one_machine: Machine) -> None:
    network, (port, node_port) = Network(one_machine), free_ports(2)
    server = network.start(pod("web", "python3", "-c", ECHO.replace("PORT", str(port)), image="python"))
    await until(lambda: "running" in state(server))
    front = service("front", 8153, port, "10.96.7.9")
    front["spec"]["ports"][0] |= {"protocol": "UDP", "nodePort": node_port}
    await network.publish([front], server)
    client = network.start(pod("client", "python3", "-c", ASK, "8153", "a pod", image="python"))
    await client.finished.wait()
    assert await text(client) == "heard a pod\n"
    outside = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ASK, str(node_port), "the machine", stdout=asyncio.subprocess.PIPE
    )
    assert (await outside.communicate())[0] == b"heard the machine\n"


async def answered(address: str, port: int) -> str:
    """What a web server says; until it listens, connections are closed."""
    async with asyncio.timeout(PATIENCE):
        while True:
            reader, writer = await asyncio.open_connection(address, port)
            answer = b""
            with contextlib.suppress(ConnectionError):
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                answer = await reader.read()
            writer.close()
            if answer:
                return answer.decode().rpartition("\r\n")[2]
            await asyncio.sleep(0.05)


async def test_a_node_port_is_reached_at_the_node_and_on_this_machine(one_machine: Machine) -> None:
    network, (port, node_port) = Network(one_machine), free_ports(2)
    server = network.start(pod("web", "python3", "-c", SERVER.replace("PORT", str(port)), image="python"))
    await until(lambda: "running" in state(server))
    front = service("front", 8125, port, "10.96.7.10")
    front["spec"]["ports"][0]["nodePort"] = node_port
    await network.publish([front], server)

    for address in (one_machine.host.sandbox.host_ip(), "127.0.0.1"):
        assert await answered(address, node_port) == f"hello from {port}"
    await network.publish([], server)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", node_port)


def wants_port(run: PodRun, number: int, port: int) -> Json:
    """The pod's object as the agent reported it."""
    assert run.address is not None
    ports = [{"containerPort": port, "hostPort": number}]
    found = pod("web", container={"ports": ports})
    found["status"] = {"podIP": run.address.ip, "phase": "Running"}
    return found


async def test_a_host_port_is_reached_on_this_machine(one_machine: Machine) -> None:
    port, number = free_ports(2)
    server = one_machine.start(pod("web", "python3", "-c", SERVER.replace("PORT", str(port)), image="python"))
    await until(lambda: "running" in state(server))
    sandbox = one_machine.host.sandbox
    assert await sandbox.publish([], host_ports(wants_port(server, number, port))) == {}
    for address in (sandbox.host_ip(), "127.0.0.1"):
        assert await answered(address, number) == f"hello from {port}"
    await sandbox.publish([], [])
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", number)


def test_a_host_port_is_asked_for_where_it_says() -> None:
    made = web_pod("10.1.2.3")
    made["spec"]["containers"][0]["ports"] = [
        {"containerPort": 80, "hostPort": 8080},
        {"containerPort": 53, "hostPort": 5353, "protocol": "UDP", "hostIP": "127.0.0.9"},
        {"containerPort": 81, "hostPort": 8081, "hostIP": "0.0.0.0"},
        {"containerPort": 82},
    ]
    assert host_ports(made) == [
        PublishedPort("", 8080, "TCP", ("10.1.2.3", 80)),
        PublishedPort("127.0.0.9", 5353, "UDP", ("10.1.2.3", 53)),
        PublishedPort("", 8081, "TCP", ("10.1.2.3", 81)),
    ]
    assert host_ports({**made, "spec": {**made["spec"], "hostNetwork": True}}) == []
    assert host_ports({**made, "status": {"phase": "Succeeded", "podIP": "10.1.2.3"}}) == []


class Listed:
    """What a cache holds."""

    def __init__(self, *objects: Json) -> None:
        self.objects = objects

    def list(self) -> list[Json]:
        return [*self.objects]

    def subscribe(self, told: object) -> None:
        return None


async def test_a_host_port_that_another_program_has_is_said_once(one_machine: Machine) -> None:
    network, (port,) = Network(one_machine), free_ports(1)
    run = network.start(pod("web", "sleep", "1000"))
    await until(lambda: "running" in state(run))
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        number = stranger.getsockname()[1]
        seen = wants_port(run, number, port)
        names = Names(Listed(seen), Listed(), [network.runtime], SystemClock())  # type: ignore[arg-type]
        keeping = asyncio.create_task(names.keep())
        await until(lambda: any(reason == "HostPortConflict" for _, reason, _ in one_machine.events))
        names.pod_changed(Change("changed", Key("default", "web"), None, seen))
        await until(lambda: not names._stale.is_set())
        keeping.cancel()
    said = [message for _, reason, message in one_machine.events if reason == "HostPortConflict"]
    assert said == [f"hostPort {number} cannot be had on this machine: Address already in use"]


async def test_two_clusters_may_have_the_same_service_address(isolated: Machine, tmp_path: Any) -> None:
    """Each listens on its own bridge only."""
    from shoal.local.nodes.sandbox.netns import NetnsSandbox

    other = NetnsSandbox(f"other@{tmp_path}")
    await other.start()
    try:
        view = service_views([service("front", 8124, 18080, "10.96.7.8")], [web_pod("10.1.2.3")])
        for sandbox in (isolated.host.sandbox, other):
            await sandbox.publish(view)
            assert sandbox._relayed.listens(RelayPlace("10.96.7.8", 8124))  # type: ignore[attr-defined]
    finally:
        await other.stop()
    assert json.dumps(isolated.host.sandbox.service_addresses) == '{"10.96.7.8": "10.96.7.8"}'
