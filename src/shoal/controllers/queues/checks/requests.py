"""ProvisioningRequests of Workloads: which pods they ask room for, what they are made of, what their state means.

As Kueue, with two differences: the attempt stays readable however long the names are, and pod sets that were merged
into another one get its annotations, too. Pure.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from shoal.api import kinds, kueue_names
from shoal.api.autoscaling import CLASS_ANNOTATION, CONSUME_ANNOTATION
from shoal.api.booking import is_over
from shoal.api.kind import Kind
from shoal.api.kueue import ProvisioningRequestConfig
from shoal.api.kueue_workload import Workload
from shoal.api.meta import Json
from shoal.api.node_pools import obtains
from shoal.controllers.queues.inject import InjectedInfo, merged
from shoal.controllers.queues.names import attempt_of, request_name, template_name

_SCHEDULING = ("nodeSelector", "tolerations", "affinity", "resourceClaims")


class Wanted(msgspec.Struct, frozen=True):
    """One pod set of a request: the first pod set's template, the pods of all that share it."""

    name: str
    count: int
    template: Json
    members: tuple[str, ...]


class RequestAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a check is set to."""

    state: str
    message: str = ""
    requeue_after: int | None = None
    updates: tuple[Json, ...] | None = None


def condition(request: Json, kind: str) -> Json | None:
    found = (request.get("status") or {}).get("conditions") or ()
    return next((one for one in found if one.get("type") == kind), None)


def holds(request: Json, kind: str) -> bool:
    return (condition(request, kind) or {}).get("status") == "True"


def message(request: Json, kind: str) -> str:
    return str((condition(request, kind) or {}).get("message") or "")


# --- which request counts


def attempts(found: Iterable[Json], workload: Workload, check: str) -> list[tuple[int, Json]]:
    """Attempt and request, the highest first; only requests of this very workload and check."""
    name = workload.metadata.name
    numbered = [(attempt_of(one["metadata"]["name"], name, check), one) for one in found]
    return sorted(
        ((number, one) for number, one in numbered if number and not one["metadata"].get("deletionTimestamp")),
        key=lambda pair: pair[0],
        reverse=True,
    )


def live_requests(found: list[Json], workload: Workload, checks: Iterable[str]) -> dict[str, Json]:
    """The newest request of each check that is not over."""
    live = {}
    for check in checks:
        numbered = attempts(found, workload, check)
        if numbered and not is_over(numbered[0][1]):
            live[check] = numbered[0][1]
    return live


def fits_config(request: Json, config: ProvisioningRequestConfig) -> bool:
    """Was it made by this config? Otherwise a new one takes its place."""
    spec, wanted = request.get("spec") or {}, config.spec
    if spec.get("provisioningClassName") != wanted.provisioning_class_name:
        return False
    return (wanted.parameters or {}).items() <= (spec.get("parameters") or {}).items()


def consuming(infos: list[InjectedInfo], found: Iterable[Json]) -> list[InjectedInfo]:
    """Pods of a gang for which nodes were asked for without any check take those nodes."""
    own = [one for one in found if obtains(one) and not is_over(one) and not one["metadata"].get("deletionTimestamp")]
    if not own:
        return infos
    marks = {
        CONSUME_ANNOTATION: own[0]["metadata"]["name"],
        CLASS_ANNOTATION: str((own[0].get("spec") or {}).get("provisioningClassName") or ""),
    }
    return [msgspec.structs.replace(one, annotations={**marks, **one.annotations}) for one in infos]


# --- what it asks for


def admitted_pod_sets(workload: Workload) -> set[str]:
    """Names of the pod sets that were given something."""
    admission = workload.status.admission
    return {one.name for one in (admission.pod_set_assignments if admission is not None else ())}


def wanted_pod_sets(workload: Workload, config: ProvisioningRequestConfig, infos: list[InjectedInfo]) -> list[Wanted]:
    """Pod sets with pods that use a managed resource; merged where the config says so."""
    managed, policy = set(config.spec.managed_resources or ()), config.spec.pod_set_merge_policy
    found: list[Wanted] = []
    by_name = {info.name: info for info in infos}
    for pod_set in workload.spec.pod_sets:
        name = pod_set.name or "main"
        info = by_name.get(name)
        count = info.count if info is not None else 0
        if count <= 0 or pod_set.count <= 0 or not _uses(pod_set.template, managed):
            continue
        template = _template(pod_set.template, info)
        for index, earlier in enumerate(found):
            if policy and _alike(earlier.template, template, policy):
                found[index] = msgspec.structs.replace(
                    earlier, count=earlier.count + count, members=(*earlier.members, name)
                )
                break
        else:
            found.append(Wanted(name, count, template, (name,)))
    return found


def objects(
    workload: Workload, check: str, attempt: int, config: ProvisioningRequestConfig, wanted: list[Wanted]
) -> tuple[list[Json], Json]:
    """Templates and request. The templates are to be created first: a request must never name what does not exist."""
    name, namespace = request_name(workload.metadata.name, check, attempt), workload.metadata.namespace
    owner = workload_reference(workload)
    templates: list[Json] = [
        {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {
                "name": template_name(name, one.name),
                "namespace": namespace,
                "labels": {kueue_names.MANAGED: "true"},
                "ownerReferences": [owner],
            },
            "template": one.template,
        }
        for one in wanted
    ]
    parameters = dict(config.spec.parameters or {})
    for key, value in (workload.metadata.annotations or {}).items():
        if key.startswith(kueue_names.PROVISIONING_PREFIX):
            parameters[key.removeprefix(kueue_names.PROVISIONING_PREFIX)] = value
    body: Json = {
        "provisioningClassName": config.spec.provisioning_class_name,
        "podSets": [
            {"podTemplateRef": {"name": template["metadata"]["name"]}, "count": one.count}
            for template, one in zip(templates, wanted, strict=True)
        ],
    }
    if parameters:
        body["parameters"] = parameters
    request = {
        "apiVersion": kinds.PROVISIONING_REQUEST.api_version,
        "kind": kinds.PROVISIONING_REQUEST.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {kueue_names.MANAGED: "true"},
            "ownerReferences": [owner],
        },
        "spec": body,
    }
    return templates, request


def workload_reference(workload: Workload) -> Json:
    return reference(kinds.WORKLOAD, workload.metadata.name, workload.metadata.uid)


def reference(kind: Kind, name: str, uid: str) -> Json:
    """To the one owner that controls an object."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _template(template: Json, info: InjectedInfo | None) -> Json:
    """The pods as they will be bound: on their flavors' nodes, with limits standing in for missing requests."""
    made: Json = {"metadata": copy.deepcopy(template.get("metadata") or {}), "spec": copy.deepcopy(template["spec"])}
    if info is not None:
        placed = InjectedInfo(
            name=info.name, count=info.count, node_selector=info.node_selector, tolerations=info.tolerations
        )
        made = merged(made, placed)
    spec = made["spec"]
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        resources = container.get("resources") or {}
        if resources.get("limits"):
            container["resources"] = {
                **resources,
                "requests": {**resources["limits"], **(resources.get("requests") or {})},
            }
        container.setdefault("image", "pause")  # containers that only stand for what will be added
        container.setdefault("name", "pod")
    spec.setdefault("restartPolicy", "Never")
    return made


def _uses(template: Json, managed: set[str]) -> bool:
    if not managed:
        return True
    spec = template.get("spec") or {}
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        resources = container.get("resources") or {}
        if managed & {*(resources.get("requests") or {}), *(resources.get("limits") or {})}:
            return True
    return False


def _alike(one: Json, other: Json, policy: str) -> bool:
    if policy == "IdenticalPodTemplates":
        return one == other
    first, second = one["spec"], other["spec"]

    def asked(spec: Json) -> list[Any]:
        groups = (spec.get("containers") or (), spec.get("initContainers") or ())
        return [[(each.get("resources") or {}).get("requests") for each in group] for group in groups]

    same = asked(first) == asked(second) and first.get("resources") == second.get("resources")
    return same and all(first.get(name) == second.get(name) for name in _SCHEDULING)


# --- what it answers


def answer(
    request: Json,
    attempt: int,
    check: Json,
    config: ProvisioningRequestConfig,
    wanted: list[Wanted],
    *,
    admitted: bool,
    jitter: Callable[[], float],
    late: str = "",
) -> RequestAnswer:
    """The check's state by the request's conditions; the first that applies counts. `late`: why it waits no longer."""
    if holds(request, "Failed"):
        return _retry(message(request, "Failed"), "failure", attempt, check, config, jitter)
    if holds(request, "CapacityRevoked"):
        return RequestAnswer(state="Rejected", message=message(request, "CapacityRevoked"))
    if holds(request, "BookingExpired") and admitted:  # its pods use what was booked: nothing changes any more
        return RequestAnswer(state=str(check.get("state") or "Pending"), message=str(check.get("message") or ""))
    if holds(request, "BookingExpired"):
        return _retry(message(request, "BookingExpired"), "booking expired", attempt, check, config, jitter)
    if holds(request, "Provisioned"):
        updates = tuple(_update(name, request, config) for one in wanted for name in one.members)
        return RequestAnswer(state="Ready", message=message(request, "Provisioned"), updates=updates)
    if late:
        return _retry(late, "delay", attempt, check, config, jitter)
    if holds(request, "Accepted"):
        return RequestAnswer(state="Pending", message=message(request, "Provisioned"))
    return RequestAnswer(state="Pending")


def _retry(
    text: str,
    word: str,
    attempt: int,
    check: Json,
    config: ProvisioningRequestConfig,
    jitter: Callable[[], float],
) -> RequestAnswer:
    strategy = config.spec.retry_strategy
    count = int(check.get("retryCount") or 0)
    if attempt > strategy.backoff_limit_count:
        return RequestAnswer(state="Rejected", message=text)
    said = f"Retrying after {word}: {text}"
    if attempt <= count:  # this attempt was answered for before: its eviction is over
        return RequestAnswer(state=str(check.get("state") or "Pending"), message=said)
    wait = min(float(strategy.backoff_max_seconds), strategy.backoff_base_seconds * 2.0 ** min(count, 30))
    return RequestAnswer(state="Retry", message=said, requeue_after=int(wait * (1 + jitter())))


def _update(pod_set: str, request: Json, config: ProvisioningRequestConfig) -> Json:
    made: Json = {
        "name": pod_set,
        "annotations": {
            CONSUME_ANNOTATION: request["metadata"]["name"],
            CLASS_ANNOTATION: (request.get("spec") or {}).get("provisioningClassName") or "",
        },
    }
    details = (request.get("status") or {}).get("provisioningClassDetails") or {}
    updates = config.spec.pod_set_updates
    chosen = (updates.node_selector if updates is not None else None) or ()
    selector = {
        one.key: details[one.value_from_provisioning_class_detail]
        for one in chosen
        if one.value_from_provisioning_class_detail in details
    }
    if selector:
        made["nodeSelector"] = selector
    return made
