"""`shoal node`: nodes of a running cluster, added and removed (waiting gangs look at once); or an agent alone."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from shoal.api.kinds import NODE, POD
from shoal.cli.choices import flag, ip_address
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import NotFound
from shoal.kube.kubeconfig import load
from shoal.local.home import DEFAULT_NAME, Home
from shoal.local.settings import SANDBOXES, parse_node
from shoal.local.shapes import RuntimeName

F = TypeVar("F", bound=Callable[..., Any])


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
            click.option("--sandbox", type=click.Choice(SANDBOXES), default="auto", show_default=True),
            click.option(
                "--image",
                "images",
                multiple=True,
                metavar="NAME=TARGET",
                help="Run this image name with a known environment, its directory, or a requirements file.",
            ),
            click.option(
                "--address",
                default="",
                metavar="IP",
                callback=ip_address,
                help="Where the API server reaches this machine. Default: the address that leads to it.",
            ),
            click.option(
                "--client-ca",
                type=click.Path(dir_okay=False, exists=True, path_type=Path),
                help="CA bundle that verifies the API server's client certificate. "
                "Default: what the cluster publishes.",
            ),
        ]
    ):
        command = option(command)
    return command


class Serving(msgspec.Struct, frozen=True):
    """What the options say."""

    agent: str
    nodes: tuple[str, ...]
    runtime: RuntimeName
    sandbox: str
    images: tuple[str, ...]
    address: str
    client_ca: Path | None


def start(kubeconfig: Path, chosen: Serving) -> None:
    from shoal.cli import node_serve  # the whole agent: only for agents that serve

    node_serve.start(kubeconfig, chosen)


@click.group(
    invoke_without_command=True,
    short_help="Add, remove or serve nodes.",
    epilog="\b\nExamples:\n  shoal node add cpu=8,memory=16Gi,count=2\n  shoal node remove node-1"
    "\n  shoal node serve --kubeconfig FILE --node cpu=8,memory=16Gi",
)
@click.option("--kubeconfig", type=click.Path(dir_okay=False, path_type=Path), help="Serve this API server.")
@serving
@click.pass_context
def command(
    context: click.Context,
    /,
    kubeconfig: Path | None,
    **serving: Any,
) -> None:
    """Nodes of a running cluster. With --kubeconfig and no command: as `serve`."""
    if context.invoked_subcommand is not None:
        return
    if kubeconfig is None:
        click.echo(context.get_help())
        return
    start(kubeconfig, Serving(**serving))


@command.command()
@click.argument("nodes", nargs=-1, required=True, metavar="cpu=8,memory=16Gi[,name=…,count=…]…")
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="Name of the cluster.")
def add(nodes: tuple[str, ...], name: str) -> None:
    """Add nodes to the running cluster."""
    with flag("NODES"):
        for text in nodes:
            parse_node(text)
    asyncio.run(_add(_running(name), nodes))


@command.command()
@click.argument("nodes", nargs=-1, required=True)
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="Name of the cluster.")
def remove(nodes: tuple[str, ...], name: str) -> None:
    """Remove nodes; their pods are deleted. They stay away until `shoal up` is given --node or --config again."""
    asyncio.run(_remove(_running(name), nodes))


def _running(name: str) -> Home:
    home = Home(name)
    if home.running() is None:
        raise ShoalError(f"cluster {name} is not running; start it with: shoal up --name {name}")
    return home


async def _add(home: Home, texts: tuple[str, ...]) -> None:
    transport = load(home.kubeconfig)
    try:
        client = Client(transport, manager="shoal-node")
        nodes = await client.list(NODE)
        known = {node["metadata"]["name"] for node in nodes}
        runtime = home.remembered_runtime()
        address = next(
            (
                entry["address"]
                for node in nodes
                for entry in node["status"].get("addresses", ())
                if entry["type"] == "InternalIP"
            ),
            "127.0.0.1",
        )
        shapes = []
        for text in texts:
            taken = sum(1 for one in known if one.startswith("node-"))
            made = parse_node(text, runtime, taken)
            while any(shape.name in known for shape in made) and "name=" not in text:
                taken += 1
                made = parse_node(text, runtime, taken)
            if clash := next((shape.name for shape in made if shape.name in known), None):
                raise ShoalError(f"there is a node {clash} already; choose another name")
            known |= {shape.name for shape in made}
            shapes += made
        from shoal.local.nodes.agent import NodeKeeper

        await NodeKeeper(client, home.name, address, SystemClock()).register(shapes)
        for shape in shapes:
            click.echo(f"node/{shape.name} added")
    finally:
        await transport.close()


async def _remove(home: Home, names: tuple[str, ...]) -> None:
    transport = load(home.kubeconfig)
    try:
        client = Client(transport, manager="shoal-node")
        for name in names:
            try:
                await client.patch(NODE, name, None, {"spec": {"unschedulable": True}})
            except NotFound:
                raise ShoalError(f"there is no node {name} on {platform.node()}'s cluster {home.name}") from None
            for pod in await client.list(POD, field_selector=f"spec.nodeName={name}"):
                metadata = pod["metadata"]
                await client.delete(POD, metadata["name"], metadata["namespace"], uid=metadata["uid"])
            home.note_removed(name)
            await client.delete(NODE, name)
            click.echo(f"node/{name} removed")
    finally:
        await transport.close()


@command.command()
@click.option(
    "--kubeconfig", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The API server to serve."
)
@serving
def serve(kubeconfig: Path, **serving: Any) -> None:
    """Run the node agent alone, against any API server: pods bound to these nodes run on this machine."""
    start(kubeconfig, Serving(**serving))
