"""Objects as the table that kubectl prints.

The server asks for columns and rows when a client wants `as=Table`. Custom kinds show their CRD's printer columns,
built-in kinds the columns that users know (see `built_in.py`); -o wide columns have priority 1. Cells are
computed here, ages too. An odd object gives empty cells, never an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from shoal.api.kind import Kind
from shoal.api.times import parse_time
from shoal.errors import BadInput
from shoal.local.apiserver.kinds.resources import PrinterColumn
from shoal.local.apiserver.primitives.jsonpath import Find, compiled
from shoal.local.apiserver.requests.call import Call
from shoal.local.apiserver.tables import built_in
from shoal.local.apiserver.tables.cells import TableColumn, age, duration

Json = dict[str, Any]
Row = Callable[[Json, int], list[Any]]

_NAME_HELP = (
    "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a "
    "client to request the generation of an appropriate name automatically."
)
_AGE = TableColumn("Age", "string", description="How long ago the object was created.")


def columns_of(call: Call) -> list[Json]:
    """The column definitions of the resource that a call is about."""
    columns, _ = _layout(call.version.kind, call.version.columns)
    return [column.definition() for column in columns]


def row_of(call: Call, item: Json, now: int) -> list[Any]:
    """One object's cells, in the order of the columns."""
    columns, row = _layout(call.version.kind, call.version.columns)
    try:
        return row(item, now)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):
        # a stored object of unexpected shape must not hide the others
        return [_name(item) if column.format == "name" else None for column in columns]


@cache
def _layout(kind: Kind, printer_columns: tuple[PrinterColumn, ...] | None) -> tuple[list[TableColumn], Row]:
    known = built_in.layout(kind)
    if known is not None:
        return known
    if not printer_columns:
        return [_name_column(), _AGE._replace(type="date")], lambda item, now: [_name(item), age(_created(item), now)]
    finds = [(_find(column.path), column.type) for column in printer_columns]
    columns = [TableColumn(c.name, c.type, c.format, c.priority, c.description) for c in printer_columns]

    def row(item: Json, now: int) -> list[Any]:
        return [_name(item), *(_cell(find(item), written, now) for find, written in finds)]

    return [_name_column(), *columns], row


def _name_column() -> TableColumn:
    return TableColumn("Name", "string", "name", description=_NAME_HELP)


def _find(path: str) -> Find:
    try:
        return compiled(path)
    except BadInput:
        return lambda item: []  # the CRD was stored by an older rule; the column stays empty


def _name(item: Json) -> str:
    return str((item.get("metadata") or {}).get("name") or "")


def _created(item: Json) -> Any:
    return (item.get("metadata") or {}).get("creationTimestamp")


def _cell(found: list[Any], written: str, now: int) -> Any:
    if not found or found[0] is None:
        return None
    value = found[0]
    if written == "date":
        return _since(value, now)
    if written == "boolean":
        return value if isinstance(value, bool) else None
    if written == "integer":
        return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if written == "number":
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    return _text(value)


def _since(value: Any, now: int) -> str:
    try:
        return duration((now - parse_time(str(value))) // 1_000_000)
    except BadInput:
        return "<invalid>"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, separators=(",", ":")) if isinstance(value, (dict, list)) else str(value)
