"""The token that a cluster has without asking for it, written into its spec where KubeRay's clients look for it.

An admission handler for the server of one machine, where the node agent hands the token to the processes. The mark
tells the default from options that a user wrote: those put the token into the pods, as KubeRay does. Pure; it changes
an object the same way every time, and never one that another controller manages.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.api import ray_token
from shoal.api.meta import Json
from shoal.controllers.ray import view
from shoal.controllers.ray.pods import auth, submission
from shoal.controllers.ray.settings import CONTROLLER_NAME, RaySettings
from shoal.controllers.ray.validation.cluster_rules import problems_of_shapes
from shoal.kube.admission_review import AdmissionRequest, AdmissionVerdict


def token_default(settings: RaySettings) -> Callable[[AdmissionRequest], AdmissionVerdict]:
    """The handler for one operator's settings."""

    def prepare(request: AdmissionRequest) -> AdmissionVerdict:
        obj = request.object
        if obj is None or request.sub_resource or view.deleting(obj) or not settings.token_by_agent:
            return AdmissionVerdict()
        if request.kind.kind == "RayJob" and request.operation == "CREATE":
            return AdmissionVerdict(warnings=tuple(_hints(obj, settings)))
        if request.kind.kind != "RayCluster" or not _wants_default(obj, settings):
            return AdmissionVerdict()
        metadata = view.metadata(obj)
        marks = {**view.annotations_of(obj), ray_token.BY_AGENT: "true"}
        spec = {**view.spec(obj), "authOptions": {"mode": "token"}}
        return AdmissionVerdict(changed={**obj, "metadata": {**metadata, "annotations": marks}, "spec": spec})

    return prepare


def _wants_default(cluster: Json, settings: RaySettings) -> bool:
    spec = cluster.get("spec")
    if not isinstance(spec, dict) or spec.get("authOptions") is not None or any(problems_of_shapes(spec)):
        return False
    return spec.get("managedBy") in (None, "", CONTROLLER_NAME) and auth.given_by_agent(cluster, settings)


def _hints(job: Json, settings: RaySettings) -> list[str]:
    """What a user who submits the Ray job by other means has to know before Ray refuses it."""
    spec = job.get("spec")
    cluster = spec.get("rayClusterSpec") if isinstance(spec, dict) else None
    if not isinstance(cluster, dict) or submission.mode(job) != submission.INTERACTIVE:
        return []
    if any(problems_of_shapes(cluster)) or not auth.uses_token({"spec": cluster}, settings):
        return []
    name = view.name(job) or "NAME"
    cure = (
        "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(kubectl ray get token "
        f"$(kubectl get rayjob {name} -o jsonpath={{.status.rayClusterName}}))"
    )
    if auth.given_by_agent({"spec": cluster}, settings):
        where = "through kubectl port-forward it needs no token if you may read Secrets of its namespace; elsewhere "
        return [f"RayJob {name!r} waits for a submission: {where}{cure}"]
    return [f"RayJob {name!r} waits for a submission, which needs the token of its RayCluster: {cure}"]
