"""The rows of claims, volumes and storage classes in the table that kubectl prints; `built_in.py` calls them."""

from __future__ import annotations

from typing import Any

from shoal.local.apiserver.tables.cells import age_of, metadata_of, name_of, spec_of, status_of

Json = dict[str, Any]


def claim_row(item: Json, now: int) -> list[Any]:
    spec, status = spec_of(item), status_of(item)
    bound = bool(spec.get("volumeName"))
    access = _modes(status) if bound else ""
    size = str((status.get("capacity") or {}).get("storage") or "") if bound else ""
    return [name_of(item), status.get("phase") or "Pending", spec.get("volumeName") or "", size, access,
            spec.get("storageClassName") or "", spec.get("volumeAttributesClassName") or "<unset>", age_of(item, now),
            spec.get("volumeMode") or "Filesystem"]  # fmt: skip


def _modes(holder: Json) -> str:
    brief = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
    return ",".join(brief.get(mode, mode) for mode in holder.get("accessModes") or ())


def volume_row(item: Json, now: int) -> list[Any]:
    spec, status = spec_of(item), status_of(item)
    claim = spec.get("claimRef") or {}
    phase = "Terminating" if metadata_of(item).get("deletionTimestamp") else status.get("phase") or ""
    return [name_of(item), (spec.get("capacity") or {}).get("storage") or "0", _modes(spec),
            spec.get("persistentVolumeReclaimPolicy") or "", phase,
            f"{claim.get('namespace')}/{claim.get('name')}" if claim else "", spec.get("storageClassName") or "",
            spec.get("volumeAttributesClassName") or "<unset>", status.get("reason") or "", age_of(item, now),
            spec.get("volumeMode") or "Filesystem"]  # fmt: skip


def storage_class_row(item: Json, now: int) -> list[Any]:
    chosen = (metadata_of(item).get("annotations") or {}).get("storageclass.kubernetes.io/is-default-class") == "true"
    return [name_of(item) + " (default)" * chosen, item.get("provisioner") or "", item.get("reclaimPolicy") or "Delete",
            item.get("volumeBindingMode") or "Immediate", bool(item.get("allowVolumeExpansion")),
            age_of(item, now)]  # fmt: skip
