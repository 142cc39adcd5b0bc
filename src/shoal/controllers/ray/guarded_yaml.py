"""YAML that people put into a field as text: read once, with the line of everything, and never at any price.

Depth, number of parts and what aliases expand to are limited before anything recursive looks at the text, so a broken
or hostile one costs milliseconds and gets a sentence with a line. Called for `Ray` configurations and for runtime
environments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import yaml

from shoal.errors import BadInput

LARGEST_TEXT = 512 * 1024
MOST_NODES = 20_000
DEEPEST = 60

Path = tuple[str, ...]

_DATE = "tag:yaml.org,2002:timestamp"
_NOTHING = "tag:yaml.org,2002:null"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # its base depends on how PyYAML was built
    """What looks like a date stays the text it is: no field of ours is one, and JSON has none."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {
        first: [(tag, pattern) for tag, pattern in found if tag != _DATE]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class Document(msgspec.Struct, frozen=True):
    """A mapping as data, with the line of every key and list item, and the keys that are given twice."""

    data: dict[str, Any]
    lines: dict[Path, int]
    twice: list[tuple[Path, int]] = []

    def at(self, *path: object) -> str:
        """`line 12`, of the nearest key on the way that is in the text."""
        wanted = tuple(map(str, path))
        for length in range(len(wanted), 0, -1):
            if wanted[:length] in self.lines:
                return f"line {self.lines[wanted[:length]]}"
        return "line 1"


def parse(text: str, field: str, *, may_be_empty: bool = False) -> Document:
    """The text of a field, which must be a mapping, or nothing at all. Raises BadInput with the line at fault."""
    if len(text) > LARGEST_TEXT:
        raise BadInput(f"{field} has {len(text)} characters; at most {LARGEST_TEXT} are read")
    try:
        _measure(text, field)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise BadInput(f"{field}, {_told(error, text.rstrip().count(chr(10)) + 1)}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BadInput(f"{field}, line {line}: {error.reason}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise BadInput(f"{field} is not YAML: {str(error)[:200]}") from None
    if may_be_empty and (root is None or root.tag == _NOTHING):
        return Document({}, {})
    if not isinstance(root, yaml.MappingNode):
        raise BadInput(f"{field}, line 1: must be a mapping such as `key: value`")
    lines: dict[Path, int] = {}
    twice: list[tuple[Path, int]] = []
    _note_lines(root, (), lines, twice, [0], field)
    data = _constructed(root, field)
    try:
        msgspec.json.encode(data)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{field} holds what cannot be stored: {str(error)[:200]}") from None
    return Document(data, lines, twice)


def _told(error: Any, last: int) -> str:
    """Where, what, and where the part began that did not end; the end of the text counts as its last line."""
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return error.problem or "not YAML"
    said = f"line {min(mark.line + 1, last)}: {error.problem or 'not YAML'}"
    if error.context and error.context_mark is not None and error.context_mark.line < mark.line:
        said += f" {error.context} from line {min(error.context_mark.line + 1, last)}"
    return said


def _measure(text: str, field: str) -> None:
    """Depth and parts, by the parser's events: the only pass that does not recurse."""
    depth, parts = 0, 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        else:
            parts += 1
        if depth > DEEPEST:
            raise BadInput(f"{field}, line {event.start_mark.line + 1}: nested too deeply, more than {DEEPEST} levels")
        if parts > MOST_NODES:
            raise BadInput(f"{field}, line {event.start_mark.line + 1}: too long, more than {MOST_NODES} values")


def _note_lines(
    node: Any, path: Path, lines: dict[Path, int], twice: list[tuple[Path, int]], seen: list[int], field: str
) -> None:
    seen[0] += 1
    if seen[0] > 2 * MOST_NODES or len(path) > DEEPEST:
        line = node.start_mark.line + 1
        raise BadInput(f"{field}, line {line}: repeats itself too often; write aliases out or drop them")
    if isinstance(node, yaml.MappingNode):
        own: set[Path] = set()
        for key, value in node.value:
            here = (*path, str(key.value))
            if here in own:
                twice.append((here, key.start_mark.line + 1))
            own.add(here)
            lines[here] = key.start_mark.line + 1
            _note_lines(value, here, lines, twice, seen, field)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            here = (*path, str(index))
            lines[here] = value.start_mark.line + 1
            _note_lines(value, here, lines, twice, seen, field)


def _constructed(root: Any, field: str) -> Any:
    try:
        return _value_of(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise BadInput(f"{field}, {where}{error.problem or 'cannot be read'}") from None
    except (ValueError, TypeError, OverflowError) as error:
        where = next((f"line {line}: " for line in _unreadable(root)), "")
        raise BadInput(f"{field}, {where}cannot be read: {str(error)[:120]}") from None


def _value_of(node: Any) -> Any:
    loader = _Loader("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _unreadable(node: Any) -> Iterator[int]:
    """Lines of scalars that look like a date or a number and are none."""
    if isinstance(node, yaml.ScalarNode):
        try:
            _value_of(node)
        except (yaml.YAMLError, ValueError, TypeError, OverflowError):
            yield node.start_mark.line + 1
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            for part in pair:
                yield from _unreadable(part)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _unreadable(value)
