"""What the embedded API server asks before it stores an object: elsewhere these are the webhooks.

By group and resource, put together once at the start of the cluster; the rooms that judge are imported only then.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.cli import choices
from shoal.errors import BadInput
from shoal.kube.admission_review import AdmissionRequest, AdmissionVerdict
from shoal.kube.client import Client
from shoal.local.apiserver.admission.plugins import Judge
from shoal.local.images import ImageTable
from shoal.local.settings import LocalSettings

if TYPE_CHECKING:
    from shoal.controllers.queues import QueueSettings
    from shoal.controllers.ray import RaySettings


def judges(
    client: Client,
    of_rays: RaySettings | None = None,
    in_queues: QueueSettings | None = None,
    *,
    as_creator: bool = False,
    supply: str = "fit",
    unserved: tuple[str, ...] = (),
) -> dict[tuple[str, str], Judge]:
    """What refuses an object that can never work before it is stored, by group and resource: elsewhere, the webhooks.

    `client` asks for users' rights. `as_creator`: wrapped objects are created as the user, who may then wrap roles.
    `supply`: with `aggregate`, an object for another namespace gets in and fails, as in MCAD. `unserved`: kinds that
    only other clusters serve and that may be sent there.
    """
    from shoal.controllers import ray
    from shoal.controllers.appwrapper.admission import webhook
    from shoal.controllers.planning.rights import Rights, SendableKinds
    from shoal.controllers.queues import admission as queues

    of_ray = ray.validator(of_rays or ray_settings(LocalSettings()))
    of_queues = queues.QueueAdmission(client, in_queues).validate
    of_ray_in_queues = queues.first_refusal(of_queues, of_ray)
    known = SendableKinds(client, unserved)
    of_gangs = webhook.AppWrapperJudge(Rights(client), known, as_creator=as_creator, supply=supply).validate
    return {
        **dict.fromkeys(queues.prepared(), of_queues),  # every kind of job that a queue may hold
        ("ray.io", "rayclusters"): of_ray_in_queues,
        ("ray.io", "rayjobs"): of_ray_in_queues,
        ("ray.io", "rayservices"): of_ray,
        ("ray.io", "raycronjobs"): of_ray,
        ("ray.k8s.io", "rays"): of_ray,
        ("workload.codeflare.dev", "appwrappers"): of_gangs,
        ("mcad.ibm.com", "appwrappers"): of_gangs,
        ("quota.codeflare.dev", "quotasubtrees"): of_gangs,
        ("ibm.com", "quotasubtrees"): of_gangs,
        **{("kueue.x-k8s.io", name): queues.validate for name in queues.JUDGED},
    }


def with_sandbox(
    judges: dict[tuple[str, str], Judge], mounts: bool, applies: Callable[[], bool]
) -> dict[tuple[str, str], Judge]:
    """The same, and what a sandbox on the machine's own network can never give is refused where all pods run in it."""
    from shoal.controllers.queues.admission import first_refusal
    from shoal.local import sandbox_rules

    own = sandbox_rules.judge(sandbox_rules.around(mounts), applies)
    added: dict[tuple[str, str], Judge] = {
        key: first_refusal(judges[key], own) if key in judges else own for key in sandbox_rules.JUDGED
    }
    return {**judges, **added}


def with_environments(
    judges: dict[tuple[str, str], Judge], images: ImageTable, applies: Callable[[], bool]
) -> dict[tuple[str, str], Judge]:
    """The same, and a RayJob is refused whose runtime environment names a Python of this machine that cannot do."""
    from shoal.controllers.queues.admission import first_refusal
    from shoal.controllers.ray.guarded_yaml import parse
    from shoal.local import job_environments

    def judged(request: AdmissionRequest) -> AdmissionVerdict:
        job, old = request.object or {}, request.old_object or {}
        text = (job.get("spec") or {}).get("runtimeEnvYAML")
        if not isinstance(text, str) or text == (old.get("spec") or {}).get("runtimeEnvYAML") or not applies():
            return AdmissionVerdict()
        try:
            found = job_environments.problems(job, parse(text, "spec.runtimeEnvYAML", may_be_empty=True).data, images)
        except BadInput:
            return AdmissionVerdict()  # said by the rules of the kind
        message = f"{request.kind.kind} {request.name!r} is invalid: {'; '.join(found)}"
        return AdmissionVerdict(False, message, 422, "Invalid") if found else AdmissionVerdict()

    return {**judges, ("ray.io", "rayjobs"): first_refusal(judges["ray.io", "rayjobs"], judged)}


def preparers(
    client: Client, in_queues: QueueSettings | None = None, of_rays: RaySettings | None = None
) -> dict[tuple[str, str], Judge]:
    """What completes a new object before it is judged: jobs with a queue label begin suspended, Ray clusters have their
    token in their spec."""
    from shoal.controllers import ray
    from shoal.controllers.queues import admission as queues

    of_queues = queues.QueueAdmission(client, in_queues).prepare
    with_token = queues.one_after_another(of_queues, ray.token_default(of_rays or ray_settings(LocalSettings())))
    return {
        **dict.fromkeys(queues.prepared(), of_queues),
        ("ray.io", "rayclusters"): with_token,
        ("ray.io", "rayjobs"): with_token,
    }


def status_judges() -> dict[tuple[str, str], Judge]:
    """What refuses a status before it is stored."""
    from shoal.controllers.queues import admission as queues

    return {("kueue.x-k8s.io", name): queues.validate for name in queues.STATUS_JUDGED}


def updaters(of_rays: RaySettings | None = None) -> dict[tuple[str, str], Judge]:
    """What completes an update before it is judged."""
    from shoal.controllers import ray
    from shoal.controllers.queues import admission as queues

    return {
        ("kueue.x-k8s.io", "workloads"): queues.prepare,
        ("ray.io", "rayclusters"): ray.token_default(of_rays or ray_settings(LocalSettings())),
    }


def ray_settings(settings: LocalSettings) -> RaySettings:
    """The Ray operator's choices on one machine. Every cluster gets a token: an open dashboard runs anyone's code."""
    return choices.ray_settings(
        os.environ,
        settings.gangs,
        dashboard_by_pod_address=True,
        token_by_agent=True,
        mount_autoscaler_token=True,
        gang="on",
        pod_resize=False,  # a process has no size that its node could change
        drain_workers=False,  # the node agent gives Ray a deadline of its own
    )
