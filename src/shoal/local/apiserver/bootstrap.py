"""What every cluster has from the first moment: namespaces, system priorities, the usual roles, the API's own
service.
"""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.local.apiserver import authorization
from shoal.local.apiserver.admission import SYSTEM_PRIORITIES


def objects() -> list[Json]:
    found: list[Json] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in ("default", "kube-system", "kube-public", "kube-node-lease")
    ]
    found += [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "description": "Used for system pods that must run.",
        }
        for name, value in SYSTEM_PRIORITIES.items()
    ]
    found += authorization.bootstrap()
    return found
