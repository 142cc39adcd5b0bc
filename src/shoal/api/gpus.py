"""Which resources are GPUs: by the names that vendors' device plug-ins give them, slices of a GPU included."""

from __future__ import annotations

import re

_SLICE = re.compile(r"nvidia\.com/mig-\d+g\.\d+gb$", re.ASCII)


def is_gpu(resource: str) -> bool:
    return resource.endswith("gpu") or _SLICE.search(resource) is not None
