"""The controller's rights where it looks after some namespaces only: what stays cluster-wide, what is granted in them.

Pure. Cluster-wide it may read what room depends on (nodes, pods, classes), write the kinds that have no namespace, ask
for reviews and record events; everything else, Secrets above all, is granted in the chosen namespaces alone.
"""

from __future__ import annotations

from shoal.api.meta import Json

WITHOUT_NAMESPACE = frozenset(
    {
        "nodes",
        "namespaces",
        "runtimeclasses",
        "priorityclasses",
        "subjectaccessreviews",
        "tokenreviews",
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
        "clusterqueues",
        "cohorts",
        "resourceflavors",
        "admissionchecks",
        "topologies",
        "workloadpriorityclasses",
        "provisioningrequestconfigs",
        "multikueueconfigs",
        "multikueueclusters",
        "users",
        "groups",
        "uids",
    }
)
EVENTS = "events"
"""Those about kinds without a namespace are recorded in the namespace default."""
PODS: Json = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
"""Pods of every namespace take room."""


def cluster_wide(rules: list[Json]) -> list[Json]:
    """What of these rules is still granted for the whole cluster."""
    return [*_chosen(rules, everywhere=True), PODS]


def within(rules: list[Json]) -> list[Json]:
    """What of them is granted in each chosen namespace."""
    return _chosen(rules, everywhere=False)


def _chosen(rules: list[Json], *, everywhere: bool) -> list[Json]:
    found = []
    for rule in rules:
        resources = [one for one in rule["resources"] if _is_everywhere(rule, one) == everywhere]
        if resources:
            found.append({**rule, "resources": resources})
    return found


def _is_everywhere(rule: Json, resource: str) -> bool:
    if rule["verbs"] == ["impersonate"]:  # an identity has no namespace
        return True
    return resource.partition("/")[0] in WITHOUT_NAMESPACE | _blueprints() or resource == EVENTS


def _blueprints() -> set[str]:
    """What describes the pods of jobs everywhere, such as cluster-wide runtimes of TrainJobs."""
    from shoal.controllers.queues.jobs import ALL
    from shoal.controllers.queues.jobs.blueprint import has_blueprint

    found = [kind for one in ALL if has_blueprint(one) for kind in one.blueprint_kinds]
    return {kind.plural for kind in found if not kind.namespaced}
