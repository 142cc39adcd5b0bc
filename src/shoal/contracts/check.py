"""The contract of an admission check that is answered here: it says why, it comes to an end, it changes nothing.

Called by tests of a package with a check, with an AdmissionCheck of theirs. Asks the class only; no server is needed.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from shoal.api.labels import KUEUE_MULTIKUEUE, KUEUE_PROVISIONING
from shoal.api.meta import Json
from shoal.contracts.loading import load
from shoal.controllers.queues.checks import AnsweredCheck, CheckAnswer
from shoal.controllers.queues.checks.base import STATES, lacking
from shoal.errors import BadInput

_NAME = re.compile(r"[a-z0-9.-]+\.[a-z0-9-]+/[a-z0-9.-]+")
_RESERVED = (KUEUE_PROVISIONING, KUEUE_MULTIKUEUE)
_WORKLOAD: Json = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "Workload",
    "metadata": {"name": "job-example-1a2b3", "namespace": "default", "uid": "1", "labels": {}, "annotations": {}},
    "spec": {
        "queueName": "jobs",
        "podSets": [
            {"name": "main", "count": 2, "template": {"spec": {"containers": [{"name": "main", "image": "busybox"}]}}}
        ],
    },
    "status": {"conditions": [{"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved"}]},
}


def missing_from_check(check: str | AnsweredCheck, example: Json) -> list[str]:
    """What keeps the class or object (or the path of one) from being an admission check; `example` is an
    AdmissionCheck object that names it."""
    try:
        ours: Any = load(check) if isinstance(check, str) else check() if isinstance(check, type) else check
    except BadInput as error:
        return [str(error)]
    if missing := lacking(ours):
        return [f"it lacks {', '.join(missing)}"]
    name = ours.controller_name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return ["`controller_name` must read domain/name, such as example.com/budget"]
    if name in _RESERVED:
        return [f"`controller_name` {name} is answered by Shoal itself; choose another"]
    if (example.get("spec") or {}).get("controllerName") != name:
        return [f"the example must be an AdmissionCheck with spec.controllerName: {name}"]
    before, workload = copy.deepcopy(example), copy.deepcopy(_WORKLOAD)
    try:
        found = _answers(ours, workload, example)
    except Exception as error:  # whatever a stranger's code raises is what is wrong with it
        return [f"it raised {type(error).__name__}: {error}"]
    if example != before or workload != _WORKLOAD:
        found.append("it changed an object that it was given")
    return found


def _answers(check: AnsweredCheck, workload: Json, example: Json) -> list[str]:
    now = 1_800_000_000_000_000
    if problem := check.problem(example):
        return [f"`problem` refuses the example: {problem}"]
    given = check.answer(workload, example, now)
    if not isinstance(given, CheckAnswer):
        return ["`answer` must return a CheckAnswer"]
    found = []
    if given.state not in STATES:
        found.append(f"`answer` says {given.state!r}; it must be one of {', '.join(STATES)}")
    if given.state != "Ready" and not given.message:
        found.append(f"`answer` says {given.state} without a message; users read it in `shoal why`")
    if given.look_again is not None and given.look_again <= 0:
        found.append("`look_again` must be a number of seconds above 0")
    if check.answer(workload, example, now) != given:
        found.append("`answer` differs when it is asked the same again")
    return found
