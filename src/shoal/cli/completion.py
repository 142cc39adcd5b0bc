"""`shoal completion SHELL`: the script that lets a shell complete commands, flags and names of gangs.

kubectl asks the program `kubectl_complete-shoal` for those of `kubectl shoal`, in the form that its own have.
"""

from __future__ import annotations

import sys

import click

SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog="\b\nExamples:\n  shoal completion bash > ~/.local/share/bash-completion/completions/shoal"
    "\n  shoal completion fish > ~/.config/fish/completions/shoal.fish"
)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    from shoal.cli.main import shoal

    found = get_completion_class(shell)
    assert found is not None  # click knows all of SHELLS
    completion = found(shoal, {}, "shoal", "_SHOAL_COMPLETE")
    click.echo(completion.source_template % completion.source_vars())


FILES_TOO = 0
NO_FILES = 4
"""What the shell does beside it, as cobra numbers it."""


def kubectl_complete(arguments: list[str] | None = None) -> None:
    """Entry point: the words of a command line after `kubectl shoal`, the last of them not whole yet."""
    from click.shell_completion import CompletionItem, ShellComplete

    from shoal.cli.main import shoal

    *words, incomplete = (sys.argv[1:] if arguments is None else arguments) or [""]
    found: list[CompletionItem] = ShellComplete(shoal, {}, "shoal", "_SHOAL_COMPLETE").get_completions(
        words, incomplete
    )
    for one in found:
        if one.type == "plain":
            click.echo(f"{one.value}\t{one.help}" if one.help else one.value)
    click.echo(f":{FILES_TOO if any(one.type in ('file', 'dir') for one in found) else NO_FILES}")
