"""What a later start declares about a node that is there already: brought onto it, and nothing else touched.

A node remembers what was declared for it, so that a label, taint or resource that is no longer declared can go, and
what a user changed by hand stays until something else is declared. Pure.
"""

from __future__ import annotations

import json

from shoal.api.meta import Json

ANNOTATION = "shoal.dev/declared"


def note(node: Json) -> str:
    """What is declared, as the node remembers it."""
    taints = [[taint["key"], taint["effect"], taint.get("value", "")] for taint in node["spec"].get("taints") or ()]
    resources = sorted(node["status"]["capacity"])
    return json.dumps({"labels": node["metadata"]["labels"], "taints": taints, "resources": resources}, sort_keys=True)


def change(found: Json, wanted: Json, always: tuple[str, ...]) -> Json:
    """A merge patch from the stored node to the declared one; labels named in `always` are set whatever was before."""
    before = _read(found)
    labels: Json = dict.fromkeys(before["labels"].keys() - wanted["metadata"]["labels"].keys())
    for name, value in wanted["metadata"]["labels"].items():
        if name in always or before["labels"].get(name) != value:
            labels[name] = value
    patch: Json = {"metadata": {"labels": labels, "annotations": {ANNOTATION: note(wanted)}}}
    old = {(key, effect): value for key, effect, value in before["taints"]}
    new = {(taint["key"], taint["effect"]): taint for taint in wanted["spec"].get("taints") or ()}
    if old != {place: taint.get("value", "") for place, taint in new.items()}:
        changed = {place for place, taint in new.items() if old.get(place) != taint.get("value", "")}
        kept = [
            taint
            for taint in (found.get("spec") or {}).get("taints") or ()
            if (place := (taint["key"], taint["effect"])) not in changed and (place not in old or place in new)
        ]
        patch["spec"] = {"taints": [*kept, *(new[place] for place in sorted(changed))]}
    return patch


def gone_resources(found: Json, wanted: Json) -> Json:
    """Resources that were declared once and are no longer, as a patch that removes them."""
    return dict.fromkeys(set(_read(found)["resources"]) - set(wanted["status"]["capacity"]))


def _read(node: Json) -> Json:
    empty: Json = {"labels": {}, "taints": [], "resources": []}
    try:
        return {**empty, **json.loads((node["metadata"].get("annotations") or {})[ANNOTATION])}
    except (KeyError, ValueError, TypeError):
        return empty  # made by an older release, or by someone else
