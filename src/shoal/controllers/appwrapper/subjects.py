"""AppWrappers as the desk of questions sees them: how one fares, and whether the engine can say why it waits."""

from __future__ import annotations

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.controllers.appwrapper.caches import WrapperCaches
from shoal.controllers.appwrapper.status import explain
from shoal.controllers.appwrapper.v1beta1.status import TERMINAL
from shoal.controllers.appwrapper.wrapped import gang_key
from shoal.controllers.planning.loop import PlanningLoop
from shoal.controllers.planning.questions.subject import QuestionSubject

ADMITTED = "it was admitted and is being started"


def wrapper_subject(caches: WrapperCaches, planning: PlanningLoop, group: str, key: Key) -> QuestionSubject | None:
    """The AppWrapper of that name; of two groups that have one, the current comes first."""
    for kind in (kinds.APP_WRAPPER, kinds.APP_WRAPPER_LEGACY):
        wrapper = caches.wrapper(kind, key) if group in ("", kind.group) else None
        if wrapper is None:
            continue
        status, uid, name = wrapper.status, wrapper.metadata.uid, gang_key(wrapper)
        state = status.state or status.phase or "Pending"
        if state in TERMINAL or state == "Succeeded":
            return QuestionSubject(uid=uid, state=state, reason="Finished", message=status.message)
        if wrapper.spec.suspend:
            return QuestionSubject(uid=uid, state=state, reason="Held", message="spec.suspend is true")
        known = planning.engine.gang(name)
        if not explain.is_waiting(wrapper):
            return QuestionSubject(uid=uid, state=state, reason="Starting" if state == "Pending" else "Running")
        if known is None or known.uid != uid:
            return QuestionSubject(
                uid=uid, state=state, reason="NotSeen", message="the controller has not looked at it yet"
            )
        if known.state == "admitted":
            return QuestionSubject(uid=uid, state=state, reason="Starting", message=ADMITTED)
        if known.state == "held":
            return QuestionSubject(uid=uid, state=state, reason="Held", message=status.message)
        hold = planning.decisions.hold(name, uid)
        said = hold.explanation.message if hold is not None else status.message
        return QuestionSubject(uid=uid, state=state, reason="Room", message=said, gang=name, hold=hold)
    return None
