"""Fields that a body gives twice: the last one counts, which is seldom meant.

Asked only where a client wants to know (`fieldValidation`). The body has been read once already, within its bounds.
"""

from __future__ import annotations

import json
from typing import Any

import yaml


class _Pairs(list[tuple[str, Any]]):
    """An object with all that was written, repeats included."""


def repeated_fields(data: bytes) -> list[str]:
    """What to say about each, in the order of the body, in Kubernetes' words for JSON and for YAML."""
    try:
        tree = json.loads(data, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return _in_yaml(data)
    found: list[str] = []
    _look(tree, "", found)
    return [f'duplicate field "{path}"' for path in dict.fromkeys(found)]


def _look(value: Any, path: str, found: list[str]) -> None:
    if isinstance(value, _Pairs):
        seen = set()
        for name, inner in value:
            here = f"{path}.{name}" if path else name
            if name in seen:
                found.append(here)
            seen.add(name)
            _look(inner, here, found)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _look(inner, f"{path}[{index}]", found)


def _in_yaml(data: bytes) -> list[str]:
    try:
        root = yaml.compose(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError):
        return []  # neither JSON nor YAML: it was read as something else
    found: list[tuple[int, str]] = []
    todo = [root]
    known: set[int] = set()
    while todo:
        node = todo.pop()
        if node is None or id(node) in known:  # aliases lead to one node more than once
            continue
        known.add(id(node))
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, inner in node.value:
                if key.value in seen:
                    found.append((key.start_mark.line + 1, str(key.value)))
                if isinstance(key, yaml.ScalarNode):
                    seen.add(key.value)
                todo.append(inner)
        elif isinstance(node, yaml.SequenceNode):
            todo.extend(node.value)
    return [f'line {line}: key "{name}" already set in map' for line, name in sorted(found)]
