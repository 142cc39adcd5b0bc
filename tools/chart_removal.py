"""What Helm runs before it deletes a release: `shoal uninstall --release`, which stops the controller and takes its
finalizers off users' objects.

Only the chart has it: `shoal uninstall` does the same itself. The pod's image and place are the Deployment's.
"""

from __future__ import annotations

from shoal.api.meta import Json
from shoal.cli.install_workload import NAME, labelled
from shoal.cli.installation import RBAC
from shoal.cli.releasing import RELEASE, release_rules

POD = "@@pod@@"
"""Stands for image, place and security of the Deployment's pod."""


def before_removal(namespace: str) -> list[Json]:
    role = {**labelled(RBAC, "Role", RELEASE, namespace), "rules": release_rules()}
    binding = {
        **labelled(RBAC, "RoleBinding", RELEASE, namespace),
        "roleRef": {"apiGroup": RBAC.partition("/")[0], "kind": "Role", "name": RELEASE},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}],
    }
    spec = {
        "backoffLimit": 3,
        "template": {"spec": {"serviceAccountName": NAME, "restartPolicy": "Never", POD: POD}},
    }
    job = {**labelled("batch/v1", "Job", RELEASE, namespace), "spec": spec}
    return [_hooked(role, 0), _hooked(binding, 0), _hooked(job, 1)]


def _hooked(obj: Json, weight: int) -> Json:
    annotations = {
        "helm.sh/hook": "pre-delete",
        "helm.sh/hook-weight": str(weight),
        "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
    }
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}
