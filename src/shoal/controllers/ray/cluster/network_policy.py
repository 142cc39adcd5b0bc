"""Network policies of a Ray cluster: its own pods talk to each other, everything else is as the user says.

One policy for the head and one per worker group. Name resolution stays open unless an annotation closes it, because a
cluster that cannot resolve its head never starts; the operator may reach the dashboard. Pure; called by the reconciler.
"""

from __future__ import annotations

from shoal.api.labels import APP_NAME
from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.pods import submission

NO_DNS = "shoal.dev/network-policy-without-dns"
_OPERATOR = {APP_NAME: "shoal"}
_TYPES = {"DenyAll": ["Ingress", "Egress"], "DenyAllIngress": ["Ingress"], "DenyAllEgress": ["Egress"]}


def network_policies(cluster: Json) -> list[Json]:
    """All policies that the spec asks for; none without `spec.networkPolicy`."""
    options = view.spec(cluster).get("networkPolicy")
    if not isinstance(options, dict):
        return []
    policies = [_policy(cluster, f"{view.name(cluster)}-head", names.HEAD, names.HEAD_GROUP, options.get("head") or {})]
    by_group = {str(one.get("groupName") or one.get("name")): one for one in options.get("workerGroups") or []}
    for group in view.groups(cluster):
        name = view.group_name(group)
        rules = by_group.get(name) or options.get("worker") or {}
        policies.append(_policy(cluster, f"{view.name(cluster)}-workers-{name}", names.WORKER, name, rules))
    return policies


def _policy(cluster: Json, name: str, node_type: str, group: str, rules: Json) -> Json:
    mode = view.spec(cluster)["networkPolicy"].get("mode") or "DenyAll"
    ours = {"podSelector": {"matchLabels": {names.CLUSTER: view.name(cluster)}}}
    spec: Json = {
        "podSelector": {
            "matchLabels": {names.CLUSTER: view.name(cluster), names.NODE_TYPE: node_type, names.GROUP: group}
        },
        "policyTypes": _TYPES[mode],
    }
    if "Ingress" in _TYPES[mode]:
        spec["ingress"] = [{"from": [ours]}, *(rules.get("ingressRules") or [])]
        if node_type == names.HEAD:
            spec["ingress"].append(_dashboard(cluster))
    if "Egress" in _TYPES[mode]:
        spec["egress"] = [{"to": [ours]}, *(rules.get("egressRules") or [])]
        if view.annotations_of(cluster).get(NO_DNS, "").lower() != "true":
            spec["egress"].append({"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": name,
            "namespace": view.namespace(cluster),
            "labels": {names.CLUSTER: view.name(cluster), names.CREATED_BY: names.OPERATOR, names.APP_NAME: names.APP},
            "ownerReferences": [view.owner_reference(cluster, "ray.io/v1", "RayCluster")],
        },
        "spec": spec,
    }


def _dashboard(cluster: Json) -> Json:
    """Pods besides the cluster's that may reach its dashboard: the operator, and the submitter of its own RayJob."""
    peers: list[Json] = [{"namespaceSelector": {}, "podSelector": {"matchLabels": _OPERATOR}}]
    if view.labels(cluster).get(names.SUBMISSION_MODE) == submission.K8S_JOB:
        origin = {names.ORIGIN_NAME: view.labels(cluster).get(names.ORIGIN_NAME), names.ORIGIN_KIND: "RayJob"}
        peers.append({"podSelector": {"matchLabels": origin}})
    return {"from": peers, "ports": [{"protocol": "TCP", "port": view.dashboard_port(cluster)}]}
