"""Reading objects as decoded JSON: the parts of their metadata that every controller asks for. Pure."""

from __future__ import annotations

from shoal.api.kind import Key
from shoal.api.meta import Json


def key_of(obj: Json) -> Key:
    return Key(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


def controller_of(obj: Json) -> Json | None:
    references = obj["metadata"].get("ownerReferences") or ()
    return next((one for one in references if one.get("controller")), None)


def group_of(reference: Json) -> str:
    return str(reference.get("apiVersion") or "").partition("/")[0]


def label(obj: Json, name: str) -> str:
    return str((obj["metadata"].get("labels") or {}).get(name) or "")


def annotation(obj: Json, name: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(name) or "")
