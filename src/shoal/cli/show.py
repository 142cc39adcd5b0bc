"""How commands print: a table as kubectl users know it, or JSON and YAML for programs.

Text from objects is shown, never obeyed: control characters are replaced, so that a name or message cannot drive the
terminal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import click

_KIBIBYTES = re.compile(r"(?<![\w.-])(\d{4,})Ki\b")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """The text with control characters made visible."""
    return text if text.isprintable() else _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def sized(text: str) -> str:
    """The text with amounts of memory in the unit of their size: `2G` for `1953125Ki`, `1.2Gi` for `1293722Ki`."""
    return text if "Ki" not in text else _KIBIBYTES.sub(lambda match: _sized(int(match[1]) * 1024), text)


def _sized(size: int) -> str:
    for unit, length in (("T", 10**12), ("G", 10**9), ("M", 10**6)):
        if size % length == 0:
            return f"{size // length}{unit}"
    for unit, length in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20)):
        if size >= length:
            return f"{size / length:.1f}".removesuffix(".0") + unit
    return f"{size >> 10}Ki"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, headers: bool = True, width: int = 0) -> None:
    """Columns as wide as their content, three spaces apart; each line cut to `width`, where one is given."""
    if lines := table_lines(headings, rows, headers=headers):
        click.echo("\n".join(cut(line, width) for line in lines))


def table_lines(headings: Sequence[str], rows: Sequence[Sequence[str]], *, headers: bool = True) -> list[str]:
    clean = [row if all(map(str.isprintable, row)) else [_cell(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *clean, strict=True)]
    line = "   ".join(f"{{:<{width}}}" for width in widths).format
    return [line(*row).rstrip() for row in ([headings, *clean] if headers else clean)]


def _cell(text: str) -> str:
    return text if text.isprintable() else harmless(text).replace("\n", " ")


def cut(line: str, width: int) -> str:
    """The line, cut to the width where there is one."""
    return line if not width or len(line) <= width else line[: max(1, width - 1)] + "…"


def document(value: Any, form: str) -> None:
    """JSON, YAML, or what a template makes of it."""
    import msgspec

    if form.startswith("jsonpath="):
        from shoal.cli.templates import rendered

        text = rendered(form.removeprefix("jsonpath="), value)
        click.echo(harmless(text) if sys.stdout.isatty() else text, nl=False)
    elif form == "yaml":
        click.echo(msgspec.yaml.encode(value).decode().rstrip())
    else:
        click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def length(seconds: float) -> str:
    """`3.2s`, `47s`, `5m10s`, `3h20m`, `2d4h`."""
    if seconds < 10:
        return f"{seconds:.1f}s".replace(".0s", "s")
    whole = round(seconds)
    for unit, size, small, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part}{small}"
    return f"{whole}s"


def age(moment: int, now: int) -> str:
    """`47s`, `5m`, `3h`, `2d`."""
    seconds = max(0, (now - moment) // 1_000_000)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
