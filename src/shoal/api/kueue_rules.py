"""Kueue's admission rules for queues, cohorts and flavors, with its field paths, types and messages.

Called by the webhook and by the command line. Objects are v1beta2 JSON; v1beta1 ones are upgraded first. Field path and
type are what other software reads; messages are Kueue's where users know them.
"""

from __future__ import annotations

from typing import Any

from shoal.api.kueue_convert import upgrade
from shoal.api.meta import Json
from shoal.api.names import check_label_value, check_qualified
from shoal.api.problems import FieldError, check_amount
from shoal.api.quantity import parse
from shoal.errors import BadInput

_TRY_NEXT = "TryNextFlavor"
_MOST_CONCURRENT_FLAVORS = 16
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def validate_cluster_queue(
    obj: Json, old: Json | None = None, *, reject_stored_flavors: bool = False
) -> list[FieldError]:
    """All problems of a ClusterQueue; `reject_stored_flavors` also refuses unknown `onFlavors` stored before."""
    spec = upgrade(obj).get("spec") or {}
    errors = _check_groups(spec.get("resourceGroups") or [], spec.get("cohortName", ""), "cohort", cap_lending=True)
    errors += check_selector(spec.get("namespaceSelector"), "spec.namespaceSelector")
    errors += _check_preemption(spec.get("preemption") or {})
    errors += _check_preference(spec.get("flavorFungibility") or {})
    errors += _check_weight(spec)
    before = upgrade(old).get("spec") or {} if old is not None else {}
    errors += _check_strategy(spec, {} if reject_stored_flavors else before)
    errors += _check_concurrent(spec)
    if old is not None and before.get("concurrentAdmissionPolicy") != spec.get("concurrentAdmissionPolicy"):
        errors.append(FieldError("spec.concurrentAdmissionPolicy", "field is immutable"))
    return errors


def validate_cohort(obj: Json) -> list[FieldError]:
    spec = upgrade(obj).get("spec") or {}
    parent = spec.get("parentName", "")
    errors = _check_groups(spec.get("resourceGroups") or [], parent, "parent", cap_lending=False)
    return errors + _check_weight(spec)


def validate_resource_flavor(obj: Json) -> list[FieldError]:
    spec = obj.get("spec") or {}
    errors = check_labels(spec.get("nodeLabels"), "spec.nodeLabels")
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(spec.get("nodeTaints") or ()):
        path = f"spec.nodeTaints[{index}]"
        key, effect = taint.get("key", ""), taint.get("effect", "")
        errors += _problem(f"{path}.key", check_qualified(key))
        errors += _problem(f"{path}.value", check_label_value(taint.get("value", "")))
        if effect not in _EFFECTS:
            errors.append(FieldError(f"{path}.effect", _supported(_EFFECTS), "NotSupported"))
        if (key, effect) in seen:
            errors.append(FieldError(path, "taints must be unique by key and effect pair", "Duplicate"))
        seen.add((key, effect))
    return errors + check_tolerations(spec.get("tolerations"), "spec.tolerations")


# --- parts shared with other kinds


def check_labels(labels: Json | None, path: str) -> list[FieldError]:
    """Keys and values of a map that will become labels or a node selector."""
    errors: list[FieldError] = []
    for name, value in (labels or {}).items():
        errors += _problem(path, check_qualified(name))
        errors += _problem(path, check_label_value(str(value)))
    return errors


def check_tolerations(tolerations: list[Json] | None, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, toleration in enumerate(tolerations or ()):
        where = f"{path}[{index}]"
        key, operator = toleration.get("key", ""), toleration.get("operator") or "Equal"
        if key:
            errors += _problem(f"{where}.key", check_qualified(key))
        elif operator != "Exists":
            message = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            errors.append(FieldError(f"{where}.operator", message))
        if toleration.get("tolerationSeconds") is not None and toleration.get("effect") != "NoExecute":
            errors.append(FieldError(f"{where}.effect", "effect must be 'NoExecute' when `tolerationSeconds` is set"))
        if operator == "Exists" and toleration.get("value"):
            errors.append(FieldError(f"{where}.operator", "value must be empty when `operator` is 'Exists'"))
        elif operator == "Equal":
            errors += _problem(f"{where}.operator", check_label_value(toleration.get("value", "")))
        elif operator != "Exists":
            errors.append(FieldError(f"{where}.operator", _supported(("Equal", "Exists")), "NotSupported"))
    return errors


def check_selector(selector: Json | None, path: str) -> list[FieldError]:
    """A LabelSelector that can be evaluated."""
    errors = check_labels((selector or {}).get("matchLabels"), f"{path}.matchLabels")
    for index, term in enumerate((selector or {}).get("matchExpressions") or ()):
        where = f"{path}.matchExpressions[{index}]"
        operator, values = term.get("operator", ""), term.get("values") or []
        if operator in ("In", "NotIn") and not values:
            message = "must be specified when `operator` is 'In' or 'NotIn'"
            errors.append(FieldError(f"{where}.values", message, "Required"))
        elif operator in ("Exists", "DoesNotExist") and values:
            message = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            errors.append(FieldError(f"{where}.values", message, "Forbidden"))
        elif operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
            errors.append(FieldError(f"{where}.operator", "not a valid selector operator"))
        errors += _problem(f"{where}.key", check_qualified(term.get("key", "")))
    return errors


# --- quota


def _check_groups(groups: list[Json], parent: str, parent_word: str, *, cap_lending: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    resources: set[str] = set()
    flavors: set[str] = set()
    for index, group in enumerate(groups):
        path = f"spec.resourceGroups[{index}]"
        covered = group.get("coveredResources") or []
        for position, name in enumerate(covered):
            errors += _problem(f"{path}.coveredResources[{position}]", check_qualified(name))
            if name in resources:
                errors.append(FieldError(f"{path}.coveredResources[{position}]", "", "Duplicate"))
            resources.add(name)
        for position, flavor in enumerate(group.get("flavors") or ()):
            where = f"{path}.flavors[{position}]"
            name = flavor.get("name", "")
            if name in flavors:
                errors.append(FieldError(f"{where}.name", "", "Duplicate"))
            flavors.add(name)
            for place, quota in enumerate(flavor.get("resources") or ()):
                if place >= len(covered):
                    break  # the schema's own rule speaks of the number
                at = f"{where}.resources[{place}]"
                if quota.get("name") != covered[place]:
                    errors.append(FieldError(f"{at}.name", "must match the name in coveredResources"))
                errors += _check_quota(quota, at, parent, parent_word, cap_lending=cap_lending)
    return errors


def _check_quota(quota: Json, path: str, parent: str, parent_word: str, *, cap_lending: bool) -> list[FieldError]:
    errors = check_amount(f"{path}.nominalQuota", quota.get("nominalQuota", "0"))
    for name in ("borrowingLimit", "lendingLimit"):
        limit = quota.get(name)
        if limit is None:
            continue
        errors += check_amount(f"{path}.{name}", limit)
        if not parent:
            errors.append(FieldError(f"{path}.{name}", f"must be nil when {parent_word} is empty"))
    lending = quota.get("lendingLimit")
    if cap_lending and lending is not None and not errors and _nano(lending) > _nano(quota.get("nominalQuota", "0")):
        errors.append(FieldError(f"{path}.lendingLimit", "must be less than or equal to the nominalQuota"))
    return errors


def _check_preemption(preemption: Json) -> list[FieldError]:
    borrow = (preemption.get("borrowWithinCohort") or {}).get("policy") or "Never"
    if (preemption.get("reclaimWithinCohort") or "Never") == "Never" and borrow != "Never":
        return [FieldError("spec.preemption", "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never")]
    return []


def _check_preference(fungibility: Json) -> list[FieldError]:
    preference = fungibility.get("preference")
    borrow = fungibility.get("whenCanBorrow") or "MayStopSearch"
    preempt = fungibility.get("whenCanPreempt") or _TRY_NEXT
    if not preference or (borrow == _TRY_NEXT and preempt == _TRY_NEXT):
        return []
    message = f'preference "{preference}" requires both whenCanBorrow and whenCanPreempt to be TryNextFlavor'
    return [FieldError("spec.flavorFungibility.preference", message)]


def _check_weight(spec: Json) -> list[FieldError]:
    weight = (spec.get("fairSharing") or {}).get("weight")
    if weight is None:
        return []
    errors = check_amount("spec.fairSharing.weight", weight)
    if not errors and 0 < _nano(weight) <= 1:
        errors.append(FieldError("spec.fairSharing.weight", "must be greater than 1n, or 0"))
    return errors


# --- checks and concurrent admission


def _check_strategy(spec: Json, before: Json) -> list[FieldError]:
    """`onFlavors` names flavors of this queue; a rule that was already stored so is left alone."""
    flavors = [
        flavor.get("name", "") for group in spec.get("resourceGroups") or () for flavor in group.get("flavors") or ()
    ]
    stored = (before.get("admissionChecksStrategy") or {}).get("admissionChecks") or []
    same_flavors = before.get("resourceGroups") == spec.get("resourceGroups")
    errors: list[FieldError] = []
    for index, rule in enumerate((spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()):
        if same_flavors and rule in stored:
            continue
        for position, name in enumerate(rule.get("onFlavors") or ()):
            if name not in flavors:
                path = f"spec.admissionChecksStrategy.admissionChecks[{index}].onFlavors[{position}]"
                errors.append(FieldError(path, _supported(sorted(flavors)), "NotSupported"))
    return errors


def _check_concurrent(spec: Json) -> list[FieldError]:
    policy = spec.get("concurrentAdmissionPolicy")
    if not policy:
        return []
    errors: list[FieldError] = []
    groups = spec.get("resourceGroups") or []
    needed = "when ConcurrentAdmissionPolicy is defined"
    if len(groups) != 1:
        errors.append(FieldError("spec.resourceGroups", f"must have exactly one ResourceGroup {needed}"))
    elif len(groups[0].get("flavors") or ()) > _MOST_CONCURRENT_FLAVORS:
        message = f"cannot have more than {_MOST_CONCURRENT_FLAVORS} resource flavors in the ResourceGroup {needed}"
        errors.append(FieldError("spec.resourceGroups[0].flavors", message))
    if spec.get("queueingStrategy") == "StrictFIFO":
        message = "StrictFIFO queueing strategy cannot be used when ConcurrentAdmissionPolicy is defined"
        errors.append(FieldError("spec.queueingStrategy", message))
    return errors + _check_migration(policy.get("migration") or {}, groups)


def _check_migration(migration: Json, groups: list[Json]) -> list[FieldError]:
    constraints = migration.get("constraints")
    if constraints is None:
        return []
    path = "spec.concurrentAdmissionPolicy.migration.constraints"
    mode = migration.get("mode") or "TryPreferredFlavors"
    if mode != "TryPreferredFlavors":
        message = f'may only be set when migration.mode is "TryPreferredFlavors" (got "{mode}")'
        return [FieldError(path, message, "Forbidden")]
    last = constraints.get("lastAcceptableFlavorName", "")
    flavors = [flavor.get("name", "") for group in groups for flavor in group.get("flavors") or ()]
    if last and last not in flavors:
        message = f"must be one of the flavors defined in the ClusterQueue: [{' '.join(flavors)}]"
        return [FieldError(f"{path}.lastAcceptableFlavorName", message)]
    return []


def _nano(text: Any) -> int:
    try:
        return parse(text).nano
    except BadInput:
        return 0


def _problem(path: str, message: str) -> list[FieldError]:
    return [FieldError(path, message)] if message else []


def _supported(values: Any) -> str:
    return "supported values: " + ", ".join(f'"{value}"' for value in values)
