"""What the API server fills in when a built-in object leaves it out.

Called on every write of a built-in kind, after decoding and before validation, on the request's own object, which is
changed in place. Filling in twice is the same as once. Fields that depend on other objects (service accounts,
priorities, addresses) are not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.labels import BATCH_CONTROLLER_UID, BATCH_JOB_NAME

Json = dict[str, Any]

RBAC_GROUP = "rbac.authorization.k8s.io"


def default(kind: Kind, obj: Json) -> None:
    """Fill in what `kind` promises. Kinds without defaults are left alone."""
    fill = _DEFAULTS.get(kind.group_kind)
    if fill is not None:
        fill(obj)


def _defaults(into: Json, **values: Any) -> None:
    for name, value in values.items():
        if name not in into:
            into[name] = value


def _under(obj: Json, name: str) -> Json:
    found = obj.setdefault(name, {})
    return found if isinstance(found, dict) else {}


def _each(obj: Json, name: str) -> list[Json]:
    found = obj.get(name)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


# --- pods


def pod_spec(spec: Json) -> None:
    """Defaults that pods and templates share."""
    _defaults(spec, restartPolicy="Always", dnsPolicy="ClusterFirst", terminationGracePeriodSeconds=30,
              schedulerName="default-scheduler")  # fmt: skip
    spec.setdefault("securityContext", {})
    if spec.get("serviceAccountName") and "serviceAccount" not in spec:
        spec["serviceAccount"] = spec["serviceAccountName"]
    for name in ("containers", "initContainers", "ephemeralContainers"):
        for container in _each(spec, name):
            _container(container, bool(spec.get("hostNetwork")))
    for volume in _each(spec, "volumes"):
        _volume(volume)
    for constraint in _each(spec, "topologySpreadConstraints"):
        _defaults(constraint, nodeAffinityPolicy="Honor", nodeTaintsPolicy="Ignore")


def _container(container: Json, host_network: bool) -> None:
    image = str(container.get("image") or "")
    tag = image.rpartition("/")[2]
    latest = "@" not in tag and (":" not in tag or tag.endswith(":latest"))
    _defaults(container, terminationMessagePath="/dev/termination-log", terminationMessagePolicy="File",
              imagePullPolicy="Always" if latest else "IfNotPresent")  # fmt: skip
    container.setdefault("resources", {})
    for port in _each(container, "ports"):
        _defaults(port, protocol="TCP")
        if host_network and "containerPort" in port:
            _defaults(port, hostPort=port["containerPort"])
    for variable in _each(container, "env"):
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if isinstance(reference, dict):
            _defaults(reference, apiVersion="v1")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if isinstance(container.get(name), dict):
            _probe(container[name])
    for moment in (container.get("lifecycle") or {}).values():
        if isinstance(moment, dict) and isinstance(moment.get("httpGet"), dict):
            _defaults(moment["httpGet"], path="/", scheme="HTTP")


def _probe(probe: Json) -> None:
    _defaults(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
    if isinstance(probe.get("httpGet"), dict):
        _defaults(probe["httpGet"], path="/", scheme="HTTP")
    if isinstance(probe.get("grpc"), dict):
        _defaults(probe["grpc"], service="")


def _volume(volume: Json) -> None:
    if set(volume) <= {"name"}:
        volume["emptyDir"] = {}
    for name in ("secret", "configMap", "downwardAPI", "projected"):
        if isinstance(volume.get(name), dict):
            _defaults(volume[name], defaultMode=420)
    if isinstance(volume.get("hostPath"), dict):
        _defaults(volume["hostPath"], type="")
    for source in _each(volume.get("projected") or {}, "sources"):
        if isinstance(source.get("serviceAccountToken"), dict):
            _defaults(source["serviceAccountToken"], expirationSeconds=3600)
        _field_refs(source.get("downwardAPI") or {})
    _field_refs(volume.get("downwardAPI") or {})


def _field_refs(source: Json) -> None:
    for item in _each(source, "items"):
        if isinstance(item.get("fieldRef"), dict):
            _defaults(item["fieldRef"], apiVersion="v1")


def _pod(pod: Json) -> None:
    spec = _under(pod, "spec")
    pod_spec(spec)
    _defaults(spec, enableServiceLinks=True)
    for name in ("containers", "initContainers"):
        for container in _each(spec, name):
            resources = container.get("resources") or {}
            limits = resources.get("limits") or {}
            if limits:
                _defaults(resources.setdefault("requests", {}), **limits)


def _template(owner: Json) -> None:
    template = _under(owner, "template")
    template.setdefault("metadata", {})
    pod_spec(_under(template, "spec"))


# --- workloads


def _labels_from_template(obj: Json) -> None:
    labels = (((obj.get("spec") or {}).get("template") or {}).get("metadata") or {}).get("labels")
    metadata = _under(obj, "metadata")
    if labels and not metadata.get("labels"):
        metadata["labels"] = dict(labels)


def _deployment(obj: Json) -> None:
    spec = _under(obj, "spec")
    _template(spec)
    _defaults(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600)
    strategy = _under(spec, "strategy")
    _defaults(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _defaults(_under(strategy, "rollingUpdate"), maxUnavailable="25%", maxSurge="25%")


def _replica_set(obj: Json) -> None:
    spec = _under(obj, "spec")
    _template(spec)
    _defaults(spec, replicas=1)


def _replication_controller(obj: Json) -> None:
    _replica_set(obj)
    _labels_from_template(obj)
    labels = ((obj["spec"].get("template") or {}).get("metadata") or {}).get("labels")
    if labels and not obj["spec"].get("selector"):
        obj["spec"]["selector"] = dict(labels)


def _stateful_set(obj: Json) -> None:
    spec = _under(obj, "spec")
    _template(spec)
    _defaults(spec, replicas=1, podManagementPolicy="OrderedReady", revisionHistoryLimit=10)
    strategy = _under(spec, "updateStrategy")
    _defaults(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _defaults(_under(strategy, "rollingUpdate"), partition=0)
    _defaults(_under(spec, "persistentVolumeClaimRetentionPolicy"), whenDeleted="Retain", whenScaled="Retain")
    for claim in _each(spec, "volumeClaimTemplates"):
        _claim(claim)
        _defaults(claim, apiVersion="v1", kind="PersistentVolumeClaim")
        claim.setdefault("status", {"phase": "Pending"})


def _daemon_set(obj: Json) -> None:
    spec = _under(obj, "spec")
    _template(spec)
    _defaults(spec, revisionHistoryLimit=10)
    strategy = _under(spec, "updateStrategy")
    _defaults(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _defaults(_under(strategy, "rollingUpdate"), maxUnavailable=1, maxSurge=0)


def job_spec(spec: Json) -> None:
    _template(spec)
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    policy = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    limit = 2**31 - 1 if spec.get("backoffLimitPerIndex") is not None else 6
    _defaults(spec, parallelism=1, backoffLimit=limit, completionMode="NonIndexed", suspend=False,
              podReplacementPolicy=policy)  # fmt: skip
    for rule in _each(spec.get("podFailurePolicy") or {}, "rules"):
        for pattern in _each(rule, "onPodConditions"):
            _defaults(pattern, status="True")


def _job(obj: Json) -> None:
    spec = _under(obj, "spec")
    job_spec(spec)
    _defaults(spec, manualSelector=False)
    _labels_from_template(obj)


def select_own_pods(job: Json) -> None:
    """The selector that makes a new Job's pods its own: made by the server, so that no two Jobs share a pod."""
    spec = _under(job, "spec")
    if "selector" in spec or spec.get("manualSelector"):
        return
    name, uid = str(job["metadata"].get("name") or ""), str(job["metadata"].get("uid") or "")
    shares = job["metadata"].get("labels") == ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    labels = _under(_under(_under(spec, "template"), "metadata"), "labels")
    labels.update({BATCH_CONTROLLER_UID: uid, "controller-uid": uid,
                   BATCH_JOB_NAME: name, "job-name": name})  # fmt: skip
    spec["selector"] = {"matchLabels": {BATCH_CONTROLLER_UID: uid}}
    if shares:  # labels that came from the template go on doing so
        job["metadata"]["labels"] = dict(labels)


def _cron_job(obj: Json) -> None:
    spec = _under(obj, "spec")
    _defaults(spec, concurrencyPolicy="Allow", suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1)
    template = _under(spec, "jobTemplate")
    template.setdefault("metadata", {})
    inner = _under(template, "spec")
    _template(inner)


# --- services and the rest


def _service(obj: Json) -> None:
    spec = _under(obj, "spec")
    _defaults(spec, type="ClusterIP", sessionAffinity="None")
    if spec["sessionAffinity"] == "ClientIP":
        _defaults(_under(_under(spec, "sessionAffinityConfig"), "clientIP"), timeoutSeconds=10800)
    for port in _each(spec, "ports"):
        _defaults(port, protocol="TCP")
        if port.get("targetPort") in (None, 0, "") and "port" in port:
            port["targetPort"] = port["port"]
    if spec["type"] in ("NodePort", "LoadBalancer"):
        _defaults(spec, externalTrafficPolicy="Cluster")
    if spec["type"] == "LoadBalancer":
        _defaults(spec, allocateLoadBalancerNodePorts=True)
        for entry in _each((obj.get("status") or {}).get("loadBalancer") or {}, "ingress"):
            if entry.get("ip"):
                _defaults(entry, ipMode="VIP")
    if spec["type"] != "ExternalName":
        _defaults(spec, internalTrafficPolicy="Cluster")


def _endpoints(obj: Json) -> None:
    for subset in _each(obj, "subsets"):
        for port in _each(subset, "ports"):
            _defaults(port, protocol="TCP")


def _endpoint_slice(obj: Json) -> None:
    for port in _each(obj, "ports"):
        _defaults(port, protocol="TCP", name="")
    for endpoint in _each(obj, "endpoints"):
        endpoint.setdefault("conditions", {})


def _secret(obj: Json) -> None:
    _defaults(obj, type="Opaque")


def _claim(obj: Json) -> None:
    _defaults(_under(obj, "spec"), volumeMode="Filesystem")


def _volume_resource(obj: Json) -> None:
    spec = _under(obj, "spec")
    _defaults(spec, persistentVolumeReclaimPolicy="Retain", volumeMode="Filesystem")
    if isinstance(spec.get("hostPath"), dict):
        _defaults(spec["hostPath"], type="")


def _storage_class(obj: Json) -> None:
    _defaults(obj, reclaimPolicy="Delete", volumeBindingMode="Immediate")


def _node(obj: Json) -> None:
    status = _under(obj, "status")
    if status.get("capacity") and "allocatable" not in status:
        status["allocatable"] = dict(status["capacity"])
    spec = obj.get("spec") or {}
    if spec.get("podCIDRs") and not spec.get("podCIDR"):
        spec["podCIDR"] = spec["podCIDRs"][0]
    elif spec.get("podCIDR") and not spec.get("podCIDRs"):
        spec["podCIDRs"] = [spec["podCIDR"]]


def _priority_class(obj: Json) -> None:
    _defaults(obj, preemptionPolicy="PreemptLowerPriority")


def _binding(obj: Json) -> None:
    role = _under(obj, "roleRef")
    _defaults(role, apiGroup=RBAC_GROUP)
    for subject in _each(obj, "subjects"):
        if subject.get("kind") in ("User", "Group"):
            _defaults(subject, apiGroup=RBAC_GROUP)


def _webhooks(obj: Json) -> None:
    mutating = obj.get("kind") == "MutatingWebhookConfiguration"
    for hook in _each(obj, "webhooks"):
        _defaults(hook, failurePolicy="Fail", matchPolicy="Equivalent", timeoutSeconds=10)
        hook.setdefault("namespaceSelector", {})
        hook.setdefault("objectSelector", {})
        if mutating:
            _defaults(hook, reinvocationPolicy="Never")
        for rule in _each(hook, "rules"):
            _defaults(rule, scope="*")
        service = (hook.get("clientConfig") or {}).get("service")
        if isinstance(service, dict):
            _defaults(service, port=443)


def _crd(obj: Json) -> None:
    spec = _under(obj, "spec")
    names = _under(spec, "names")
    kind = str(names.get("kind") or "")
    if kind:
        _defaults(names, singular=kind.lower(), listKind=f"{kind}List")
    conversion = _under(spec, "conversion")
    _defaults(conversion, strategy="None")
    service = ((conversion.get("webhook") or {}).get("clientConfig") or {}).get("service")
    if isinstance(service, dict):
        _defaults(service, port=443)


def _network_policy(obj: Json) -> None:
    spec = _under(obj, "spec")
    if "policyTypes" not in spec:
        spec["policyTypes"] = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    for direction in ("ingress", "egress"):
        for rule in _each(spec, direction):
            for port in _each(rule, "ports"):
                _defaults(port, protocol="TCP")


def _limit_range(obj: Json) -> None:
    for limit in _each(obj.get("spec") or {}, "limits"):
        if limit.get("type") != "Container":
            continue
        fallback = _under(limit, "default")
        for name, value in (limit.get("max") or {}).items():
            fallback.setdefault(name, value)
        requests = _under(limit, "defaultRequest")
        for source in (limit.get("default") or {}, limit.get("min") or {}):
            for name, value in source.items():
                requests.setdefault(name, value)
        for name in ("default", "defaultRequest"):
            if not limit[name]:
                del limit[name]


_DEFAULTS: dict[str, Callable[[Json], None]] = {
    kinds.POD.group_kind: _pod, kinds.POD_TEMPLATE.group_kind: _template, kinds.DEPLOYMENT.group_kind: _deployment,
    kinds.REPLICA_SET.group_kind: _replica_set, kinds.REPLICATION_CONTROLLER.group_kind: _replication_controller,
    kinds.STATEFUL_SET.group_kind: _stateful_set, kinds.DAEMON_SET.group_kind: _daemon_set, kinds.JOB.group_kind: _job,
    kinds.CRON_JOB.group_kind: _cron_job, kinds.SERVICE.group_kind: _service, kinds.ENDPOINTS.group_kind: _endpoints,
    kinds.ENDPOINT_SLICE.group_kind: _endpoint_slice, kinds.SECRET.group_kind: _secret,
    kinds.PERSISTENT_VOLUME_CLAIM.group_kind: _claim, kinds.NODE.group_kind: _node,
    kinds.PRIORITY_CLASS.group_kind: _priority_class, kinds.ROLE_BINDING.group_kind: _binding,
    kinds.CLUSTER_ROLE_BINDING.group_kind: _binding, kinds.MUTATING_WEBHOOK.group_kind: _webhooks,
    kinds.VALIDATING_WEBHOOK.group_kind: _webhooks, kinds.CRD.group_kind: _crd,
    "PersistentVolume": _volume_resource, "StorageClass.storage.k8s.io": _storage_class,
    kinds.NETWORK_POLICY.group_kind: _network_policy, kinds.LIMIT_RANGE.group_kind: _limit_range,
}  # fmt: skip
