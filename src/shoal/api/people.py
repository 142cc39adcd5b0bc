"""What people may do with the custom kinds: rules of the roles of readers, submitters and queue administrators.

`shoal install` ships them as ClusterRoles that Kubernetes adds to its own `view`, `edit` and `admin`; the embedded API
server has them in these roles from the start. Statuses are the controllers' to write, so no role here may write one.
"""

from __future__ import annotations

from shoal.api.crds.catalogue import DEFINITIONS, Definition
from shoal.api.meta import Json

READ = ("get", "list", "watch")
WRITE = ("create", "delete", "deletecollection", "patch", "update")
SUBMITTED = frozenset({"appwrappers", "rayclusters", "raycronjobs", "rayjobs", "rayservices", "rays", "podgroups"})
"""What users submit. Workloads are made for them, queues and quota by administrators."""
ASKED = frozenset({"questions"})
"""Created and read by those who may edit, and removed by the controller; nothing to change in them."""


def viewing() -> list[Json]:
    """Read what a namespace holds: gangs, their Workloads, LocalQueues, quota."""
    return [*_rules([one for one in _namespaced() if one.plural not in ASKED], READ, "get"), _pending("localqueues")]


def asking() -> list[Json]:
    """Ask why a gang waits."""
    return _rules([one for one in _namespaced() if one.plural in ASKED], (*READ, "create"))


def submitting() -> list[Json]:
    """Create, change and delete gangs."""
    chosen = [one for one in _namespaced() if one.plural in SUBMITTED]
    scaled = [one for one in chosen if one.scale]
    return [
        *_rules(chosen, WRITE),
        *(_rule(one.group, [f"{one.plural}/scale"], ("get", "patch", "update")) for one in scaled),
    ]


def overseeing() -> list[Json]:
    """Read the objects that whole clusters share: ClusterQueues, cohorts, flavors and their like."""
    return [*_rules([one for one in DEFINITIONS if not one.namespaced], READ, "get"), _pending("clusterqueues")]


def administering() -> list[Json]:
    """All of queues and quota, and the Workloads in them; what users submit as a reader, with questions about it."""
    submitted = [one for one in DEFINITIONS if one.plural in SUBMITTED]
    others = [one for one in DEFINITIONS if one.plural not in SUBMITTED | ASKED]
    written, read = _rules(others, (*READ, *WRITE), "get"), _rules(submitted, READ, "get")
    return [*written, *read, *asking(), _pending("localqueues", "clusterqueues")]


def _pending(*queues: str) -> Json:
    """Read which Workloads wait in a queue, and where each stands."""
    return _rule("visibility.kueue.x-k8s.io", [f"{one}/pendingworkloads" for one in queues], ("get",))


def _namespaced() -> list[Definition]:
    return [one for one in DEFINITIONS if one.namespaced]


def _rules(chosen: list[Definition], verbs: tuple[str, ...], of_status: str = "") -> list[Json]:
    """One rule for each group; `of_status` is the verb on the statuses."""
    groups = dict.fromkeys(one.group for one in chosen)
    made = [_rule(group, [one.plural for one in chosen if one.group == group], verbs) for group in groups]
    if not of_status:
        return made
    told = {group: [f"{one.plural}/status" for one in chosen if one.group == group and one.status] for group in groups}
    return [*made, *(_rule(group, found, (of_status,)) for group, found in told.items() if found)]


def _rule(group: str, resources: list[str], verbs: tuple[str, ...]) -> Json:
    return {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}
