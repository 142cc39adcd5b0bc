"""How a Ray pod names the Secret with its cluster's token, where the node agent hands it to the processes.

Written by the Ray operator, read by the node agent of the embedded cluster; the pod's spec stays as published.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from shoal.api.gang import PREFIX

ANNOTATION = PREFIX + "ray-token-secret"
"""Name of a Secret in the pod's namespace."""

BY_AGENT = PREFIX + "ray-token-by-agent"
"""On a RayCluster: the token is the default of this machine, and its pods stay as published."""

KEY = "auth_token"
"""Where in the Secret the token stands, as KubeRay has it."""


def decoded(data: Any) -> str:
    """The token in a Secret's `data`; empty where there is none that can be read."""
    text = data.get(KEY) if isinstance(data, dict) else None
    try:
        return base64.b64decode(text, validate=True).decode() if isinstance(text, str) else ""
    except (binascii.Error, ValueError):
        return ""
