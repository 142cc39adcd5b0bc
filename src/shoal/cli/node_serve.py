"""`shoal node serve`: the node agent alone, for any API server. Pods bound to its nodes run here, real or simulated.

Someone else schedules and controls: a real control plane, or another `shoal up`. Logs and exec of such pods go through
a kubelet's port that this agent does not have; everything else is as on the embedded cluster.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import platform
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from shoal.cli.choices import flag
from shoal.cli.hosting import make_agent
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.kubeconfig import Target, resolve, transport
from shoal.local import machine
from shoal.local.agent import NodeKeeper, NodeShape
from shoal.local.home import Home
from shoal.local.images import ImageTable, parse_mapping
from shoal.local.runtime.limits import find_limits
from shoal.local.sandbox.choose import choose_sandbox
from shoal.local.settings import parse_node

F = TypeVar("F", bound=Callable[..., Any])

STOP_GRACE = 10.0


def serving(command: F) -> F:
    """The options of an agent."""
    for option in reversed(
        [
            click.option(
                "--name",
                "agent",
                default="shoal-agent",
                show_default=True,
                help="Name of this agent; its state is kept under it.",
            ),
            click.option(
                "--node", "nodes", multiple=True, metavar="cpu=8,memory=16Gi[,…]", help="Default: this machine."
            ),
            click.option(
                "--runtime", type=click.Choice(["process", "simulated"]), default="process", show_default=True
            ),
            click.option(
                "--sandbox", type=click.Choice(["auto", "netns", "loopback"]), default="auto", show_default=True
            ),
            click.option("--image", "images", multiple=True, metavar="NAME=TARGET", help="What an image means here."),
        ]
    ):
        command = option(command)
    return command


def start(
    kubeconfig: Path, name: str, nodes: tuple[str, ...], runtime: str, sandbox: str, images: tuple[str, ...]
) -> None:
    from shoal.cli.cluster import quiet_environment, spare_descriptors

    shapes: list[NodeShape] = []
    with flag("--node"):
        for text in nodes:
            shapes += parse_node(text, runtime, taken=len(shapes))  # type: ignore[arg-type]
    if not shapes:
        shapes = [NodeShape(name=platform.node().lower(), capacity=machine.capacity(), runtime=runtime)]  # type: ignore[arg-type]
    with flag("--image"):
        table = ImageTable(dict(parse_mapping(text) for text in images))
    with flag("--name"):
        home = Home(name)
    found = home.running()
    if found is not None:
        raise ShoalError(f"an agent {name} is already running (pid {found[0].pid}); choose another with --name")
    home.create()
    spare_descriptors()
    quiet_environment()
    logging.basicConfig(filename=home.log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_serve(resolve(kubeconfig), home, shapes, sandbox, table))
    finally:
        home.forget_running()


async def _serve(target: Target, home: Home, shapes: list[NodeShape], wanted: str, images: ImageTable) -> None:
    channel, clock = transport(target), SystemClock()
    client = Client(channel, manager="shoal-node")
    api = _address(target.cluster.server)
    sandbox = choose_sandbox(wanted, home.identity, api, home.runtime / "pods")
    keeper = NodeKeeper(client, home.name, sandbox.host_ip(), clock)
    agent = make_agent(client, home, keeper, sandbox, api, _authority(target), images, clock)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
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
    finally:
        await sandbox.stop()
        find_limits(home.identity).release()
        await channel.close()


def _address(server: str) -> tuple[str, int] | None:
    """Where pods reach the API server."""
    parts = urlsplit(server)
    if not parts.hostname:
        return None
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    return host, parts.port or (443 if parts.scheme == "https" else 80)


def _authority(target: Target) -> str:
    """The certificate that pods are given to know the API server by."""
    entry = target.cluster
    if entry.certificate_authority_data:
        return base64.b64decode(entry.certificate_authority_data).decode()
    if entry.certificate_authority:
        return (target.cluster_directory / entry.certificate_authority).read_text()
    return ""
