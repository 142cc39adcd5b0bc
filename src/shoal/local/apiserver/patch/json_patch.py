"""JSON Patch and JSON merge patch, as Kubernetes applies them.

The server calls these with a stored object and a request's patch. They never change what they are given: the result
is a fresh tree that shares no container with the stored object. What cannot be applied raises `PatchError`, which
carries the code and reason of the answer.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.local.apiserver.patch.errors import PatchError, inapplicable, malformed
from shoal.local.apiserver.primitives.values import CONTAINERS, clone, same

MOST_OPERATIONS = 10_000  # as Kubernetes; more than that is an attack or a mistake
MOST_COPIED = 3 * 1024 * 1024  # bytes that all copies together may add: each may double the document
DEEPEST = 128  # levels, as for a body: a patch can build what no body could bring
_MISSING = object()


# --- merge patch (RFC 7386)


def merge_patch(doc: Any, patch: Any) -> Any:
    """Members of `patch` replace those of `doc`, null removes, objects merge, everything else is taken whole."""
    if type(patch) is not dict:
        return clone(patch)
    merged = {name: clone(value) for name, value in doc.items() if name not in patch} if type(doc) is dict else {}
    if type(doc) is not dict:
        doc = {}
    for name, value in patch.items():
        if value is not None:
            merged[name] = merge_patch(doc.get(name), value)
    return merged


# --- JSON Patch (RFC 6902)


def json_patch(doc: Any, operations: Any) -> Any:
    """Apply operations in order, all or none.

    Two habits of Kubernetes' library that clients lean on: `replace` of an absent object member adds it, and negative
    array indexes count from the end.
    """
    if not isinstance(operations, list):
        raise malformed("a JSON patch is a list of operations, each with op and path")
    if len(operations) > MOST_OPERATIONS:
        raise PatchError(
            413,
            "RequestEntityTooLarge",
            "Request entity is too large: The allowed maximum operations in "
            f"a JSON patch is {MOST_OPERATIONS}, got {len(operations)}",
        )
    root = [clone(doc)]  # one level above the document, so that the whole of it can be replaced too
    copied = 0
    for operation in operations:
        if not isinstance(operation, dict):
            raise malformed(f"JSON patch operation {_brief(operation)} is not an object")
        wanted = operation.get("op")
        apply = _OPERATIONS.get(wanted) if isinstance(wanted, str) else None
        if apply is None:
            raise inapplicable(f"Unexpected kind: {_brief(wanted)}")
        if apply is _copy:
            copied += _size(_source(root, operation, "copy"))
            if copied > MOST_COPIED:
                raise PatchError(
                    413,
                    "RequestEntityTooLarge",
                    f"Request entity is too large: the copies of this JSON patch add more than {MOST_COPIED} bytes",
                )
        apply(root, operation)
    _check_depth(root)
    return root[0]


def _size(value: Any) -> int:
    try:
        return len(msgspec.json.encode(value))
    except RecursionError:
        raise inapplicable(f"it nests deeper than {DEEPEST} levels") from None


def _check_depth(root: list[Any]) -> None:
    """Level by level, without recursion: what comes after us walks by recursion and must not be led astray."""
    level: list[Any] = [root]
    for _ in range(DEEPEST + 2):
        below = [item for value in level for item in (value.values() if type(value) is dict else value)]
        level = [item for item in below if type(item) in CONTAINERS]
        if not level:
            return
    raise inapplicable(f"it nests deeper than {DEEPEST} levels")


def _add(root: list[Any], operation: dict[str, Any]) -> None:
    parent, token = _locate(root, _pointer(operation, "path"), "add")
    _insert(parent, token, clone(_value(operation)), operation)


def _remove(root: list[Any], operation: dict[str, Any]) -> None:
    parent, token = _locate(root, _pointer(operation, "path"), "remove")
    if parent is root:
        raise inapplicable("remove operation does not apply: the whole document cannot be removed")
    if _read(parent, token) is _MISSING:
        raise inapplicable(f"remove operation does not apply: doc is missing path: {_brief(operation['path'])}")
    del parent[_index(parent, token) if type(parent) is list else token]


def _replace(root: list[Any], operation: dict[str, Any]) -> None:
    parent, token = _locate(root, _pointer(operation, "path"), "replace")
    if type(parent) is list and _read(parent, token) is _MISSING:
        raise inapplicable(f"replace operation does not apply: doc is missing key: {_brief(operation['path'])}")
    parent[_index(parent, token) if type(parent) is list else token] = clone(_value(operation))


def _move(root: list[Any], operation: dict[str, Any]) -> None:
    value = _source(root, operation, "move")
    target = _pointer(operation, "path")
    source = _pointer(operation, "from")
    if len(target) > len(source) and target[: len(source)] == source:
        raise inapplicable("move operation does not apply: a value cannot be moved into itself")
    _remove(root, {"path": operation["from"]})
    parent, token = _locate(root, target, "move")
    _insert(parent, token, value, operation)


def _copy(root: list[Any], operation: dict[str, Any]) -> None:
    value = clone(_source(root, operation, "copy"))
    parent, token = _locate(root, _pointer(operation, "path"), "copy")
    _insert(parent, token, value, operation)


def _test(root: list[Any], operation: dict[str, Any]) -> None:
    parent, token = _locate(root, _pointer(operation, "path"), "test")
    found = _read(parent, token)
    expected = operation.get("value")
    if found is _MISSING:
        found = None  # as Kubernetes: an absent member equals null
    if not same(found, expected):
        raise inapplicable(f"testing value {_brief(operation['path'])} failed")


_OPERATIONS = {"add": _add, "remove": _remove, "replace": _replace, "move": _move, "copy": _copy, "test": _test}


def _source(root: list[Any], operation: dict[str, Any], name: str) -> Any:
    parent, token = _locate(root, _pointer(operation, "from"), name)
    value = _read(parent, token)
    if value is _MISSING and name == "copy" and type(parent) is dict:
        return None  # as Kubernetes' library
    if value is _MISSING:
        raise inapplicable(f"{name} operation does not apply: doc is missing from path: {_brief(operation['from'])}")
    return value


def _pointer(operation: dict[str, Any], member: str) -> list[str]:
    """The path as tokens below the root holder. The empty path names the whole document."""
    text = operation.get(member)
    if not isinstance(text, str):
        raise inapplicable(f"{operation.get('op', 'remove')} operation has no {member}")
    if text and not text.startswith("/"):
        raise inapplicable(f"path {_brief(text)} does not begin with /")
    return ["0", *(token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:])]


def _locate(root: list[Any], tokens: list[str], name: str) -> tuple[Any, str]:
    """The container that holds the last token, which itself need not exist."""
    here: Any = root
    for token in tokens[:-1]:
        here = _read(here, token)
        if type(here) not in CONTAINERS:
            path = "/" + "/".join(tokens[1:])
            raise inapplicable(f"{name} operation does not apply: doc is missing path: {_brief(path)}")
    return here, tokens[-1]


def _read(parent: Any, token: str) -> Any:
    if type(parent) is dict:
        return parent.get(token, _MISSING)
    if token == "-":
        return _MISSING
    index = _index(parent, token)
    return parent[index] if 0 <= index < len(parent) else _MISSING


def _insert(parent: Any, token: str, value: Any, operation: dict[str, Any]) -> None:
    if type(parent) is dict:
        parent[token] = value
        return
    size = len(parent)
    if token == "-":
        parent.append(value)
        return
    if len(parent) == 1 and operation.get("path") == "":
        parent[0] = value  # the root holder: adding the whole document replaces it
        return
    index = _number(token)
    if index < 0:
        index += size + 1
    if not 0 <= index <= size:
        raise inapplicable(f"{operation.get('op')} operation does not apply: Unable to access invalid index: {token}")
    parent.insert(index, value)


def _index(parent: list[Any], token: str) -> int:
    index = _number(token)
    return index + len(parent) if index < 0 else index


def _number(token: str) -> int:
    digits = token[1:] if token[:1] == "-" else token
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 9:
        raise inapplicable(f"{_brief(token)} is not an array index")
    return int(token)


def _value(operation: dict[str, Any]) -> Any:
    if "value" not in operation and operation.get("op") != "replace":  # without one, Kubernetes replaces by null
        raise inapplicable(f"{operation.get('op')} operation has no value")
    return operation.get("value")


def _brief(value: Any) -> str:
    shown = value if isinstance(value, str) else repr(value)
    return shown if len(shown) <= 200 else shown[:197] + "..."
