"""Patches and server-side apply: an object and a patch in, a fresh object out, or `PatchError`.

`json_patch` and `strategic_merge` are the patches, `managed_fields` is server-side apply.
"""

from shoal.local.apiserver.patch.errors import PatchError, patch_refused
from shoal.local.apiserver.patch.field_shapes import FieldShape

__all__ = ["FieldShape", "PatchError", "patch_refused"]
