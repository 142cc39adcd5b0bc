"""`matchConditions` of webhooks: CEL expressions that decide whether a webhook is asked at all.

An expression that cannot be evaluated counts as the webhook's own failure: its policy decides.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

from shoal.api.meta import Json
from shoal.errors import BadInput, ShoalError
from shoal.local.apiserver.cel.cost import MOST_CALL, cost, measure, weigh
from shoal.local.apiserver.cel.rules import TAIL, environment

_MOST_KEPT = 256


class ConditionFailed(ShoalError):
    """A condition has no answer."""


def matches(conditions: list[Json], request: Json) -> bool:
    """Whether all hold for an admission request (`object`, `oldObject` and `request` are its parts)."""
    seen = {"object": request.get("object"), "oldObject": request.get("oldObject"), "request": request}
    size = measure([seen["object"], seen["oldObject"]])
    answer, failed = True, ""
    for condition in conditions:
        try:
            source = str(condition.get("expression", ""))
            if cost(weigh(source), size) > MOST_CALL:
                raise RuntimeError("it would cost too much for a request of this size")
            found = _compiled(source).eval(data=seen)
            name = found.type().name()
            if name != "BOOL":
                raise RuntimeError(f"its value is of type {name.lower()}, not bool")
        except (RuntimeError, ValueError) as error:
            failed = failed or f"match condition {condition.get('name')!r} cannot be evaluated: {error}"
            continue
        if not found.value():
            answer = False  # one that says no settles it, whatever the others would have said
    if answer and failed:
        raise ConditionFailed(failed)
    return answer


def complaint(expression: str) -> str:
    """Why an expression cannot be a condition, or nothing. One that asks the authorizer, which this server does not
    have, is a good expression all the same, and fails when it is asked."""
    if re.search(r"\bauthorizer\b", expression):
        return ""
    try:
        found = _compiled(expression).return_type().name()
    except (RuntimeError, ValueError) as error:
        return f"compilation failed: {TAIL.sub('', str(error))}"
    return "" if found in ("BOOL", "DYN") else "must evaluate to bool"


@lru_cache(maxsize=_MOST_KEPT)
def _compiled(expression: str) -> Any:
    return _environment().compile(expression)


@cache
def _environment() -> Any:
    try:
        return environment("object", "oldObject", "request")
    except BadInput as error:
        raise ConditionFailed(str(error)) from None
