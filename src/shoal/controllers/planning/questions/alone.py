"""Ray kinds, Jobs, JobSets and pods that no queue and no AppWrapper holds: which of their pods do not run, and why.

No plan speaks of them; their pods' own statuses do. The object is read when it is asked about, its pods come from the
cache of the loop that plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from shoal.api import kinds
from shoal.api.codec import opened
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.api.pod_told import why_pending
from shoal.api.questions import UnplacedPod
from shoal.controllers.planning.pods import SeenPod
from shoal.controllers.planning.questions.subject import QuestionSubject
from shoal.controllers.planning.words import printable
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, NotFound

KINDS = (
    kinds.RAY_JOB, kinds.RAY_CLUSTER, kinds.RAY, kinds.JOB, kinds.JOB_SET, kinds.RAY_SERVICE, kinds.POD,
)  # fmt: skip
MOST_PODS = 5
ENDED = ("Complete", "Completed", "Succeeded", "Failed", "ValidationFailed")


async def subject_alone(
    client: Client, group: str, kind: str, key: Key, pods_below: Callable[[str], Iterable[SeenPod]]
) -> QuestionSubject | None:
    for one in KINDS:
        if kind != one.kind or group not in ("", one.group):
            continue
        try:
            obj: Json = await client.get(one, key.name, key.namespace)
        except (NotFound, Forbidden):
            continue
        return _subject(obj, {pod.metadata.uid: pod for pod in pods_below(obj["metadata"]["uid"])}.values())
    return None


def _subject(obj: Json, pods: Iterable[SeenPod]) -> QuestionSubject:
    status, spec, uid = obj.get("status") or {}, obj.get("spec") or {}, obj["metadata"]["uid"]
    names = ("jobDeploymentStatus", "terminalState", "serviceStatus", "state")
    state = next((str(status[name]) for name in names if status.get(name)), "")
    if obj.get("kind") == kinds.POD.kind:
        state = str(status.get("phase") or "Pending")
    if state in ENDED or _has_ended(status):
        return QuestionSubject(
            uid=uid, state=state or "Finished", reason="Finished", message=str(status.get("message") or "")
        )
    if spec.get("suspend"):
        return QuestionSubject(uid=uid, state=state or "Suspended", reason="Held", message="spec.suspend is true")
    seen = sorted(pods, key=lambda pod: pod.metadata.name)
    reasons = [(pod.metadata.name, why_pending(_opened(pod), opened(pod.spec))) for pod in seen]
    pending = [UnplacedPod(name=name, message=printable(message, 300)) for name, message in reasons if message]
    if not seen:
        message = str(status.get("reason") or status.get("message") or "its controller has created no pods yet")
        return QuestionSubject(uid=uid, state=state or "New", reason="NotSeen", message=message)
    if not pending:
        return QuestionSubject(
            uid=uid, state=state or "Running", reason="Running", message=str(status.get("message") or "")
        )
    first = pending[0]
    message = f"{len(pending)} of {len(seen)} pods pending: {first.name}: {first.message}"
    return QuestionSubject(
        uid=uid, state=state or "Pending", reason="PodsPending", message=message,
        pending_pods=tuple(pending[:MOST_PODS]),
    )  # fmt: skip


def _has_ended(status: Json) -> bool:
    return any(
        one.get("type") in ("Complete", "Failed") and one.get("status") == "True"
        for one in status.get("conditions") or ()
    )


def _opened(pod: SeenPod) -> Json:
    parts = (("conditions", pod.status.conditions), ("containerStatuses", pod.status.container_statuses))
    return {"phase": pod.status.phase, **{name: msgspec.json.decode(raw) for name, raw in parts if raw}}
