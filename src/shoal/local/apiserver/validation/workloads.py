"""Deployments, sets and jobs: selectors that fit their templates, and what may not change."""

from __future__ import annotations

from typing import Any

from shoal.local.apiserver.primitives.field_errors import InvalidField, forbidden, invalid, not_supported, required
from shoal.local.apiserver.primitives.values import clone
from shoal.local.apiserver.requests.selectors import label_selector
from shoal.local.apiserver.validation.affinity import selector_errors
from shoal.local.apiserver.validation.claims import claim_spec
from shoal.local.apiserver.validation.pods import validate_pod_spec

Json = dict[str, Any]

_MUTABLE_SET = frozenset(
    [
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "minReadySeconds",
        "persistentVolumeClaimRetentionPolicy",
    ]
)
_LARGEST_INDEXED = 100_000


def _spec(obj: Json | None) -> Json:
    return (obj or {}).get("spec") or {}


def _template(spec: Json) -> Json:
    return spec.get("template") or {}


def _not_negative(spec: Json, *fields: str) -> list[InvalidField]:
    return [
        invalid(f"spec.{name}", spec[name], "must be greater than or equal to 0")
        for name in fields
        if isinstance(spec.get(name), int) and spec[name] < 0
    ]


def _selector(spec: Json, old: Json | None) -> list[InvalidField]:
    """A selector that is there, is good, and selects what the template makes."""
    found = spec.get("selector")
    labels = (_template(spec).get("metadata") or {}).get("labels") or {}
    if found is None:
        mismatch = invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
        return [required("spec.selector"), mismatch]
    errors = selector_errors(found, "spec.selector")
    if not found.get("matchLabels") and not found.get("matchExpressions"):
        errors.append(invalid("spec.selector", found, "empty selector is invalid for deployment"))
    if not errors and not label_selector(found)(labels):
        words = "`selector` does not match template `labels`"
        errors.append(invalid("spec.template.metadata.labels", labels, words))
    if old is not None and found != _spec(old).get("selector"):
        errors.append(invalid("spec.selector", found, "field is immutable"))
    return errors


def _always_running(spec: Json, old: Json | None) -> list[InvalidField]:
    """A template whose pods run for ever."""
    if old is not None and _template(spec) == _template(_spec(old)):
        return []
    pod = _template(spec).get("spec") or {}
    errors = validate_pod_spec(pod, "spec.template.spec")
    if pod.get("restartPolicy") in ("OnFailure", "Never"):
        errors.append(not_supported("spec.template.spec.restartPolicy", pod["restartPolicy"], ["Always"]))
    return errors


def _is_nought(value: Any) -> bool:
    return value == 0 or (isinstance(value, str) and value.rstrip("%").strip("0") == "" and value.endswith("%"))


def validate_deployment(obj: Json, old: Json | None) -> list[InvalidField]:
    spec = _spec(obj)
    errors = _not_negative(spec, "replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds")
    errors += _selector(spec, old) + _always_running(spec, old)
    strategy = spec.get("strategy") or {}
    if strategy.get("type") not in ("Recreate", "RollingUpdate"):
        allowed = ["Recreate", "RollingUpdate"]
        errors.append(not_supported("spec.strategy.type", strategy.get("type"), allowed))
    elif strategy["type"] == "Recreate" and strategy.get("rollingUpdate"):
        words = "may not be specified when strategy `type` is 'Recreate'"
        errors.append(forbidden("spec.strategy.rollingUpdate", words))
    rolling = strategy.get("rollingUpdate") or {}
    if rolling and _is_nought(rolling.get("maxUnavailable")) and _is_nought(rolling.get("maxSurge")):
        words = "may not be 0 when `maxSurge` is 0"
        errors.append(invalid("spec.strategy.rollingUpdate.maxUnavailable", rolling.get("maxUnavailable"), words))
    if (spec.get("progressDeadlineSeconds") or 600) <= (spec.get("minReadySeconds") or 0):
        words = "must be greater than minReadySeconds"
        errors.append(invalid("spec.progressDeadlineSeconds", spec.get("progressDeadlineSeconds"), words))
    return errors


def validate_replica_set(obj: Json, old: Json | None) -> list[InvalidField]:
    spec = _spec(obj)
    return _not_negative(spec, "replicas", "minReadySeconds") + _selector(spec, old) + _always_running(spec, old)


def validate_replication_controller(obj: Json, old: Json | None) -> list[InvalidField]:
    spec = _spec(obj)
    errors = _not_negative(spec, "replicas", "minReadySeconds") + _always_running(spec, old)
    wanted, labels = spec.get("selector") or {}, (_template(spec).get("metadata") or {}).get("labels") or {}
    if not wanted:
        errors.append(required("spec.selector"))
    elif any(labels.get(name) != value for name, value in wanted.items()):
        errors.append(invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`"))
    return errors


def validate_daemon_set(obj: Json, old: Json | None) -> list[InvalidField]:
    spec = _spec(obj)
    return _not_negative(spec, "minReadySeconds") + _selector(spec, old) + _always_running(spec, old)


def validate_stateful_set(obj: Json, old: Json | None) -> list[InvalidField]:
    spec, before = _spec(obj), _spec(old)
    errors = _not_negative(spec, "replicas", "minReadySeconds") + _always_running(spec, old)
    if old is None:
        for index, claim in enumerate(spec.get("volumeClaimTemplates") or ()):
            errors += claim_spec(_spec(claim), f"spec.volumeClaimTemplates[{index}].spec")
        return errors + _selector(spec, None)
    if any(spec.get(name) != before.get(name) for name in (spec.keys() | before.keys()) - _MUTABLE_SET):
        words = (
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
            "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
        )
        errors.append(forbidden("spec", words))
    return errors


def validate_job(obj: Json, old: Json | None) -> list[InvalidField]:
    spec = _spec(obj)
    errors = _job_spec(spec, "spec")
    if old is None:
        errors += _job_template(spec, "spec")
        found = spec.get("selector")
        labels = (_template(spec).get("metadata") or {}).get("labels") or {}
        wrong = selector_errors(found, "spec.selector") if found else [required("spec.selector")]
        if not wrong and not label_selector(found)(labels):
            wrong = [invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")]
        errors += wrong
        return errors
    return errors + _job_update(obj, old)


def _job_spec(spec: Json, path: str) -> list[InvalidField]:
    fields = ("parallelism", "completions", "backoffLimit", "backoffLimitPerIndex", "maxFailedIndexes",
              "activeDeadlineSeconds", "ttlSecondsAfterFinished")  # fmt: skip
    errors = [
        invalid(f"{path}.{name}", spec[name], "must be greater than or equal to 0")
        for name in fields
        if isinstance(spec.get(name), int) and spec[name] < 0
    ]
    mode = spec.get("completionMode")
    if mode not in ("NonIndexed", "Indexed"):
        errors.append(not_supported(f"{path}.completionMode", mode, ["Indexed", "NonIndexed"]))
    if mode == "Indexed":
        if spec.get("completions") is None:
            errors.append(required(f"{path}.completions", "when completion mode is Indexed"))
        if (spec.get("parallelism") or 0) > _LARGEST_INDEXED:
            words = f"must be less than or equal to {_LARGEST_INDEXED} when completion mode is Indexed"
            errors.append(invalid(f"{path}.parallelism", spec["parallelism"], words))
    elif spec.get("backoffLimitPerIndex") is not None:
        words = "requires indexed completion mode"
        errors.append(invalid(f"{path}.backoffLimitPerIndex", spec["backoffLimitPerIndex"], words))
    return errors


def _job_template(spec: Json, path: str) -> list[InvalidField]:
    pod = _template(spec).get("spec") or {}
    errors = validate_pod_spec(pod, f"{path}.template.spec")
    if pod.get("restartPolicy") in (None, "Always"):
        words = 'valid values: "OnFailure", "Never"'
        errors.append(required(f"{path}.template.spec.restartPolicy", words))
    elif spec.get("podFailurePolicy") and pod.get("restartPolicy") != "Never":
        words = 'only "Never" is supported when podFailurePolicy is specified'
        errors.append(invalid(f"{path}.template.spec.restartPolicy", pod.get("restartPolicy"), words))
    return errors


def _job_update(obj: Json, old: Json) -> list[InvalidField]:
    spec, before = _spec(obj), _spec(old)
    errors: list[InvalidField] = []
    for name in (
        "selector",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ):
        if spec.get(name) != before.get(name):
            errors.append(invalid(f"spec.{name}", spec.get(name), "field is immutable"))
    if spec.get("completions") != before.get("completions"):
        indexed = spec.get("completionMode") == "Indexed"
        if not indexed or spec.get("completions") != spec.get("parallelism"):
            errors.append(invalid("spec.completions", spec.get("completions"), "field is immutable"))
    if _template(spec) != _template(before) and _fixed(_template(spec), old) != _fixed(_template(before), old):
        errors.append(invalid("spec.template", _template(spec), "field is immutable"))
    return errors


def _fixed(template: Json, old: Json) -> Json:
    """The part of a Job's template that may not change: all of it, save where a job that waits may still be sent
    elsewhere. Queues rely on that: they place a suspended job before they start it."""
    status = old.get("status") or {}
    waits = _spec(old).get("suspend") and not status.get("startTime")
    suspended = any(c.get("type") == "Suspended" and c.get("status") == "True" for c in status.get("conditions") or ())
    if not waits and not (_spec(old).get("suspend") and suspended):
        return template
    trial: Json = clone(template)
    pod = trial.get("spec") or {}
    for name in ("nodeSelector", "affinity", "tolerations", "schedulingGates"):
        pod.pop(name, None)
    for group in ("containers", "initContainers"):
        for container in pod.get(group) or ():
            container.pop("resources", None)
    for name in ("labels", "annotations"):
        (trial.get("metadata") or {}).pop(name, None)
    return trial


def validate_cron_job(obj: Json, old: Json | None) -> list[InvalidField]:
    spec = _spec(obj)
    errors: list[InvalidField] = []
    schedule = str(spec.get("schedule") or "")
    if not schedule:
        errors.append(required("spec.schedule"))
    elif not schedule.startswith("@") and len(schedule.split()) != 5:
        words = f"expected exactly 5 fields, found {len(schedule.split())}: {schedule}"
        errors.append(invalid("spec.schedule", schedule, words))
    if spec.get("concurrencyPolicy") not in ("Allow", "Forbid", "Replace"):
        allowed = ["Allow", "Forbid", "Replace"]
        errors.append(not_supported("spec.concurrencyPolicy", spec.get("concurrencyPolicy"), allowed))
    template = (spec.get("jobTemplate") or {}).get("spec") or {}
    return errors + _job_template(template, "spec.jobTemplate.spec")
