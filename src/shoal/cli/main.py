"""The `shoal` command: a table of commands, each loaded only when it is called, so that help appears at once."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any

import click

from shoal.errors import ShoalError
from shoal.version import __version__

COMMANDS = {
    "up": ("shoal.cli.up", "Start a cluster on this machine."),
    "down": ("shoal.cli.down", "Stop a cluster and everything that it runs."),
    "snapshot": ("shoal.cli.snapshot", "Save a cluster of this machine to a file, or restore it."),
    "node": ("shoal.cli.node", "Add, remove or serve nodes."),
    "cluster": ("shoal.cli.clusters", "Add, list or remove clusters that take gangs from this one."),
    "kubeconfig": ("shoal.cli.kubeconfig", "Print the path of a cluster's kubeconfig."),
    "image": ("shoal.cli.image", "List or remove environments that were built for image names."),
    "doctor": ("shoal.cli.doctor", "Check what this machine allows, and say what to do."),
    "open": ("shoal.cli.open", "Open the page: what runs, what waits and why, in a browser."),
    "submit": ("shoal.cli.submit", "Submit a manifest or a command; wait, print its log, end with its exit code."),
    "logs": ("shoal.cli.logs", "Print or follow the log of a gang, also while it waits."),
    "wait": ("shoal.cli.wait", "Wait until a gang runs or has ended, with an exit code for each outcome."),
    "session": ("shoal.cli.session", "Open a Ray cluster's dashboard and client port here, logged in."),
    "stop": ("shoal.cli.stop", "Stop gangs for good."),
    "hold": ("shoal.cli.stop:hold", "Keep gangs from running until they are released."),
    "release": ("shoal.cli.stop:release", "Let held gangs run again."),
    "rerun": ("shoal.cli.rerun", "Submit a gang again, as it was written."),
    "events": ("shoal.cli.events", "List the events of a gang and of all that it made."),
    "get": ("shoal.cli.get", "List all gangs, whatever their kind, with the reason they wait."),
    "free": ("shoal.cli.free", "Show what is left, and how large a gang would start now."),
    "top": ("shoal.cli.top", "Show gangs, queues and nodes, live."),
    "history": ("shoal.cli.history", "Show waits, runs, requeues and GPU-hours, also of gangs that are gone."),
    "check": ("shoal.cli.check", "Check manifests before you send them; every mistake with its place."),
    "why": ("shoal.cli.why", "Say why a gang runs or waits, and what would help."),
    "sample": ("shoal.cli.sample", "Print a sample manifest, or list them."),
    "completion": ("shoal.cli.completion", "Print the completion script of bash, zsh or fish."),
    "controller": ("shoal.cli.controller", "Run Shoal's controllers against any Kubernetes cluster."),
    "install": ("shoal.cli.install", "Install Shoal on a Kubernetes cluster."),
    "import": ("shoal.cli.moving", "Take over from MCAD, Kueue or KubeRay, and give back."),
    "uninstall": ("shoal.cli.uninstall", "Remove Shoal from a cluster; users' objects stay."),
}

EXAMPLES = """
\b
Examples:
  shoal up --detach                     a cluster on this machine, nothing else installed
  shoal submit -- python train.py       run a script as a Ray job, see its log
  shoal get                             what runs, what waits, and why
  shoal down                            stop everything

\b
Which cluster: --name means a cluster that `shoal up` runs on this machine; without it --kubeconfig and
--context decide, as for kubectl. `shoal up` makes its cluster the current context.
"""


class LazyGroup(click.Group):
    """Help from the table; the module of a command is imported when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute or "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


@click.group(cls=LazyGroup, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shoal")
def shoal() -> None:
    """Queue Ray workloads and start each one whole or not at all."""


def main(arguments: list[str] | None = None, program: str = "shoal") -> Any:
    """Entry point. A ShoalError becomes one line and exit code 1; anything else is a bug and shows its traceback."""
    try:
        return shoal.main(args=arguments, prog_name=program, standalone_mode=True, complete_var="_SHOAL_COMPLETE")
    except ShoalError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    finally:
        gc.freeze()  # what is left goes with the process: nothing is gone through at its end


def kubectl_plugin(arguments: list[str] | None = None) -> Any:
    """Entry point of `kubectl shoal`."""
    return main(arguments, "kubectl shoal")
