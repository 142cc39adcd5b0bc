"""Which function judges which kind, beyond what its schema can say.

Every function takes a plain object, the one it replaces (on update) and the feature gates that differ from their
defaults, and returns all problems found. Ray's own kinds are judged by the Ray operator, with its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shoal.api.appwrapper_rules import validate_app_wrapper, validate_quota_subtree
from shoal.api.kueue_rules import validate_cluster_queue, validate_cohort, validate_resource_flavor
from shoal.api.kueue_workload_rules import validate_workload
from shoal.api.meta import Json
from shoal.api.problems import FieldError

Gates = Mapping[str, bool]
_Judge = Callable[[Json, Json | None, Gates], list[FieldError]]


def _cluster_queue(obj: Json, old: Json | None, gates: Gates) -> list[FieldError]:
    strict = gates.get("RejectUpdatesToCQWithInvalidOnFlavors", False)
    return validate_cluster_queue(obj, old, reject_stored_flavors=strict)


_JUDGES: dict[str, _Judge] = {
    "AppWrapper": lambda obj, old, gates: validate_app_wrapper(obj, old),
    "QuotaSubtree": lambda obj, old, gates: validate_quota_subtree(obj),
    "ClusterQueue": _cluster_queue,
    "Cohort": lambda obj, old, gates: validate_cohort(obj),
    "ResourceFlavor": lambda obj, old, gates: validate_resource_flavor(obj),
    "Workload": validate_workload,
}


def validate(obj: Json, old: Json | None = None, gates: Gates | None = None) -> list[FieldError]:
    """The problems of an object at create, or at update when `old` is given. Kinds without rules have none."""
    judge = _JUDGES.get(obj.get("kind", ""))
    return judge(obj, old, gates or {}) if judge else []
