"""Manifests that are asked about and not stored: as the object that they would be, and as a subject to answer about.

Pure. A draft lies in the question's own namespace, is as young as the question, and was created by its asker: nothing
that the manifest claims about these counts.
"""

from __future__ import annotations

import msgspec

from shoal.api.gang import CREATED_BY
from shoal.api.meta import Json
from shoal.api.questions import QuestionSpec
from shoal.controllers.planning.questions.subject import QuestionSubject
from shoal.engine.explain import DraftTrial
from shoal.engine.model import Gang
from shoal.errors import BadInput

MOST_PODS = 4096
"""Up to which the largest gang is looked for."""
_STARTS = "there is quota and room for it; it would start at once"
_UNKNOWN = "this cluster is too large to try it out"


def manifest_of(question: Json, spec: QuestionSpec, now: str) -> Json:
    """Raises BadInput where there is none."""
    if not bytes(spec.manifest):
        raise BadInput("spec.manifest is missing")
    found: Json = msgspec.json.decode(spec.manifest, type=dict)
    asked = question["metadata"]
    metadata = dict(found.get("metadata") or {})
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != CREATED_BY}
    recorded = (asked.get("annotations") or {}).get(CREATED_BY)
    if recorded:
        annotations[CREATED_BY] = recorded
    for name in ("ownerReferences", "managedFields", "finalizers", "deletionTimestamp"):
        metadata.pop(name, None)
    metadata |= {
        "name": str(metadata.get("name") or metadata.get("generateName") or "draft"),
        "namespace": asked["namespace"],
        "uid": f"draft-{asked['uid']}",
        "resourceVersion": asked["resourceVersion"],
        "creationTimestamp": now,
        "generation": 1,
        "annotations": annotations,
    }
    return {**found, "metadata": metadata, "status": {}}


def subject_of(gang: Gang, trial: DraftTrial) -> QuestionSubject:
    if trial.verdict == "starts":
        return QuestionSubject(uid=gang.uid, state="Draft", reason="Starting", message=_STARTS)
    message = _UNKNOWN if trial.verdict == "unknown" else ""
    return QuestionSubject(uid=gang.uid, state="Draft", reason="Quota", message=message, gang=gang.key)
