"""`shoal kubeconfig`: the path of a cluster's own kubeconfig, for KUBECONFIG or --kubeconfig."""

from __future__ import annotations

import click

from shoal.errors import ShoalError
from shoal.local.home import DEFAULT_NAME, Home


@click.command(
    short_help="Print the path of a cluster's kubeconfig.",
    epilog="\b\nExamples:\n  kubectl --kubeconfig $(shoal kubeconfig) get pods"
    "\n  export KUBECONFIG=$(shoal kubeconfig --name try)",
)
@click.option("--name", default=DEFAULT_NAME, show_default=True)
def command(name: str) -> None:
    """Print the path of the kubeconfig of this cluster."""
    home = Home(name)
    if not home.kubeconfig.exists():
        raise ShoalError(f"cluster {name} has no kubeconfig; start it with: shoal up --name {name}")
    click.echo(str(home.kubeconfig))
