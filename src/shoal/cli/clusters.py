"""`shoal cluster`: the clusters that take gangs from this one: added, listed, cordoned, drained, forgotten, removed.

Writes what an administrator could write by hand: a Secret with a kubeconfig, a MultiKueueCluster, and the check by
which queues give their gangs away. The controller does the rest.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from pathlib import Path
from typing import Any

import click

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.labels import KUEUE_MULTIKUEUE
from shoal.api.meta import Json
from shoal.api.objects import annotation
from shoal.api.times import parse_time
from shoal.cli import show
from shoal.cli.choices import flag
from shoal.cli.reach import cluster_options, output_option, reach
from shoal.errors import BadInput, ShoalError
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import AlreadyExists, NotFound

NAMESPACE = "shoal-system"
PATIENCE = 60.0
_API = "kueue.x-k8s.io/v1beta2"


@click.group(short_help="Add, list, cordon, drain, forget or remove clusters that take gangs from this one.")
def command() -> None:
    """Clusters that take gangs from this one."""


def system_option(function: Any) -> Any:
    return click.option(
        "--system-namespace",
        "system",
        default=NAMESPACE,
        show_default=True,
        help="Namespace of the Secrets that hold the members' kubeconfigs.",
    )(function)


@command.command(
    epilog="\b\nExamples:\n  shoal cluster add west --from west.kubeconfig --check everywhere"
    "\n  shoal cluster add a --from $(shoal kubeconfig --name a) --check everywhere --name hub"
)
@click.argument("member")
@click.option(
    "--from",
    "source",
    required=True,
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="Kubeconfig of the member. Shoal acts there with its credential.",
)
@click.option("--from-context", help="A context of that kubeconfig.")
@click.option("--check", help="Also name it in this admission check and its MultiKueueConfig, made where they are not.")
@click.option("--accept", multiple=True, metavar="NAMESPACE", help="Let this namespace of the member take our gangs.")
@system_option
@cluster_options
def add(
    member: str,
    source: Path,
    from_context: str | None,
    check: str | None,
    accept: tuple[str, ...],
    system: str,
    kubeconfig: Path | None,
    context: str | None,
    name: str | None,
) -> None:
    """Let MEMBER take gangs; done again, it gets the new credential."""
    with flag("--from"):
        content = content_of(source, from_context)
    asyncio.run(_add(member, content, check, accept, system, (kubeconfig, context, name)))


@command.command("list", epilog="\b\nExamples:\n  shoal cluster list\n  shoal cluster list --name hub -o json")
@output_option
@cluster_options
def list_members(output: str, kubeconfig: Path | None, context: str | None, name: str | None) -> None:
    """Show which clusters answer, and how many gangs each has."""
    rows = asyncio.run(member_rows((kubeconfig, context, name)))
    if output != "table":
        show.document(rows, output)
        return
    if not rows:
        click.echo("no other clusters; add one with: shoal cluster add", err=True)
        return
    now = SystemClock().now()
    show.table(
        ("NAME", "CONNECTED", "SINCE", "GANGS", "MESSAGE"),
        [
            (
                row["name"],
                row["connected"],
                show.age(parse_time(row["since"]), now) if row["since"] else "",
                str(row["gangs"]),
                "; ".join(filter(None, (_ordered(row), row["message"]))),
            )
            for row in rows
        ],
    )


@command.command(epilog="\b\nExamples:\n  shoal cluster remove west")
@click.argument("member")
@click.option("--force", is_flag=True, help="Remove the cluster even while gangs are in it: they go back to the queue.")
@system_option
@cluster_options
def remove(
    member: str, force: bool, system: str, kubeconfig: Path | None, context: str | None, name: str | None
) -> None:
    """Give MEMBER no more gangs and forget its credential."""
    asyncio.run(_remove(member, force, system, (kubeconfig, context, name)))


@command.command(epilog="\b\nExamples:\n  shoal cluster cordon west\n  shoal cluster cordon west --name hub")
@click.argument("member")
@cluster_options
def cordon(member: str, kubeconfig: Path | None, context: str | None, name: str | None) -> None:
    """Give MEMBER no new gangs. What runs there runs on."""
    from shoal.cli import draining

    asyncio.run(draining.cordon(member, (kubeconfig, context, name), cordoned=True))
    click.echo(f"cluster {member} cordoned")


@command.command(epilog="\b\nExamples:\n  shoal cluster uncordon west")
@click.argument("member")
@cluster_options
def uncordon(member: str, kubeconfig: Path | None, context: str | None, name: str | None) -> None:
    """Let MEMBER take gangs again."""
    from shoal.cli import draining

    asyncio.run(draining.cordon(member, (kubeconfig, context, name), cordoned=False))
    click.echo(f"cluster {member} uncordoned")


@command.command(epilog="\b\nExamples:\n  shoal cluster drain west\n  shoal cluster drain west --move --timeout 3600")
@click.argument("member")
@click.option(
    "--move", is_flag=True, help="Move gangs to other clusters, one after the other, each once there is room."
)
@click.option("--timeout", type=float, metavar="SECONDS", help="Stop waiting after this time; MEMBER stays cordoned.")
@cluster_options
def drain(
    member: str, move: bool, timeout: float | None, kubeconfig: Path | None, context: str | None, name: str | None
) -> None:
    """Cordon MEMBER and wait until no gang is in it. Without --move it stops none; Ctrl-C only stops the waiting."""
    from shoal.cli import draining

    asyncio.run(draining.drain(member, timeout, (kubeconfig, context, name), move=move))


@command.command(epilog="\b\nExamples:\n  shoal cluster forget west")
@click.argument("member")
@cluster_options
def forget(member: str, kubeconfig: Path | None, context: str | None, name: str | None) -> None:
    """Say that MEMBER, which does not answer, runs nothing any more: its gangs go back to the queue at once.

    Only you can know that. If MEMBER still runs, its gangs run twice until it answers again.
    """
    from shoal.cli import draining

    asyncio.run(draining.forget(member, (kubeconfig, context, name)))
    click.echo(f"cluster {member} forgotten: its gangs go back to the queue")


@command.command(epilog="\b\nExamples:\n  shoal cluster why west\n  shoal cluster why west --name hub -o json")
@click.argument("member")
@output_option
@cluster_options
def why(member: str, output: str, kubeconfig: Path | None, context: str | None, name: str | None) -> None:
    """Say why MEMBER does not take the gangs that wait."""
    from shoal.cli import draining

    found, reasons = asyncio.run(draining.why(member, (kubeconfig, context, name)))
    condition: Json = next((one for one in (found.get("status") or {}).get("conditions") or ()), {})
    state = condition.get("message") or "no controller has looked at it yet"
    if output != "table":
        rows = [{"gang": gang, "reason": reason} for gang, reason in reasons]
        show.document({"name": member, "state": state, "waiting": rows}, output)
        return
    click.echo(f"cluster {member}: {state}")
    if reasons:
        show.table(("GANG", "REASON"), reasons)
    else:
        click.echo("no gang waits because of it")


@command.command(epilog="\b\nExamples:\n  shoal cluster role | kubectl --context west apply -f -")
@click.option(
    "--sessions", is_flag=True, help="Also what shoal session and kubectl port-forward at the hub need: ports of pods, "
    "and Secrets, for the token of a Ray cluster."
)  # fmt: skip
def role(sessions: bool) -> None:
    """Print the roles that a member's credential needs: what a hub does there, and no more.

    The ClusterRole for all of it; the Role in Shoal's namespace is for gangs whose loss policy is move alone.
    """
    from shoal.cli.installation import member_lease_rules, member_rules

    made = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "shoal-hub"}}
    show.document({**made, "rules": member_rules(sessions=sessions)}, "yaml")
    click.echo("---")
    own = {"name": "shoal-hub", "namespace": NAMESPACE}
    show.document({**made, "kind": "Role", "metadata": own, "rules": member_lease_rules()}, "yaml")


# --- add


def content_of(source: Path, context: str | None) -> bytes:
    """The credential as the controller will accept it; what it would refuse is refused here."""
    from shoal.controllers.multicluster.credentials import check
    from shoal.kube import kubeconfig

    target = kubeconfig.resolve(source, context)
    if target.user.exec is not None:
        raise BadInput(f"{source} runs a command for its credential: name one with a token or a certificate")
    content = kubeconfig.inlined(target)
    check(kubeconfig.parse(content, str(source)))
    return content


async def register(client: Client, member: str, content: bytes, system: str) -> None:
    """The Secret with the member's kubeconfig, and its MultiKueueCluster; of those that are there, the credential."""
    secret = f"{member}-kubeconfig"
    data = {"kubeconfig": base64.b64encode(content).decode()}
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret, "namespace": system}, "data": data}
    if not await _make(client, kinds.SECRET, made):
        await client.patch(kinds.SECRET, secret, system, {"data": data})
    source = {"kubeConfig": {"location": secret, "locationType": "Secret"}}
    made = {
        "apiVersion": _API,
        "kind": "MultiKueueCluster",
        "metadata": {"name": member},
        "spec": {"clusterSource": source},
    }
    if not await _make(client, kinds.MULTIKUEUE_CLUSTER, made):
        await client.patch(kinds.MULTIKUEUE_CLUSTER, member, None, {"spec": {"clusterSource": source}})


async def _add(
    member: str, content: bytes, check: str | None, accept: tuple[str, ...], system: str, hub: tuple[Any, ...]
) -> None:
    from shoal.kube import kubeconfig

    async with reach(*hub) as client:
        transport = kubeconfig.transport(kubeconfig.parse(content, f"the kubeconfig of {member}"))
        try:
            await _accept(client, Client(transport, manager="shoal-cli"), member, accept)
        finally:
            await transport.close()
        await _make(client, kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": system}})
        await register(client, member, content, system)
        if check:
            await _name_in(client, check, member)
    click.echo(f"cluster {member} added; shoal cluster list shows whether it answers")


async def _accept(hub: Client, there: Client, member: str, accept: tuple[str, ...]) -> None:
    from shoal.controllers.multicluster.words import HUB_NAMESPACE

    for namespace in accept:
        ours = (await hub.get(kinds.NAMESPACE, namespace))["metadata"]["uid"]
        change = {"metadata": {"annotations": {HUB_NAMESPACE: ours}}}
        try:
            await there.patch(kinds.NAMESPACE, namespace, None, change)
        except NotFound:
            raise ShoalError(f"{member} has no namespace {namespace}: create it there first") from None


async def _name_in(client: Client, check: str, member: str) -> None:
    await name_in_config(client, check, member)
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": check}
    spec: Json = {"controllerName": KUEUE_MULTIKUEUE, "parameters": parameters}
    made = {"apiVersion": _API, "kind": "AdmissionCheck", "metadata": {"name": check}, "spec": spec}
    if not await _make(client, kinds.ADMISSION_CHECK, made):
        found = await client.get(kinds.ADMISSION_CHECK, check)
        if (found.get("spec") or {}).get("controllerName") != KUEUE_MULTIKUEUE:
            raise ShoalError(f"admission check {check} belongs to another controller; choose another name")


async def name_in_config(client: Client, config: str, member: str) -> None:
    """Add the member to this MultiKueueConfig, which is made where there is none."""
    spec: Json = {"clusters": [member]}
    made = {"apiVersion": _API, "kind": "MultiKueueConfig", "metadata": {"name": config}, "spec": spec}
    if not await _make(client, kinds.MULTIKUEUE_CONFIG, made):
        found = await client.get(kinds.MULTIKUEUE_CONFIG, config)
        names = list((found.get("spec") or {}).get("clusters") or ())
        if member not in names:
            await client.patch(kinds.MULTIKUEUE_CONFIG, config, None, {"spec": {"clusters": [*names, member]}})


async def _make(client: Client, kind: Kind, body: Json) -> bool:
    """False where it is there already."""
    try:
        await client.create(kind, body, body["metadata"].get("namespace"))
    except AlreadyExists:
        return False
    return True


# --- list and remove


async def member_rows(hub: tuple[Any, ...]) -> list[dict[str, Any]]:
    from shoal.controllers.multicluster.words import CORDONED, DRAINING

    async with reach(*hub) as client:
        clusters = await client.list(kinds.MULTIKUEUE_CLUSTER)
        gangs = await _gangs(client)
    rows = []
    for cluster in sorted(clusters, key=lambda one: one["metadata"]["name"]):
        conditions = (cluster.get("status") or {}).get("conditions") or ()
        active: Json = next((one for one in conditions if one["type"] == "Active"), {})
        unknown = [one["message"] for one in conditions if one["type"] == "UnknownCopies" and one["status"] == "True"]
        name = cluster["metadata"]["name"]
        rows.append(
            {
                "name": name,
                "connected": active.get("status", "Unknown"),
                "since": active.get("lastTransitionTime", ""),
                "gangs": gangs.get(name, 0),
                "cordoned": bool(annotation(cluster, CORDONED)),
                "draining": annotation(cluster, DRAINING),
                "message": "; ".join([active.get("message", "no controller has looked at it yet"), *unknown]),
            }
        )
    return rows


def _ordered(row: dict[str, Any]) -> str:
    """What an administrator said of it."""
    if not row["cordoned"]:
        return ""
    return "cordoned, its gangs move away" if row["draining"] == "move" else "cordoned"


async def _gangs(client: Client) -> dict[str, int]:
    """How many gangs that have not ended each cluster has."""
    from shoal.cli.draining import cluster_of, served

    found = [gang for kind in await served(client) for gang in await client.list(kind)]
    return Counter(name for gang in found if (name := cluster_of(gang)))


async def _remove(member: str, force: bool, system: str, hub: tuple[Any, ...]) -> None:
    async with reach(*hub) as client:
        count = (await _gangs(client)).get(member, 0)
        if count and not force:
            raise ShoalError(f"{member} still has gangs ({count}): wait for their end, or send them back with --force")
        for config in await client.list(kinds.MULTIKUEUE_CONFIG):
            names = list((config.get("spec") or {}).get("clusters") or ())
            left = [one for one in names if one != member]
            if not left and names:
                click.echo(f"{config['metadata']['name']} names no other cluster and stays as it is", err=True)
            elif left != names:
                change = {"spec": {"clusters": left}}
                await client.patch(kinds.MULTIKUEUE_CONFIG, config["metadata"]["name"], None, change)
        try:
            await client.delete(kinds.MULTIKUEUE_CLUSTER, member)
        except NotFound:
            raise ShoalError(f"there is no cluster {member}; shoal cluster list names those that there are") from None
        if not await _is_gone(client, member):
            raise ShoalError(f"{member} still holds gangs that are being removed; its Secret stays until they are gone")
        try:
            await client.delete(kinds.SECRET, f"{member}-kubeconfig", system)
        except NotFound:
            pass
    click.echo(f"cluster {member} removed")


async def _is_gone(client: Client, member: str) -> bool:
    """The controller lets it go once nothing of ours is there."""
    try:
        found = await client.get(kinds.MULTIKUEUE_CLUSTER, member)
        watch = client.watch(
            kinds.MULTIKUEUE_CLUSTER,
            field_selector=f"metadata.name={member}",
            resource_version=found["metadata"]["resourceVersion"],
        )
        async with asyncio.timeout(PATIENCE):
            async for event in watch:
                if event.type == "DELETED":
                    return True
    except NotFound:
        return True
    except TimeoutError:
        return False
    return False
