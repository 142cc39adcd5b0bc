"""Request bodies into objects, within bounds, and objects into what the client accepts.

Whatever arrives is refused with a 4xx before it costs more than its size: depth, numbers, aliases and keys are bounded
here and nowhere else. Never raises anything but `Refused`.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import yaml

from shoal.api.meta import Json
from shoal.local.apiserver.primitives.status import Refused, bad_request, unsupported_media
from shoal.local.apiserver.requests import protobuf

MOST_BYTES = 3 << 20  # as Kubernetes
MOST_YAML_BYTES = 1 << 20
MOST_NODES = 300_000
MOST_YAML_NODES = 100_000
MOST_YAML_ANSWER = 4 << 20
DEEPEST = 128

_JSON = "application/json"
_YAML = ("application/yaml", "application/x-yaml", "text/yaml")
ACCEPTED = (_JSON, "application/yaml", "application/vnd.kubernetes.protobuf")

_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()
encode = _encoder.encode


def media_of(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def is_yaml(content_type: str) -> bool:
    media = media_of(content_type)
    return media in _YAML or media.endswith("+yaml")


def decode_object(data: bytes, content_type: str) -> Json:
    """An object from a JSON or YAML body."""
    found = decode(data, content_type)
    if type(found) is not dict:
        raise bad_request("the body of the request is not an object")
    return found


def decode(data: bytes, content_type: str) -> Any:
    media = media_of(content_type) or _JSON
    if media == _JSON or media.endswith("+json"):
        return decode_json(data)
    if media in _YAML or media.endswith("+yaml"):
        return decode_yaml(data)
    if media == "application/vnd.kubernetes.protobuf":
        return check(protobuf.decode(data))
    raise unsupported_media(media, ACCEPTED)


def decode_json(data: bytes) -> Any:
    try:
        found = _decoder.decode(data)
    except RecursionError:
        raise bad_request("the body of the request is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise bad_request(f"the body of the request is not valid JSON: {error}") from None
    if len(data) > 2 * DEEPEST:  # shorter ones cannot be deep
        check(found)
    return found


def decode_yaml(data: bytes) -> Any:
    if data[:1] == b"{":
        try:
            return decode_json(data)
        except Exception as error:  # flow-style YAML also begins with a brace
            if len(data) > MOST_YAML_BYTES:
                raise error
    if len(data) > MOST_YAML_BYTES:
        raise bad_request(f"a YAML body may have {MOST_YAML_BYTES} bytes; send JSON")
    try:
        _check_depth(data)
        found = yaml.load(data, Loader=_BodyLoader)
    except (yaml.YAMLError, ValueError, OverflowError, UnicodeError) as error:
        raise bad_request(f"the body of the request is not valid YAML: {error}") from None
    return check(found, keys=True)


def _check_depth(data: bytes) -> None:
    """Before anything is built: libyaml's composer recurses in C, where too deep a nest ends the process."""
    depth = 0
    for count, event in enumerate(yaml.parse(data, Loader=_BodyLoader)):
        if count > MOST_YAML_NODES:
            raise bad_request(f"the body of the request has more than {MOST_YAML_NODES} values; send JSON")
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            depth += 1
            if depth > DEEPEST:
                raise bad_request(f"the body of the request is nested more than {DEEPEST} levels deep")
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            depth -= 1


def check(found: Any, keys: bool = False) -> Any:
    """Bound the depth, the number of nodes (aliases count each time) and the numbers. Returns keys as text if asked."""
    left = MOST_NODES
    todo: list[tuple[Any, int]] = [(found, 1)]
    while todo:
        value, depth = todo.pop()
        if type(value) is dict:
            if keys and any(type(key) is not str for key in value):
                fixed = {_key(key): item for key, item in value.items()}
                value.clear()
                value.update(fixed)
            items: Any = value.values()
        elif type(value) is list:
            items = value
        else:
            continue
        left -= len(value) + 1
        if left < 0:
            raise bad_request(f"the body of the request has more than {MOST_NODES} values")
        if depth > DEEPEST:
            raise bad_request(f"the body of the request is nested more than {DEEPEST} levels deep")
        for item in items:
            kind = type(item)
            if kind is dict or kind is list:
                todo.append((item, depth + 1))
            elif kind is int:
                if not -(1 << 63) <= item < 1 << 64:
                    raise bad_request("the body of the request holds a number of more than 64 bits")
            elif kind is float:
                if not math.isfinite(item):
                    raise bad_request("the body of the request holds a number that is not finite")
            elif keys and kind not in (str, bool, type(None)):
                raise bad_request(f"the body of the request holds a {kind.__name__}, which JSON does not know")
    return found


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, (int, float)):
        return str(key)
    if key is None:
        return "null"
    if isinstance(key, str):
        return key
    raise bad_request("the body of the request has a key that is not text")


class _BodyLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the C loader where it was built
    """YAML as Kubernetes reads it: times stay text."""


_BodyLoader.yaml_implicit_resolvers = {
    letter: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:merge")
    ]
    for letter, resolvers in _BodyLoader.yaml_implicit_resolvers.items()
}


def to_yaml(raw: bytes) -> bytes:
    if len(raw) > MOST_YAML_ANSWER:
        raise Refused(
            406, "NotAcceptable", f"an answer of more than {MOST_YAML_ANSWER} bytes is not given as YAML; ask for JSON"
        )
    text: str = yaml.dump(
        _decoder.decode(raw),
        Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper),
        default_flow_style=False,
        sort_keys=False,
        allow_unicode=True,
    )
    return text.encode()
