"""Admission of the Ray kinds: what can never work is refused before it is stored.

A handler for `kube.webhooks`, pure. The same checks run in the reconcilers, so a cluster without the webhook only
learns later. It never stands in the way of a deletion or of a change that leaves the spec alone.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.api.meta import Json
from shoal.controllers.ray import view
from shoal.controllers.ray.cron.rules import cron_problem
from shoal.controllers.ray.ray_kind.translation import translate
from shoal.controllers.ray.service.rules import first_metadata_problem, first_problem
from shoal.controllers.ray.settings import RaySettings
from shoal.controllers.ray.validation.cluster_rules import (
    problems_of_group_names,
    problems_of_metadata,
    problems_of_spec,
    warnings_of_cluster,
)
from shoal.controllers.ray.validation.job_rules import problems_of_job_metadata, problems_of_job_spec
from shoal.kube.admission_review import AdmissionRequest, AdmissionVerdict

VALIDATE_PATH = "/ray/validate"
RULES: list[Json] = [
    {
        "apiGroups": ["ray.io"],
        "apiVersions": ["v1", "v1alpha1"],
        "resources": ["rayclusters", "rayjobs", "rayservices", "raycronjobs"],
        "operations": ["CREATE", "UPDATE"],
        "scope": "Namespaced",
    },
    {
        "apiGroups": ["ray.k8s.io"],
        "apiVersions": ["v1alpha1"],
        "resources": ["rays"],
        "operations": ["CREATE", "UPDATE"],
        "scope": "Namespaced",
    },
]
"""What a ValidatingWebhookConfiguration sends to `VALIDATE_PATH`."""


def validator(settings: RaySettings) -> Callable[[AdmissionRequest], AdmissionVerdict]:
    """The handler for one operator's settings."""

    def validate(request: AdmissionRequest) -> AdmissionVerdict:
        obj, old = request.object, request.old_object
        if obj is None or request.sub_resource or view.deleting(obj):
            return AdmissionVerdict()
        if old is not None and old.get("spec") == obj.get("spec"):
            return AdmissionVerdict()
        problems = refused_of(obj, request.kind.kind, settings)
        if not problems:
            return AdmissionVerdict(
                warnings=tuple(warnings_of_cluster(obj)) if request.kind.kind == "RayCluster" else ()
            )
        return AdmissionVerdict(
            False, f"{request.kind.kind} {request.name!r} is invalid: {'; '.join(problems)}", 422, "Invalid"
        )

    return validate


def refused_of(obj: Json, kind: str, settings: RaySettings) -> list[str]:
    """The problems that keep an object from being stored; the reconcilers tell the others in its status."""
    if settings.admission == "spec" or kind == "Ray":
        return problems_of(obj, kind, settings)
    if settings.admission == "off":
        return []
    match kind:
        case "RayCluster":
            return [*problems_of_metadata(obj), *problems_of_group_names(obj)]
        case "RayJob":
            return problems_of_job_metadata(obj)
        case "RayService":
            problem = first_metadata_problem(obj)
            return [problem.message] if problem else []
    return []


def problems_of(obj: Json, kind: str, settings: RaySettings) -> list[str]:
    """Everything that is wrong with one object of ours."""
    match kind:
        case "RayCluster":
            return [*problems_of_metadata(obj), *problems_of_spec(obj, settings)]
        case "RayJob":
            return [*problems_of_job_metadata(obj), *problems_of_job_spec(obj, settings)]
        case "RayService":
            problem = first_problem(obj, settings)
            return [problem.message] if problem else []
        case "RayCronJob":
            told = cron_problem(obj, settings)
            return [told] if told else []
        case "Ray":
            return translate(obj, settings).problems
    return []
