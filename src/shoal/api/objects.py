"""The parts of metadata that every controller asks for, of typed objects and of decoded JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.api.kind import Key
from shoal.api.meta import Json, Object


def key_of(obj: Json | Object) -> Key:
    if isinstance(obj, Object):
        return Key(obj.metadata.namespace, obj.metadata.name)
    return Key(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


def controller_of(obj: Json) -> Json | None:
    references = obj["metadata"].get("ownerReferences") or ()
    return next((one for one in references if one.get("controller")), None)


def group_of(reference: Json) -> str:
    return str(reference.get("apiVersion") or "").partition("/")[0]


def label(obj: Json | Object, name: str) -> str:
    if isinstance(obj, Object):
        return (obj.metadata.labels or {}).get(name, "")
    return str((obj["metadata"].get("labels") or {}).get(name) or "")


def annotation(obj: Json | Object, name: str) -> str:
    if isinstance(obj, Object):
        return (obj.metadata.annotations or {}).get(name, "")
    return str((obj["metadata"].get("annotations") or {}).get(name) or "")


def finalizers(obj: Json | Object) -> Sequence[str]:
    return (obj.metadata.finalizers if isinstance(obj, Object) else obj["metadata"].get("finalizers")) or ()
