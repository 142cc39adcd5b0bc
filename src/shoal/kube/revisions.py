"""What orders and identifies an object: its UID and its resourceVersion, read without the rest of it."""

from __future__ import annotations

import sys

import msgspec

from shoal.api.kind import Key


class RevisionMark(msgspec.Struct, rename="camel", frozen=True):
    """The few metadata fields that every object has."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None

    @property
    def key(self) -> Key:
        return Key(sys.intern(self.namespace), self.name)


class _Marked(msgspec.Struct, frozen=True):
    metadata: RevisionMark


_decoder = msgspec.json.Decoder(_Marked)


def read_mark(raw: bytes | msgspec.Raw) -> RevisionMark:
    """The mark of an encoded object. Raises `msgspec.MsgspecError` when not even that can be read."""
    return _decoder.decode(raw).metadata


def newer(left: str, right: str) -> bool:
    """Whether revision `left` comes after `right`. Where a server's revisions are not numbers, any other one does."""
    if left.isdigit() and right.isdigit():
        return int(left) > int(right)
    return left != right
