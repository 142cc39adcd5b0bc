"""What a later start declares about a node that is there already: brought onto it, and nothing else touched.

A node remembers what was declared for it, so that a label, taint or resource that is no longer declared can go, and
what a user changed by hand stays until something else is declared. Pure.
"""

from __future__ import annotations

import json

from shoal.api.meta import Json
from shoal.local.shapes import NodeShape

ANNOTATION = "shoal.dev/declared"


def note(shape: NodeShape) -> str:
    """What is declared, as the node remembers it."""
    told = {"labels": shape.labels, "taints": list(shape.taints), "resources": sorted(shape.capacity)}
    return json.dumps({name: value for name, value in told.items() if value}, sort_keys=True)


def change(found: Json, wanted: Json, shape: NodeShape) -> Json:
    """A merge patch from the stored node to the one that `shape` declares, which would be `wanted` if it were new."""
    before = _read(found)
    labels: Json = dict.fromkeys(before["labels"].keys() - shape.labels.keys())
    for name, value in wanted["metadata"]["labels"].items():
        if before["labels"].get(name) != value:  # always those that are not declared but ours
            labels[name] = value
    patch: Json = {"metadata": {"labels": labels, "annotations": {ANNOTATION: note(shape)}}}
    old = {_place(taint): taint for taint in before["taints"]}
    new = {_place(taint): taint for taint in shape.taints}
    if old != new:
        kept = [
            taint
            for taint in (found.get("spec") or {}).get("taints") or ()
            if old.get(_place(taint)) == new.get(_place(taint))  # as declared before, or never declared
        ]
        changed = [taint for place, taint in new.items() if old.get(place) != taint]
        patch["spec"] = {"taints": [*kept, *changed]}
    return patch


def gone_resources(found: Json, shape: NodeShape) -> Json:
    """Resources that were declared once and are no longer offered, as a patch that removes them."""
    return dict.fromkeys(set(_read(found)["resources"]) - set(shape.offers))


def _place(taint: Json) -> tuple[str, str]:
    return taint["key"], taint["effect"]


def _read(node: Json) -> Json:
    empty: Json = {"labels": {}, "taints": [], "resources": []}
    try:
        return {**empty, **json.loads((node["metadata"].get("annotations") or {})[ANNOTATION])}
    except (KeyError, ValueError, TypeError):
        return empty  # made by an older release, or by another program
