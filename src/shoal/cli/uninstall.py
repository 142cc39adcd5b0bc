"""`shoal uninstall`: take Shoal's controller off a cluster. Users' objects, and the kinds they are of, stay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from shoal.api.kinds import DEPLOYMENT
from shoal.cli import choices
from shoal.cli.install_values import PARTS
from shoal.cli.install_workload import NAME
from shoal.cli.reach import reach
from shoal.kube.client import Client
from shoal.kube.errors import NotFound


@click.command(epilog="\b\nExamples:\n  shoal uninstall\n  shoal uninstall --crds --yes")
@click.option("--namespace", default="shoal-system", show_default=True, callback=choices.dns_label)
@click.option("--crds", is_flag=True, help="Also delete the CRDs, and with them every object of these kinds.")
@click.option("--yes", is_flag=True, help="Do not ask before deleting kinds.")
@click.option("--kubeconfig", type=click.Path(path_type=Path))
@click.option("--context")
def command(namespace: str, crds: bool, yes: bool, kubeconfig: Path | None, context: str | None) -> None:
    """Remove the controller and its rights. What it started goes on running."""
    if crds and not yes:
        click.confirm(
            "Deleting the kinds deletes every AppWrapper, RayCluster and RayJob on the cluster. Go on?", abort=True
        )
    asyncio.run(_remove(namespace, crds, kubeconfig, context))


async def _parts(client: Client, namespace: str) -> tuple[str, ...]:
    """What the installed controller runs; nothing where none is installed."""
    try:
        stored = await client.get(DEPLOYMENT, NAME, namespace)
    except NotFound:
        return ()
    command = stored["spec"]["template"]["spec"]["containers"][0].get("command") or []
    only = [str(one).removeprefix("--only=") for one in command if str(one).startswith("--only=")]
    return tuple(only[-1].split(",")) if only else PARTS


async def _remove(namespace: str, crds: bool, kubeconfig: Path | None, context: str | None) -> None:
    from shoal.cli.install_values import Values
    from shoal.cli.installation import objects
    from shoal.cli.releasing import release
    from shoal.kube.discovery import Discovery

    keep = {"Namespace"} if crds else {"Namespace", "CustomResourceDefinition"}
    async with reach(kubeconfig, context, None) as client:
        kinds = Discovery(client)
        parts = await _parts(client, namespace) or (PARTS if crds else ())
        everything = Values(legacy=True, network_policy=True, service_monitor=True)
        for obj in reversed(objects(everything, namespace=namespace)):
            kind = await kinds.kind_of(obj["apiVersion"], obj["kind"])
            if obj["kind"] == "Namespace":  # by now the controller has no rights
                count = await release(client, parts)
                if count:
                    click.echo(f"{count} objects released from finalizers that only the controller would remove")
            if obj["kind"] in keep or kind is None:
                continue
            metadata = obj["metadata"]
            try:
                await client.delete(kind, metadata["name"], metadata.get("namespace"))
            except NotFound:
                continue
            click.echo(f"{obj['kind'].lower()}/{metadata['name']} deleted")
    if not crds:
        click.echo("the kinds and users' objects stay; delete them with --crds")
