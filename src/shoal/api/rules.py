"""Which function judges which kind, beyond what its schema can say.

Every function takes a plain object (and the one it replaces, on update) and returns all problems found. Ray's own kinds
are judged by the Ray operator, which also needs its settings for that.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.api.appwrapper_rules import validate_app_wrapper, validate_quota_subtree
from shoal.api.kueue_rules import (
    validate_cluster_queue,
    validate_cohort,
    validate_resource_flavor,
)
from shoal.api.meta import Json
from shoal.api.problems import FieldError

_Judge = Callable[[Json, Json | None], list[FieldError]]

_JUDGES: dict[str, _Judge] = {
    "AppWrapper": validate_app_wrapper,
    "QuotaSubtree": validate_quota_subtree,
    "ClusterQueue": validate_cluster_queue,
    "Cohort": validate_cohort,
    "ResourceFlavor": validate_resource_flavor,
}


def validate(obj: Json, old: Json | None = None) -> list[FieldError]:
    """The problems of an object at create, or at update when `old` is given. Kinds without rules have none."""
    judge = _JUDGES.get(obj.get("kind", ""))
    return judge(obj, old) if judge else []
