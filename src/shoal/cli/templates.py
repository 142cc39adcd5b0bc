"""`-o jsonpath=TEMPLATE`, as kubectl has it: text, `{.path}`, `{"\\n"}`, and `{range .path}…{end}`.

Paths are those of the printer columns; one that leads nowhere prints nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

from shoal.errors import BadInput
from shoal.local.apiserver.primitives.jsonpath import compiled

_PIECE = re.compile(r"\{((?:[^{}\"']|\"(?:[^\"\\]|\\.)*\"|'[^']*')*)\}")


def rendered(template: str, value: Any) -> str:
    """Raises BadInput for a template that cannot be read."""
    pieces = _pieces(template if "{" in template else f"{{{template}}}")
    text, rest = _filled(pieces, 0, value, inside=False)
    if rest < len(pieces):
        raise BadInput(f"-o jsonpath={template}: {{end}} without {{range}}")
    return text


def _pieces(template: str) -> list[tuple[bool, str]]:
    """Whether it is an expression, and its text."""
    found, place = [], 0
    for match in _PIECE.finditer(template):
        if match.start() > place:
            found.append((False, template[place : match.start()]))
        found.append((True, match[1].strip()))
        place = match.end()
    found.append((False, template[place:]))
    if any("{" in text or "}" in text for expression, text in found if not expression):
        raise BadInput(f"-o jsonpath={template}: braces do not match")
    return found


def _filled(pieces: list[tuple[bool, str]], at: int, value: Any, *, inside: bool) -> tuple[str, int]:
    out = []
    while at < len(pieces):
        expression, text = pieces[at]
        at += 1
        if not expression:
            out.append(text)
        elif text == "end":
            return ("".join(out), at) if inside else ("".join(out), at - 1)
        elif text.startswith("range "):
            items, end = compiled(text[6:].strip())(value), at
            for item in items:
                part, end = _filled(pieces, at, item, inside=True)
                out.append(part)
            if not items:
                _, end = _filled(pieces, at, None, inside=True)
            at = end
        elif text[:1] in "\"'":
            out.append(str(json.loads(text)) if text[0] == '"' else text[1:-1])
        else:
            out.append(" ".join(map(_shown, compiled(text.removeprefix("@"))(value))))
    if inside:
        raise BadInput("-o jsonpath: {range} without {end}")
    return "".join(out), at


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
