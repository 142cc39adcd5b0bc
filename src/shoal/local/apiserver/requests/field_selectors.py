"""Field selectors: which fields of which kinds can be asked for, how they are written, and where an object keeps them.

Only `selectors.py` calls this. Of an object, only the paths that a selector names are decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from shoal.local.apiserver.primitives.names import path_segment
from shoal.local.apiserver.primitives.status import Refused, bad_request
from shoal.local.apiserver.storage.collection import StoredObject

FIELDS: dict[str, tuple[str, ...]] = {
    "pods": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ),
    "events": (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    "events.events.k8s.io": (
        "regarding.kind",
        "regarding.namespace",
        "regarding.name",
        "regarding.uid",
        "regarding.apiVersion",
        "regarding.resourceVersion",
        "regarding.fieldPath",
        "reason",
        "reportingController",
        "type",
    ),
    "namespaces": ("status.phase",),
    "nodes": ("spec.unschedulable",),
    "secrets": ("type",),
    "services": ("spec.clusterIP", "spec.type"),
    "replicationcontrollers": ("status.replicas",),
    "jobs.batch": ("status.successful",),
}
# Where the stored object keeps a field under another name.
_STORED_AT = {
    "source": "source.component",
    "status.successful": "status.succeeded",
    **{
        f"regarding.{word}": f"involvedObject.{word}"
        for word in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    },
    "reportingController": "reportingComponent",
    "status.podIPs": "status.podIP",
}
# Where a value is looked for when it is not there.
_OTHERWISE_AT = {"source.component": "reportingComponent"}
# Absent counts as this, as in the typed objects of Kubernetes.
_ABSENT = {"spec.hostNetwork": "false", "spec.unschedulable": "false", "status.replicas": "0", "status.succeeded": "0"}


def parse_fields(text: str) -> list[tuple[str, bool, str]]:
    """Path, equal or not, value."""
    found = []
    for term in _split_terms(text):
        match = re.fullmatch(r"([^=!]*)(!=|==|=)(.*)", term, re.DOTALL)
        if match is None:
            raise bad_request(f"invalid selector: '{text[:200]}'; can't understand '{term[:200]}'")
        path, operator, value = match.groups()
        found.append((path, operator != "!=", _unescaped(value)))
    return found


def selected_name(text: str) -> str:
    """The one name that a selector allows, or nothing: a user that may read that object may list and watch it."""
    try:
        terms = parse_fields(text)
    except Refused:
        return ""  # refused later, in its own words
    names = [value for path, equal, value in terms if path == "metadata.name" and equal]
    return names[0] if names and not path_segment(names[0]) else ""


def _split_terms(text: str) -> list[str]:
    terms, term, escaped = [], "", False
    for letter in text:
        if not escaped and letter == ",":
            terms.append(term)
            term = ""
            continue
        escaped = letter == "\\" and not escaped
        term += letter
    return [one for one in [*terms, term] if one]


def _unescaped(value: str) -> str:
    """A backslash stands before a comma, an equals sign or another backslash, and before nothing else."""
    found, letters = "", iter(value)
    for letter in letters:
        if letter == "\\":
            follows = next(letters, "")
            if not follows or follows not in "\\,=":
                raise bad_request(f"invalid field selector: invalid escape sequence: \\{follows}")
            found += follows
        elif letter == "=":
            raise bad_request(f"invalid field selector: unescaped character in value: {ord(letter)}")
        else:
            found += letter
    return found


@lru_cache(maxsize=256)
def reader(paths: tuple[str, ...]) -> Callable[[StoredObject], list[str]]:
    """A function from a record to the texts at these paths; decodes nothing else."""
    stored = [_STORED_AT.get(path, path) for path in paths]
    second = [_OTHERWISE_AT.get(path, "") for path in stored]
    read_of = {path for path in (*stored, *second) if path and not path.startswith("metadata.")}
    decoder = msgspec.json.Decoder(_shape([path.split(".") for path in sorted(read_of)]))

    def read(record: StoredObject) -> list[str]:
        try:
            top: Any = decoder.decode(record.raw)
        except msgspec.MsgspecError:
            top = None
        found = [_text(_at(record, top, path), path) for path in stored]
        return [
            value or (_text(_at(record, top, path), path) if path else "")
            for value, path in zip(found, second, strict=True)
        ]

    return read


def _at(record: StoredObject, top: Any, path: str) -> Any:
    if path == "metadata.name":
        return record.name
    if path == "metadata.namespace":
        return record.namespace
    found = top
    for word in path.split("."):
        if found is None:
            return None
        found = getattr(found, _attribute(word), None)
    return found


def _text(value: Any, path: str) -> str:
    if value is None:
        return _ABSENT.get(path, "")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _attribute(word: str) -> str:
    return "f_" + re.sub(r"\W", "_", word)


def _shape(paths: list[list[str]]) -> Any:
    """A Struct type that knows just these paths."""
    branches: dict[str, list[list[str]]] = {}
    for path in paths:
        branches.setdefault(path[0], []).append(path[1:])
    fields: list[tuple[str, Any, Any]] = []
    renames = {}
    for word, rest in branches.items():
        deeper = [path for path in rest if path]
        kind: Any = (_shape(deeper) | None) if deeper else Any
        fields.append((_attribute(word), kind, None))
        renames[_attribute(word)] = word
    return msgspec.defstruct("Fields", fields, rename=renames)
