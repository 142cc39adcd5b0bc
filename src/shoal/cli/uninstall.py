"""`shoal uninstall`: take Shoal's controller off a cluster. Users' objects, and the kinds they are of, stay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import msgspec

from shoal.api.kinds import DEPLOYMENT
from shoal.cli import choices
from shoal.cli.install_values import PARTS
from shoal.cli.install_workload import NAME
from shoal.cli.reach import Where, cluster_options, reach
from shoal.kube.client import Client
from shoal.kube.errors import NotFound


@click.command(epilog="\b\nExamples:\n  shoal uninstall\n  shoal uninstall --crds --yes")
@click.option("--namespace", default="shoal-system", show_default=True, callback=choices.dns_label)
@click.option("--crds", is_flag=True, help="Also delete the CRDs, and with them every object of these kinds.")
@click.option("--yes", is_flag=True, help="Do not ask before deleting kinds.")
@click.option(
    "--release",
    "release_only",
    is_flag=True,
    help="Only stop the controller and take its finalizers off users' objects; Helm deletes the rest.",
)
@cluster_options
def command(
    namespace: str,
    crds: bool,
    yes: bool,
    release_only: bool,
    kubeconfig: Path | None,
    context: str | None,
    name: str | None,
) -> None:
    """Remove the controller and its rights. What it started goes on running."""
    if release_only:
        asyncio.run(_release(namespace, (kubeconfig, context, name)))
        return
    if crds and not yes:
        click.confirm(
            "Deleting the kinds deletes every AppWrapper, RayCluster and RayJob on the cluster. Go on?", abort=True
        )
    asyncio.run(_remove(namespace, crds, (kubeconfig, context, name)))


class _Installed(msgspec.Struct, frozen=True):
    """What the installed controller runs, and for which namespaces; nothing where none is installed."""

    parts: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()


async def _installed(client: Client, namespace: str) -> _Installed:
    try:
        stored = await client.get(DEPLOYMENT, NAME, namespace)
    except NotFound:
        return _Installed()
    command = [str(one) for one in stored["spec"]["template"]["spec"]["containers"][0].get("command") or []]
    return _Installed(_listed(command, "--only") or PARTS, _listed(command, "--watch-namespace"))


def _listed(command: list[str], option: str) -> tuple[str, ...]:
    found = [one.partition("=")[2] for one in command if one.startswith(f"{option}=")]
    return tuple(found[-1].split(",")) if found else ()


async def _release(namespace: str, where: Where) -> None:
    from shoal.cli.releasing import stop

    async with reach(*where) as client:
        installed = await _installed(client, namespace)
        count = await stop(client, namespace, installed.parts, installed.namespaces)
    click.echo(f"the controller has stopped; {count} objects released from its finalizers")


async def _remove(namespace: str, crds: bool, where: Where) -> None:
    from shoal.cli.install_values import Values
    from shoal.cli.installation import objects
    from shoal.cli.releasing import clear, release
    from shoal.kube.discovery import Discovery

    keep = {"Namespace"} if crds else {"Namespace", "CustomResourceDefinition"}
    async with reach(*where) as client:
        kinds = Discovery(client)
        installed = await _installed(client, namespace)
        parts = installed.parts or (PARTS if crds else ())
        everything = Values(
            legacy=True,
            network_policy=True,
            service_monitor=True,
            page_url="https://page",
            visibility=True,
            only=("appwrapper", "queues", "ray", "clusters"),
            certificates="cert-manager",
            namespaces=installed.namespaces,
        )
        for obj in reversed(objects(everything, namespace=namespace)):
            kind = await kinds.kind_of(obj["apiVersion"], obj["kind"])
            if obj["kind"] == "Namespace":  # by now the controller has no rights
                count = await release(client, parts)
                await clear(client, namespace)
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
