"""What is wrong with roles, their bindings and webhook configurations: who may do what, and who is asked.

Only `built_in.py` calls this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.api import kinds
from shoal.local.apiserver.primitives import names
from shoal.local.apiserver.primitives.field_errors import InvalidField, invalid, not_supported, required

Json = dict[str, Any]


def validate_binding(obj: Json, old: Json | None) -> list[InvalidField]:
    errors = []
    role = obj.get("roleRef") or {}
    if role.get("kind") not in ("Role", "ClusterRole"):
        errors.append(not_supported("roleRef.kind", role.get("kind") or "", ["Role", "ClusterRole"]))
    if not role.get("name"):
        errors.append(required("roleRef.name"))
    for index, subject in enumerate(obj.get("subjects") or ()):
        path = f"subjects[{index}]"
        if not subject.get("name"):
            errors.append(required(f"{path}.name"))
        if subject.get("kind") not in ("ServiceAccount", "User", "Group"):
            kinds_ = ["Group", "ServiceAccount", "User"]
            errors.append(not_supported(f"{path}.kind", subject.get("kind") or "", kinds_))
            continue
        if subject["kind"] == "ServiceAccount" and not subject.get("namespace") and _is_cluster_wide(obj):
            errors.append(required(f"{path}.namespace"))
        group = "" if subject["kind"] == "ServiceAccount" else kinds.ROLE.group
        if (subject.get("apiGroup") or "") not in (group, ""):
            errors.append(not_supported(f"{path}.apiGroup", subject["apiGroup"], [group]))
    if old is not None and obj.get("roleRef") != old.get("roleRef"):
        errors.append(invalid("roleRef", obj.get("roleRef"), "cannot change roleRef"))
    return errors


def _is_cluster_wide(obj: Json) -> bool:
    return not (obj.get("metadata") or {}).get("namespace")


def validate_role(obj: Json, old: Json | None) -> list[InvalidField]:
    errors = []
    if obj.get("aggregationRule") is not None and not (obj["aggregationRule"] or {}).get("clusterRoleSelectors"):
        words = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        errors.append(required("aggregationRule.clusterRoleSelectors", words))
    for index, rule in enumerate(obj.get("rules") or ()):
        path = f"rules[{index}]"
        if not rule.get("verbs"):
            errors.append(required(f"{path}.verbs", "verbs must contain at least one value"))
        if rule.get("nonResourceURLs"):
            continue
        if not rule.get("apiGroups"):
            errors.append(required(f"{path}.apiGroups", "resource rules must supply at least one api group"))
        if not rule.get("resources"):
            errors.append(required(f"{path}.resources", "resource rules must supply at least one resource"))
    return errors


def validate_webhooks(obj: Json, old: Json | None) -> list[InvalidField]:
    errors = []
    for index, hook in enumerate(obj.get("webhooks") or ()):
        path = f"webhooks[{index}]"
        complaints = names.dns_subdomain(str(hook.get("name") or ""))
        if str(hook.get("name") or "").count(".") < 2:
            complaints.append("should be a domain with at least three segments separated by dots")
        errors += [invalid(f"{path}.name", hook.get("name") or "", complaint) for complaint in complaints]
        config = hook.get("clientConfig") or {}
        if bool(config.get("url")) == bool(config.get("service")):
            errors.append(required(f"{path}.clientConfig", "exactly one of url or service is required"))
        if not hook.get("sideEffects"):
            errors.append(required(f"{path}.sideEffects", "must specify one of None, NoneOnDryRun"))
        elif hook["sideEffects"] not in ("None", "NoneOnDryRun"):
            errors.append(not_supported(f"{path}.sideEffects", hook["sideEffects"], ["None", "NoneOnDryRun"]))
        if not hook.get("admissionReviewVersions"):
            words = "must specify one of v1, v1beta1"
            errors.append(required(f"{path}.admissionReviewVersions", words))
        if not 1 <= hook.get("timeoutSeconds", 10) <= 30:
            words = "the timeout value must be between 1 and 30 seconds"
            errors.append(invalid(f"{path}.timeoutSeconds", hook["timeoutSeconds"], words))
        if hook.get("failurePolicy") not in ("Ignore", "Fail"):
            errors.append(not_supported(f"{path}.failurePolicy", hook.get("failurePolicy"), ["Fail", "Ignore"]))
        errors += _match_conditions(hook.get("matchConditions") or [], f"{path}.matchConditions")
    return errors


def _match_conditions(conditions: list[Json], path: str) -> Iterator[InvalidField]:
    if not conditions:
        return
    from shoal.local.apiserver.cel.match_conditions import complaint  # brings CEL, which few need

    for index, condition in enumerate(conditions):
        expression = str(condition.get("expression") or "").strip()
        if not condition.get("name"):
            yield required(f"{path}[{index}].name")
        if not expression:
            yield required(f"{path}[{index}].expression")
        elif words := complaint(expression):
            yield invalid(f"{path}[{index}].expression", condition["expression"], words)
