"""Every text of ours that a person can read, collected from the source into tests/texts.txt so that all can be read
together: `make texts` writes the list.

Collected are the help of commands and options, what commands print, errors, events, log lines, and, as `text`, every
other text of three words or more that is not a docstring: conditions, explanations, warnings. What is filled in at run
time reads as `…`. Texts that Kubernetes, Kueue, KubeRay or MCAD word are in the list, too: the source does not tell
them apart.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "shoal"
LIST = Path(__file__).resolve().parent / "texts.txt"
COMMAND = "make texts"
FORBIDDEN = re.compile(r"\b(who|whom|whoever|nobody|anew)\b", re.IGNORECASE)
_SPOKEN = re.compile(r"[A-Za-z]{2,}")
_CODE = re.compile(r"^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA|BEGIN|COMMIT|#!)|\(\?[:P<!=]|\\[dwsb.]|\[\^")
_LOGS = frozenset(("debug", "info", "warning", "error", "exception", "critical", "log"))


@cache
def texts() -> list[str]:
    """Lines of the list: room, kind and text, sorted; each once."""
    found: set[str] = set()
    for path in sorted(SOURCE.rglob("*.py")):
        below = path.relative_to(SOURCE)
        room = "/".join(below.parts[: min(2, len(below.parts) - 1)]) or "shoal"
        found |= {f"{room} · {kind} · {text}" for kind, text in of_module(path.read_text(encoding="utf-8"))}
    return sorted(found)


def of_module(source: str) -> Iterator[tuple[str, str]]:
    """What one module says: the kind of each text, and the text."""
    tree = ast.parse(source)
    skipped = {id(node) for node in _docstrings(tree)}
    yield from _kept(tree, "text", skipped)


def _kept(node: ast.AST, kind: str, skipped: set[int]) -> Iterator[tuple[str, str]]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(map(_is_command, node.decorator_list)):
        words = ast.get_docstring(node)
        if words:
            yield "help", _on_one_line(words)
    if isinstance(node, (ast.Constant, ast.JoinedStr)):
        text = _text(node)
        if id(node) not in skipped and _is_spoken(text, kind):
            yield kind, _on_one_line(text)
        if isinstance(node, ast.JoinedStr):  # texts inside what is filled in
            for value in node.values:
                if isinstance(value, ast.FormattedValue):
                    yield from _kept(value.value, kind, skipped)
        return
    for child in ast.iter_child_nodes(node):
        yield from _kept(child, _kind_of(node, child, kind), skipped)


def _kind_of(node: ast.AST, child: ast.AST, kind: str) -> str:
    if isinstance(node, ast.Raise):
        return "error"
    if isinstance(node, ast.keyword) and node.arg in ("help", "short_help", "epilog"):
        return "help"
    if isinstance(node, ast.Call) and child is not node.func:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("echo", "secho", "print", "confirm"):
            return "prints"
        if name in ("event", "announce"):
            return "event"
        if name in _LOGS and isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "log":
            return "log"
    return kind


def _is_command(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr in ("command", "group")


def _docstrings(tree: ast.Module) -> Iterator[ast.AST]:
    """Texts that stand alone: docstrings of modules, classes, functions and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    return "…"


def _is_spoken(text: str, kind: str) -> bool:
    words = _SPOKEN.findall(text)
    if " " not in text.strip() or _CODE.search(text):
        return False
    return len(words) >= (3 if kind == "text" else 2)


def _on_one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


if __name__ == "__main__":
    LIST.write_text("\n".join(texts()) + "\n", encoding="utf-8")
    print(f"{LIST}: {len(texts())} texts")
