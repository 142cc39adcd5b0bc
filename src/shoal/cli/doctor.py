"""`shoal doctor`: what this machine allows, line by line, and what to do about the rest."""

from __future__ import annotations

import sys

import click

from shoal.cli.show import document
from shoal.local.machine import Finding, findings


@click.command(
    short_help="Check what this machine allows, and say what to do.",
    epilog="\b\nExamples:\n  shoal doctor\n  shoal doctor -o json",
)
@click.option("-o", "--output", "form", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
def command(form: str) -> None:
    """Check this machine. Exits 1 when something that Shoal cannot do without is missing."""
    found = findings()
    if form == "text":
        _print(found)
    else:
        document(found, form)
    if any(finding.required and not finding.good for finding in found):
        sys.exit(1)


def _print(found: list[Finding]) -> None:
    width = max(len(finding.name) for finding in found)
    for finding in found:
        mark = "ok  " if finding.good else "FAIL" if finding.required else "note"
        click.echo(f"{mark}  {finding.name:<{width}}  {finding.detail}")
        if not finding.good and finding.advice:
            click.echo(f"{'':6}{'':{width}}  {finding.advice}")
