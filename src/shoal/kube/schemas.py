"""Whether the server keeps the fields that we depend on: a CRD older than this program drops them without a word.

Asked by a feed before it first reads such a kind. It reads the OpenAPI document that every account may read, and judges
nothing when there is none: most fields may be absent, and only those named by the caller matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, NotFound


async def missing_fields(client: Client, kind: Kind, paths: Iterable[str]) -> list[str]:
    """Those of `paths` (such as `status.admission`) that the server would drop from objects of this kind."""
    try:
        answer = await client.request("GET", f"/openapi/v3/apis/{kind.api_version}")
        document = msgspec.json.decode(answer.body, type=dict[str, Any])
    except (NotFound, Forbidden, msgspec.MsgspecError):
        return []
    schema = _schema_of(document, kind)
    return [] if schema is None else [path for path in paths if not keeps(schema, path.split("."))]


def keeps(schema: Json, path: list[str]) -> bool:
    """Whether a structural schema lets a field through. List items and map values count as part of their field."""
    if not path or schema.get("x-kubernetes-preserve-unknown-fields"):
        return True
    inner = schema.get("items") or schema.get("additionalProperties")
    if isinstance(inner, dict):
        return keeps(inner, path)
    child = (schema.get("properties") or {}).get(path[0])
    return isinstance(child, dict) and keeps(child, path[1:])


def _schema_of(document: Json, kind: Kind) -> Json | None:
    wanted = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    for schema in ((document.get("components") or {}).get("schemas") or {}).values():
        if wanted in (schema.get("x-kubernetes-group-version-kind") or ()):
            found: Json = schema
            return found
    return None
