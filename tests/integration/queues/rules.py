"""Kueue's admission rules on a real server: its webhooks refuse with 403, a schema with 422, and defaults are there.

Called by the install suite, which has the control plane and the controller running. What users write is judged; what
the controllers write as their service account is not asked about.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.controlplane.plane import ControlPlane

Json = dict[str, Any]
V1BETA2 = "kueue.x-k8s.io/v1beta2"
AT = "2026-01-01T00:00:00Z"


def assert_rules_hold(plane: ControlPlane) -> None:
    def create(obj: Json) -> Json:
        made: Json = json.loads(plane.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(obj)))
        return made

    def refuses(code: str, match: str, status: Json) -> None:
        with pytest.raises(RuntimeError, match=rf"{code}[\s\S]*{match}"):
            write(status)

    def write(status: Json) -> None:
        patch = json.dumps({"status": status})
        plane.kubectl("patch", "workload", "gang", "--subresource=status", "--type=merge", "-p", patch)

    queue = create({"apiVersion": V1BETA2, "kind": "ClusterQueue", "metadata": {"name": "ruled"}, "spec": {}})
    assert queue["spec"]["flavorFungibility"] == {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"}
    assert queue["spec"]["preemption"]["borrowWithinCohort"] == {"policy": "Never"}
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    pods = {"name": "main", "count": 3, "template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}
    create({"apiVersion": V1BETA2, "kind": "Workload", "metadata": {"name": "gang"}, "spec": {"podSets": [pods]}})
    entry = {"name": "main", "count": 3, "flavors": {"cpu": "plain"}, "resourceUsage": {"cpu": "3"}}
    given = {"clusterQueue": "elsewhere", "podSetAssignments": [entry]}
    reserved = {
        "type": "QuotaReserved",
        "status": "True",
        "reason": "Test",
        "message": "",
        "lastTransitionTime": AT,
    }
    refuses("Forbidden", "must be set while the QuotaReserved condition is true", {"conditions": [reserved]})
    refuses("invalid", "mutually exclusive", {"clusterName": "a", "nominatedClusterNames": ["a"]})
    refuses("Forbidden", "must be one of the nominatedClusterNames", {"clusterName": "a"})
    levels = {"levels": ["block"], "slices": [{"domainCount": 1, "valuesPerLevel": [], "podCounts": {"universal": 1}}]}
    placed = {**given, "podSetAssignments": [{**entry, "topologyAssignment": levels}]}
    refuses("invalid", "valuesPerLevel", {"admission": placed})
    for kind in ("workload/gang", "clusterqueue/ruled"):
        plane.kubectl("delete", kind, "--wait=false")
