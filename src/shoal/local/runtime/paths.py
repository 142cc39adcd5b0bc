"""Mount paths in texts, where they cannot be mounted: replaced by the directories behind them."""

from __future__ import annotations

import re


def mapped(text: str, paths: list[tuple[str, str]]) -> str:
    """Every mount path in a text, whole components only, by the directory behind it; the longest match wins."""
    for target, source in sorted(paths, key=lambda pair: -len(pair[0])):
        text = re.sub(rf"(?<![\w.\-/]){re.escape(target)}(?![\w.\-])", source.replace("\\", r"\\"), text)
    return text
