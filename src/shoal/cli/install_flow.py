"""API priority and fairness for the controller: a share of the API server that is its own.

Pure. Without it the controller's requests stand in line with those of every other service account: a client that floods
the server holds up admissions, and a large take-over of ours holds up others.
"""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.cli.install_workload import NAME, labelled

API = "flowcontrol.apiserver.k8s.io/v1"
LEASE = "shoal-leader-election"
ELECTIONS = "leader-election"
"""The server's own level for leases of its controllers."""
BEFORE_OTHERS = 700
"""Before the server's schemas for service accounts (9000) and for its own controllers (800)."""
SHARES = 30
"""Beside 40 of the server's own controllers and 100 of all other service accounts; half may be lent."""


def flow_control(namespace: str) -> list[Json]:
    account = [{"kind": "ServiceAccount", "serviceAccount": {"name": NAME, "namespace": namespace}}]
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"], "namespaces": [namespace]}
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "clusterScope": True, "namespaces": ["*"]}
    paths = {"nonResourceURLs": ["*"], "verbs": ["*"]}
    queuing = {"queues": 16, "handSize": 4, "queueLengthLimit": 100}
    limited = {
        "nominalConcurrencyShares": SHARES,
        "lendablePercent": 50,
        "limitResponse": {"type": "Queue", "queuing": queuing},
    }
    return [
        {
            **labelled(API, "PriorityLevelConfiguration", NAME, None),
            "spec": {"type": "Limited", "limited": limited},
        },
        {
            **labelled(API, "FlowSchema", LEASE, None),
            "spec": {
                "priorityLevelConfiguration": {"name": ELECTIONS},
                "matchingPrecedence": BEFORE_OTHERS - 1,
                "rules": [{"subjects": account, "resourceRules": [lease]}],
            },
        },
        {
            **labelled(API, "FlowSchema", NAME, None),
            "spec": {
                "priorityLevelConfiguration": {"name": NAME},
                "matchingPrecedence": BEFORE_OTHERS,
                "rules": [{"subjects": account, "resourceRules": [everything], "nonResourceRules": [paths]}],
            },
        },
    ]
