"""Which files of a working directory stay at home: the patterns of .gitignore and .rayignore, read as git reads them.

Pure; called by `packing` for every file. `!` takes a file back, a trailing `/` means folders alone, a `/` elsewhere
ties the pattern to the folder of its file, `**` spans folders. The last pattern that fits decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

FILES = (".gitignore", ".rayignore")
ALWAYS = (
    ".git/", ".hg/", ".svn/", "__pycache__/", "*.pyc", ".venv/", "venv/", "node_modules/", ".mypy_cache/",
    ".pytest_cache/", ".ruff_cache/", ".ipynb_checkpoints/", ".DS_Store",
)  # fmt: skip


class IgnoreRule(msgspec.Struct, frozen=True):
    """One pattern. `base` is the folder of the file that has it, with a trailing slash or empty."""

    base: str
    pattern: re.Pattern[str]
    negated: bool
    folders_only: bool


def read(text: str, base: str = "") -> list[IgnoreRule]:
    """The rules of one ignore file; lines that cannot be read as patterns are passed over."""
    return [rule for line in text.splitlines() if (rule := _rule(line, base)) is not None]


def is_ignored(path: str, *, folder: bool, rules: Iterable[IgnoreRule]) -> bool:
    """`path` is relative to the working directory, with slashes."""
    ignored = False
    for rule in rules:
        if rule.folders_only and not folder:
            continue
        if path.startswith(rule.base) and rule.pattern.fullmatch(path[len(rule.base) :]):
            ignored = not rule.negated
    return ignored


def _rule(line: str, base: str) -> IgnoreRule | None:
    line = re.sub(r"(?<!\\) +$", "", line)
    if not line or line.startswith("#"):
        return None
    negated = line.startswith("!")
    line = line[1:] if negated else line
    folders_only = line.endswith("/")
    line = line.rstrip("/")
    if not line:
        return None
    anchored = "/" in line
    body = _expression(line.removeprefix("/"))
    try:
        pattern = re.compile(body if anchored else f"(?:.*/)?{body}")
    except re.error:
        return None
    return IgnoreRule(base, pattern, negated, folders_only)


def _expression(glob: str) -> str:
    parts, index = [], 0
    while index < len(glob):
        if glob.startswith("**/", index):
            parts.append("(?:.*/)?")
            index += 3
        elif glob.startswith("**", index):
            parts.append(".*")
            index += 2
        elif glob[index] == "*":
            parts.append("[^/]*")
            index += 1
        elif glob[index] == "?":
            parts.append("[^/]")
            index += 1
        elif glob[index] == "[" and (end := glob.find("]", index + 2)) > 0:
            inner = glob[index + 1 : end].replace("\\", "\\\\")
            parts.append(f"[{'^' + inner[1:] if inner[0] in '!^' else inner}]")
            index = end + 1
        else:
            index += glob[index] == "\\" and index + 1 < len(glob)
            parts.append(re.escape(glob[index]))
            index += 1
    return "".join(parts)
