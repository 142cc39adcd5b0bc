"""`matchConditions` of webhooks: CEL expressions that decide whether a webhook is asked at all.

An expression that cannot be evaluated counts as the webhook's own failure: its policy decides.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from shoal.api.meta import Json
from shoal.errors import ShoalError

_MOST_KEPT = 256


class ConditionFailed(ShoalError):
    """A condition has no answer."""


def matches(conditions: list[Json], request: Json) -> bool:
    """Whether all hold for an admission request (`object`, `oldObject` and `request` are its parts)."""
    seen = {"object": request.get("object"), "oldObject": request.get("oldObject"), "request": request}
    answer, failed = True, ""
    for condition in conditions:
        try:
            found = _compiled(str(condition.get("expression", ""))).eval(data=seen)
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


@lru_cache(maxsize=_MOST_KEPT)
def _compiled(expression: str) -> Any:
    return _environment().compile(expression)


@cache
def _environment() -> Any:
    try:
        from cel_expr_python import cel
        from cel_expr_python.ext import ext_bindings, ext_math, ext_optional, ext_strings
    except ImportError:
        raise ConditionFailed(
            "the CEL library is not installed; install it with: pip install 'shoal-ray[local]'"
        ) from None
    from shoal.local.apiserver.cel_functions import extension

    names = dict.fromkeys(("object", "oldObject", "request"), cel.Type.DYN)
    extensions = [
        ext_strings.ExtStrings(),
        ext_math.ExtMath(),
        ext_optional.ExtOptional(),
        ext_bindings.ExtBindings(),
        extension(cel),
    ]
    return cel.NewEnv(variables=names, extensions=extensions)
