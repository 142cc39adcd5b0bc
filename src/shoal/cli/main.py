"""The `shoal` command: a table of commands, each loaded only when it is called, so that help appears at once."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from shoal import __version__
from shoal.errors import ShoalError

COMMANDS = {
    "up": ("shoal.cli.up", "Start a cluster on this machine."),
    "down": ("shoal.cli.down", "Stop a cluster and everything that it runs."),
    "node": ("shoal.cli.node", "Add, remove or serve nodes."),
    "cluster": ("shoal.cli.clusters", "Add, list or remove clusters that take gangs from this one."),
    "kubeconfig": ("shoal.cli.kubeconfig", "Print the path of a cluster's kubeconfig."),
    "doctor": ("shoal.cli.doctor", "Check what this machine allows, and say what to do."),
    "get": ("shoal.cli.get", "List all gangs, whatever their kind, with the reason they wait."),
    "check": ("shoal.cli.check", "Check manifests without a server; every mistake with its place."),
    "why": ("shoal.cli.why", "Say why a gang runs or waits, and what would help."),
    "controller": ("shoal.cli.controller", "Run Shoal's controllers against any Kubernetes cluster."),
    "install": ("shoal.cli.install", "Install Shoal on a Kubernetes cluster."),
    "uninstall": ("shoal.cli.uninstall", "Remove Shoal from a cluster; users' objects stay."),
}

EXAMPLES = """
\b
Examples:
  shoal up --detach                     a cluster on this machine, nothing else installed
  kubectl apply -f samples/appwrapper/raycluster.yaml    submit a gang
  shoal get                             what runs, what waits, and why
  shoal down                            stop everything
"""


class LazyGroup(click.Group):
    """Help from the table; the module of a command is imported when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


@click.group(cls=LazyGroup, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shoal")
def shoal() -> None:
    """Queue Ray workloads and start each one whole or not at all."""


def main(arguments: list[str] | None = None) -> Any:
    """Entry point. A ShoalError becomes one line and exit code 1; anything else is a bug and shows its traceback."""
    try:
        return shoal.main(args=arguments, prog_name="shoal", standalone_mode=True)
    except ShoalError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
