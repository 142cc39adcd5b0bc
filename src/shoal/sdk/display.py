"""How results look in a notebook: small tables of escaped text, without widgets, scripts or styles from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Sequence


def table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Rows without a value are left out."""
    left = "style='text-align:left'"
    body = "".join(
        f"<tr><th {left}>{html.escape(name)}</th><td {left}>{html.escape(value)}</td></tr>"
        for name, value in rows
        if value
    )
    return f"<table><caption {left}><b>{html.escape(title)}</b></caption>{body}</table>"
