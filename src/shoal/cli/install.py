"""`shoal install`: put Shoal on a Kubernetes cluster, or print what that would be."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import click

from shoal.api.meta import Json
from shoal.cli import choices, show
from shoal.cli.choices import set_option
from shoal.cli.parts import chosen_parts
from shoal.cli.reach import Where, cluster_options, reach
from shoal.errors import ShoalError
from shoal.version import __version__


@click.command(
    epilog="\b\nExamples:\n  shoal install --dry-run -o yaml\n  shoal install --image registry.example/shoal:0.1.0\n"
    "  shoal install --image registry.example/shoal:0.1.0 --only appwrapper --dry-run > shoal.yaml\n"
    "  shoal install --values values.yaml"
)
@click.option(
    "--values",
    "values_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Values as the chart in charts/shoal takes them; options given here win over them.",
)
@click.option("--image", required=False, help="Image with the `shoal` command, for the controller's Deployment.")
@click.option("--namespace", default="shoal-system", show_default=True, callback=choices.dns_label)
@click.option("--only", help="Which controllers to run, as `shoal controller --only`.")
@click.option("--supply", type=click.Choice(["fit", "aggregate"]), help="As `shoal controller --supply`.")
@click.option("--preemption", is_flag=True, help="As `shoal controller --preemption`.")
@set_option
@choices.kueue_config_option
@click.option("--legacy", is_flag=True, help="Also the legacy groups mcad.ibm.com and ibm.com.")
@click.option(
    "--replicas",
    type=click.IntRange(0),
    help="Controller pods: one leads, the others stand by. Default: 2.",
)
@click.option(
    "--watch-namespace",
    "watched",
    callback=choices.namespaces,
    help="Look after these namespaces alone, comma-separated; rights to write end there. Default: all.",
)
@click.option(
    "--certificates",
    type=click.Choice(["own", "cert-manager"]),
    help="Of the webhooks: kept by the controller, or by a cert-manager that is installed. Default: own.",
)
@click.option(
    "--visibility",
    is_flag=True,
    help="Also Kueue's visibility API as an aggregated API and, with the part clusters, one for what runs in members.",
)
@click.option("--open-metrics", is_flag=True, help="As `shoal controller --open-metrics`.")
@click.option("--crds-only", is_flag=True, help="Install only the CRDs; run `shoal controller` elsewhere.")
@click.option(
    "--webhook-url",
    default="",
    callback=choices.webhook_address,
    help="URL at which the API server calls a controller that runs outside the cluster.",
)
@click.option("--dry-run", is_flag=True, help="Print instead of applying.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
@cluster_options
def command(
    values_file: Path | None,
    image: str | None,
    namespace: str,
    only: str | None,
    supply: str | None,
    preemption: bool,
    chosen: tuple[str, ...],
    kueue_config: Path | None,
    legacy: bool,
    replicas: int | None,
    watched: tuple[str, ...],
    certificates: Literal["own", "cert-manager"] | None,
    visibility: bool,
    open_metrics: bool,
    crds_only: bool,
    webhook_url: str,
    dry_run: bool,
    output: str,
    kubeconfig: Path | None,
    context: str | None,
    name: str | None,
) -> None:
    """Install the kinds, the rights and the controller."""
    from msgspec import structs

    from shoal.api.crds import load_crds
    from shoal.cli import install_values
    from shoal.cli.installation import objects

    with choices.flag("--values"):
        base = install_values.read(values_file) if values_file is not None else install_values.Values()
    parts = base.only
    with choices.flag("--values" if only is None else "--only"):
        parts = chosen_parts(only if only is not None else ",".join(base.only))
    image = image if image is not None else base.image or None
    if image is not None and (not image or any(char.isspace() for char in image)):
        raise click.BadParameter(f"{image!r} is no name of an image", param_hint="'--image'")
    with choices.flag("--kueue-config"):
        of_kueue = choices.of_kueue(kueue_config)
    with choices.flag("--set"):
        of_options = {**({"supply": supply} if supply else {}), **({"preemption": "true"} if preemption else {})}
        settings = choices.read(f"{name}={value}" for name, value in install_values.settings_of(base).items())
        settings = {**settings, **of_kueue.settings, **of_options, **choices.read(chosen)}
        choices.check_policy(settings.get("policy", "priority"), importable=False)
        choices.use_job_kinds(choices.queue_settings({}, settings))
    if not image and not crds_only:
        if not dry_run:
            raise ShoalError("--image says which image holds the shoal command; --crds-only installs the kinds alone")
        image = f"shoal:{__version__}"
        click.echo(f"no --image was given: the Deployment names {image}, which no cluster has by itself", err=True)
    values = structs.replace(
        base,
        image=image or "",
        only=parts,
        settings={**settings},
        legacy=legacy or base.legacy,
        replicas=base.replicas if replicas is None else replicas,
        namespaces=watched or base.namespaces,
        certificates=certificates or base.certificates,
        webhook_url=webhook_url or base.webhook_url,
        visibility=visibility or base.visibility,
        open_metrics=open_metrics or base.open_metrics,
        kube_api_qps=base.kube_api_qps or of_kueue.qps,
        kube_api_burst=base.kube_api_burst or of_kueue.burst,
    )
    with choices.flag("--watch-namespace" if watched else "--values"):
        choices.check_limits(values.namespaces, parts)
    made = load_crds(legacy=values.legacy) if crds_only else objects(values, namespace=namespace)
    if dry_run:
        _print(made, output)
        return
    asyncio.run(_apply(made, (kubeconfig, context, name)))


def _print(made: list[Json], output: str) -> None:
    if output == "json":
        show.document({"apiVersion": "v1", "kind": "List", "items": made}, "json")
        return
    for number, obj in enumerate(made):
        if number:
            click.echo("---")
        show.document(obj, "yaml")


async def _apply(made: list[Json], where: Where) -> None:
    """Server-side apply, so that a second run changes only what differs."""
    from shoal.cli import install_flow
    from shoal.kube.discovery import Discovery

    async with reach(*where) as client:
        kinds = Discovery(client)
        for obj in made:
            kind = await kinds.kind_of(obj["apiVersion"], obj["kind"])
            if kind is None and obj["apiVersion"] == install_flow.API:
                click.echo(f"{obj['kind'].lower()}/{obj['metadata']['name']} left out: the cluster serves no such kind")
                continue
            if kind is None:
                raise ShoalError(f"the cluster serves no {obj['kind']} in {obj['apiVersion']}")
            metadata = obj["metadata"]
            await client.patch(kind, metadata["name"], metadata.get("namespace"), obj, patch_type="apply", force=True)
            click.echo(f"{obj['kind'].lower()}/{metadata['name']} applied")
