"""`shoal completion SHELL`: the script that lets a shell complete commands and flags of `shoal`."""

from __future__ import annotations

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
