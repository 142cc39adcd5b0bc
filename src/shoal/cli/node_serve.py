"""`shoal node serve`: the node agent alone, for any API server. Pods bound to its nodes run here, real or simulated.

Another program schedules and controls: a real control plane, or another `shoal up`. That API server asks for logs, exec
and port-forward of such pods at a port of this agent, which knows it by the cluster's client authority.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import platform
import signal
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from shoal.api.kinds import CONFIG_MAP
from shoal.cli.choices import flag
from shoal.cli.hosting import make_agent
from shoal.cli.image import prepare_images
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import Forbidden, NotFound
from shoal.kube.kubeconfig import ClusterTarget, UserEntry, resolve, transport
from shoal.local import machine
from shoal.local.home import Home
from shoal.local.images import ImageTable, parse_mapping
from shoal.local.nodes.agent import NodeKeeper, NodeShape
from shoal.local.nodes.agent.kubelet import KubeletPort
from shoal.local.nodes.agent.streams import PodStreams
from shoal.local.nodes.runtime.limits import find_limits
from shoal.local.nodes.sandbox.choose import choose_sandbox
from shoal.local.settings import parse_node

if TYPE_CHECKING:
    from shoal.cli.node import Serving

STOP_GRACE = 10.0


def start(kubeconfig: Path, chosen: Serving) -> None:
    from shoal.cli.cluster import quiet_environment, spare_descriptors

    shapes: list[NodeShape] = []
    with flag("--node"):
        for text in chosen.nodes:
            shapes += parse_node(text, chosen.runtime, taken=len(shapes))
    if not shapes:
        shapes = [NodeShape(name=platform.node().lower(), capacity=machine.capacity(), runtime=chosen.runtime)]
    with flag("--image"):
        images = dict(parse_mapping(text) for text in chosen.images)
    prepare_images(images)
    table = ImageTable(images)
    with flag("--name"):
        home = Home(chosen.agent)
    found = home.running()
    if found is not None:
        raise ShoalError(f"an agent {home.name} is already running (pid {found[0].pid}); choose another with --name")
    home.create()
    spare_descriptors()
    quiet_environment()
    logging.basicConfig(filename=home.log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        given = chosen.client_ca.read_text() if chosen.client_ca is not None else ""
        asyncio.run(_serve(resolve(kubeconfig), home, shapes, chosen, table, given))
    finally:
        home.forget_running()


def _files(user: UserEntry) -> tuple[str, ...]:
    return user.client_key, user.client_certificate, user.token_file


async def _serve(
    target: ClusterTarget, home: Home, shapes: list[NodeShape], chosen: Serving, images: ImageTable, given: str
) -> None:
    channel, clock = transport(target), SystemClock()
    client = Client(channel, manager="shoal-node")
    api = _address(target.cluster.server)
    sandbox = choose_sandbox(chosen.sandbox, home.identity, api, home.runtime / "pods")
    keeper = NodeKeeper(client, home.name, sandbox.host_ip(), clock)
    held = (Path(target.source), *(target.user_directory / name for name in _files(target.user) if name))
    agent = make_agent(client, home, keeper, sandbox, api, _authority(target), images, clock, credentials=held)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    port = None
    try:
        if authority := given or await _client_authority(client):
            port = KubeletPort(client, agent, PodStreams(agent, clock), authority)
            keeper.address = chosen.address or _way_to(api)
            keeper.port = await _listening(port, keeper.address)
        await keeper.register(shapes)
        running = asyncio.create_task(agent.run())
        stopping = asyncio.create_task(stop.wait())
        home.write_running(ready=True)
        click.echo(f"serving {', '.join(shape.name for shape in shapes)} (Ctrl-C stops)")
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()  # an agent never ends by itself: say what ended it
        await agent.stop_pods(STOP_GRACE)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for shape in shapes:
            await keeper.restate(shape.name, "the node agent has stopped")
    finally:
        if port is not None:
            await port.stop()
        await sandbox.stop()
        find_limits(home.identity).release()
        await channel.close()


async def _listening(port: KubeletPort, address: str) -> int:
    try:
        return await port.start(address)
    except ssl.SSLError as error:
        raise ShoalError(f"the cluster's client authority holds no certificate ({error}); see --client-ca") from None
    except OSError as error:
        why = error.strerror or error
        raise ShoalError(f"cannot listen at {address}: {why}; name an address of this machine with --address") from None


async def _client_authority(client: Client) -> str:
    """What the API server's client certificate is signed by; empty, with a warning, when it is unknown."""
    try:
        found = await client.get(CONFIG_MAP, "extension-apiserver-authentication", "kube-system")
        if published := (found.get("data") or {}).get("client-ca-file"):
            return str(published)
        why = "the cluster publishes none"
    except (NotFound, Forbidden) as error:
        why = str(error)
    click.echo(f"warning: no logs, exec or port-forward without the cluster's client authority: {why}", err=True)
    click.echo("  name the file with --client-ca", err=True)
    return ""


def _way_to(api: tuple[str, int] | None) -> str:
    """The address of this machine from which the API server is reached. Nothing is sent for that."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(api or ("127.0.0.1", 1))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _address(server: str) -> tuple[str, int] | None:
    """Where pods reach the API server."""
    parts = urlsplit(server)
    if not parts.hostname:
        return None
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    return host, parts.port or (443 if parts.scheme == "https" else 80)


def _authority(target: ClusterTarget) -> str:
    """The certificate that pods are given to know the API server by."""
    entry = target.cluster
    if entry.certificate_authority_data:
        return base64.b64decode(entry.certificate_authority_data).decode()
    if entry.certificate_authority:
        return (target.cluster_directory / entry.certificate_authority).read_text()
    return ""
