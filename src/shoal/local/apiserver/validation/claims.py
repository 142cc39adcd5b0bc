"""What is wrong with claims and storage classes. Only `built_in.py` and stateful sets, whose templates hold claims,
call this.
"""

from __future__ import annotations

from typing import Any

from shoal.api.quantity import amount
from shoal.errors import BadInput
from shoal.local.apiserver.primitives.field_errors import InvalidField, forbidden, invalid, required
from shoal.local.apiserver.primitives.values import same

Json = dict[str, Any]

_FIXED = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
_LATER = ("volumeName", "storageClassName")  # what may be filled in once


def validate_claim(obj: Json, old: Json | None) -> list[InvalidField]:
    spec = obj.get("spec") or {}
    if old is None:
        return claim_spec(spec, "spec")
    before = old.get("spec") or {}
    wanted, had = dict(spec), dict(before)
    for name in _LATER:
        if not had.get(name):
            wanted.pop(name, None)
            had.pop(name, None)
    status = obj.get("status") or {}
    bound = status.get("phase") == "Bound"
    if bound:
        for one in (wanted, had):
            one.pop("volumeAttributesClassName", None)
            one["resources"] = {**(one.get("resources") or {}), "requests": None}
    if not same(wanted, had):
        return [forbidden("spec", _FIXED)]
    return _shrunk(spec, before, status) if bound else []


def _shrunk(spec: Json, before: Json, status: Json) -> list[InvalidField]:
    now, was = requested_storage({"spec": spec}), requested_storage({"spec": before})
    if now < was and now <= _storage(status, "capacity"):
        return [forbidden("spec.resources.requests.storage", "field can not be less than status.capacity")]
    return []


def requested_storage(claim: Json) -> int:
    return _storage((claim.get("spec") or {}).get("resources"), "requests")


def _storage(holder: Json | None, part: str) -> int:
    try:
        return amount("storage", ((holder or {}).get(part) or {}).get("storage") or 0)
    except BadInput:
        return 0


def claim_spec(spec: Json, path: str) -> list[InvalidField]:
    errors = []
    if not spec.get("accessModes"):
        errors.append(required(f"{path}.accessModes", "at least 1 access mode is required"))
    if "storage" not in ((spec.get("resources") or {}).get("requests") or {}):
        errors.append(required(f"{path}.resources[storage]"))
    return errors


def validate_storage_class(obj: Json, old: Json | None) -> list[InvalidField]:
    if old is None:
        return [] if obj.get("provisioner") else [required("provisioner")]
    errors = []
    if not same(obj.get("parameters") or {}, old.get("parameters") or {}):
        errors.append(forbidden("parameters", "updates to parameters are forbidden."))
    if obj.get("provisioner") != old.get("provisioner"):
        errors.append(forbidden("provisioner", "updates to provisioner are forbidden."))
    for name in ("reclaimPolicy", "volumeBindingMode"):
        if obj.get(name) != old.get(name):
            errors.append(invalid(name, obj.get(name), "field is immutable"))
    return errors
