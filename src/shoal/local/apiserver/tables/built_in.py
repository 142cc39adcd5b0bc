"""The columns of built-in kinds, as `kubectl get` and `kubectl get -o wide` show them.

Each kind has its columns and a function from an object to its cells. Only `table.py` calls this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.times import parse_time
from shoal.local.apiserver.tables.cells import (
    TableColumn,
    age,
    age_of,
    condition_of,
    containers_of,
    duration,
    labels_line,
    metadata_of,
    name_of,
    selector,
    spec_of,
    status_of,
)
from shoal.local.apiserver.tables.claims import claim_row, storage_class_row, volume_row
from shoal.local.apiserver.tables.pods import pod_row

Json = dict[str, Any]
Cells = Callable[[Json, int], list[Any]]


def layout(kind: Kind) -> tuple[list[TableColumn], Cells] | None:
    """Columns and row function of a built-in kind, or None."""
    return _LAYOUTS.get(kind.group_kind)


# --- rows


def _node(item: Json, now: int) -> list[Any]:
    info, addresses = status_of(item).get("nodeInfo") or {}, status_of(item).get("addresses") or []
    ready = condition_of(item, "Ready").get("status")
    words = ["Ready" if ready == "True" else "NotReady" if ready in ("False", "Unknown") else "Unknown"]
    if spec_of(item).get("unschedulable"):
        words.append("SchedulingDisabled")
    prefix = "node-role.kubernetes.io/"
    labels = metadata_of(item).get("labels") or {}
    roles = sorted(
        [key[len(prefix) :] for key in labels if key.startswith(prefix)]
        + [value for key, value in labels.items() if key == "kubernetes.io/role" and value]
    )
    address = {a.get("type"): a.get("address") for a in addresses}
    return [name_of(item), ",".join(words), ",".join(roles) or "<none>", age_of(item, now),
            info.get("kubeletVersion") or "", address.get("InternalIP") or "<none>",
            address.get("ExternalIP") or "<none>",
            info.get("osImage") or "<unknown>", info.get("kernelVersion") or "<unknown>",
            info.get("containerRuntimeVersion") or "<unknown>"]  # fmt: skip


def _service(item: Json, now: int) -> list[Any]:
    spec = spec_of(item)
    kind = spec.get("type") or "ClusterIP"
    ports = []
    for port in spec.get("ports") or ():
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        ports.append(f"{port.get('port')}{node}/{port.get('protocol') or 'TCP'}")
    external = ",".join(spec.get("externalIPs") or ())
    if kind == "LoadBalancer":
        ingress = (status_of(item).get("loadBalancer") or {}).get("ingress") or []
        external = ",".join(str(i.get("ip") or i.get("hostname")) for i in ingress) or external or "<pending>"
    elif kind == "ExternalName":
        external = spec.get("externalName") or ""
    return [name_of(item), kind, spec.get("clusterIP") or "<none>", external or "<none>", ",".join(ports) or "<none>",
            age_of(item, now), labels_line(spec.get("selector"))]  # fmt: skip


def _deployment(item: Json, now: int) -> list[Any]:
    status = status_of(item)
    names, images = containers_of(item)
    return [name_of(item), f"{status.get('readyReplicas') or 0}/{spec_of(item).get('replicas', 0)}",
            status.get("updatedReplicas") or 0, status.get("availableReplicas") or 0, age_of(item, now), names, images,
            selector(spec_of(item).get("selector"))]  # fmt: skip


def _replica_set(item: Json, now: int) -> list[Any]:
    status = status_of(item)
    names, images = containers_of(item)
    found = spec_of(item).get("selector")
    if found and "matchLabels" not in found and "matchExpressions" not in found:
        found = {"matchLabels": found}  # a ReplicationController's selector is a plain map
    counts = spec_of(item).get("replicas", 0), status.get("replicas") or 0, status.get("readyReplicas") or 0
    return [name_of(item), *counts, age_of(item, now), names, images, selector(found)]


def _stateful_set(item: Json, now: int) -> list[Any]:
    ready = f"{status_of(item).get('readyReplicas') or 0}/{spec_of(item).get('replicas', 0)}"
    return [name_of(item), ready, age_of(item, now), *containers_of(item)]


def _daemon_set(item: Json, now: int) -> list[Any]:
    status = status_of(item)
    counts = [status.get(name) or 0 for name in ("desiredNumberScheduled", "currentNumberScheduled", "numberReady",
                                                 "updatedNumberScheduled", "numberAvailable")]  # fmt: skip
    nodes = labels_line(((spec_of(item).get("template") or {}).get("spec") or {}).get("nodeSelector"))
    return [
        name_of(item),
        *counts,
        nodes,
        age_of(item, now),
        *containers_of(item),
        selector(spec_of(item).get("selector")),
    ]


def _job(item: Json, now: int) -> list[Any]:
    spec, status = spec_of(item), status_of(item)
    done, parallel = status.get("succeeded") or 0, spec.get("parallelism") or 0
    if spec.get("completions") is not None:
        completions = f"{done}/{spec['completions']}"
    else:
        completions = f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"
    span = ""
    if status.get("startTime"):
        end = status.get("completionTime")
        moment = parse_time(end) if end else now
        span = duration((moment - parse_time(status["startTime"])) // 1_000_000)
    if condition_of(item, "Complete").get("status") == "True":
        state = "Complete"
    elif condition_of(item, "Failed").get("status") == "True":
        state = "Failed"
    elif metadata_of(item).get("deletionTimestamp"):
        state = "Terminating"
    elif condition_of(item, "Suspended").get("status") == "True":
        state = "Suspended"
    elif condition_of(item, "FailureTarget").get("status") == "True":
        state = "FailureTarget"
    else:
        state = "Running"
    return [
        name_of(item),
        state,
        completions,
        span,
        age_of(item, now),
        *containers_of(item),
        selector(spec.get("selector")),
    ]


def _cron_job(item: Json, now: int) -> list[Any]:
    spec, status = spec_of(item), status_of(item)
    containers = containers_of({"spec": (spec.get("jobTemplate") or {}).get("spec") or {}})
    last = age(status["lastScheduleTime"], now) if status.get("lastScheduleTime") else "<none>"
    return [name_of(item), spec.get("schedule") or "", spec.get("timeZone") or "<none>", str(bool(spec.get("suspend"))),
            len(status.get("active") or ()), last, age_of(item, now), *containers,
            selector(((spec.get("jobTemplate") or {}).get("spec") or {}).get("selector"))]  # fmt: skip


def _event(item: Json, now: int) -> list[Any]:
    about = item.get("involvedObject") or item.get("regarding") or {}
    first = item.get("firstTimestamp") or item.get("deprecatedFirstTimestamp") or item.get("eventTime")
    series = item.get("series") or {}
    last = series.get("lastObservedTime") or item.get("lastTimestamp") or item.get("deprecatedLastTimestamp") or first
    count = series.get("count") or item.get("count") or item.get("deprecatedCount") or 1
    source = item.get("source") or item.get("deprecatedSource") or {}
    component = source.get("component") or item.get("reportingComponent") or item.get("reportingController") or ""
    if source.get("host"):
        component = f"{component}, {source['host']}"
    return [age(last, now), item.get("type") or "", item.get("reason") or "",
            f"{str(about.get('kind') or '').lower()}/{about.get('name') or ''}", about.get("fieldPath") or "",
            component, str(item.get("message") or item.get("note") or "").strip(), age(first, now), count,
            name_of(item)]  # fmt: skip


def _namespace(item: Json, now: int) -> list[Any]:
    return [name_of(item), status_of(item).get("phase") or "Active", age_of(item, now)]


def _secret(item: Json, now: int) -> list[Any]:
    return [name_of(item), item.get("type") or "Opaque", len(item.get("data") or ()), age_of(item, now)]


def _config_map(item: Json, now: int) -> list[Any]:
    return [name_of(item), len(item.get("data") or ()) + len(item.get("binaryData") or ()), age_of(item, now)]


def _service_account(item: Json, now: int) -> list[Any]:
    return [name_of(item), age_of(item, now)]


def _lease(item: Json, now: int) -> list[Any]:
    return [name_of(item), spec_of(item).get("holderIdentity") or "", age_of(item, now)]


def _priority_class(item: Json, now: int) -> list[Any]:
    policy = item.get("preemptionPolicy") or "PreemptLowerPriority"
    return [name_of(item), item.get("value") or 0, bool(item.get("globalDefault")), age_of(item, now), policy]


def _created_at(item: Json, now: int) -> list[Any]:
    return [name_of(item), metadata_of(item).get("creationTimestamp") or ""]


def _binding(item: Json, now: int) -> list[Any]:
    role = item.get("roleRef") or {}
    people: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for subject in item.get("subjects") or ():
        name = str(subject.get("name"))
        if subject.get("kind") == "ServiceAccount":
            name = f"{subject.get('namespace')}/{name}"
        people.setdefault(str(subject.get("kind")), []).append(name)
    who = [", ".join(people[kind]) for kind in ("User", "Group", "ServiceAccount")]
    return [name_of(item), f"{role.get('kind')}/{role.get('name')}", age_of(item, now), *who]


def _endpoints(item: Json, now: int) -> list[Any]:
    found = []
    for subset in item.get("subsets") or ():
        for address in subset.get("addresses") or ():
            found += [f"{address.get('ip')}:{port.get('port')}" for port in subset.get("ports") or ()] or [
                str(address.get("ip"))
            ]
    return [name_of(item), _brief(found), age_of(item, now)]


def _brief(found: list[str]) -> str:
    more = f" + {len(found) - 3} more..." if len(found) > 3 else ""
    return ",".join(found[:3]) + more if found else "<none>"


def _endpoint_slice(item: Json, now: int) -> list[Any]:
    ports = _brief([str(port.get("port")) for port in item.get("ports") or ()]) if item.get("ports") else "<unset>"
    addresses = [a for endpoint in item.get("endpoints") or () for a in endpoint.get("addresses") or ()]
    shown = _brief(addresses) if item.get("endpoints") else "<unset>"
    return [name_of(item), item.get("addressType") or "", ports, shown, age_of(item, now)]


def _ingress_class(item: Json, now: int) -> list[Any]:
    spec = spec_of(item)
    about = spec.get("parameters") or {}
    group = f".{about['apiGroup']}" if about.get("apiGroup") else ""
    shown = f"{about.get('kind')}{group}/{about.get('name')}" if about else "<none>"
    return [name_of(item), spec.get("controller") or "", shown, age_of(item, now)]


def _runtime_class(item: Json, now: int) -> list[Any]:
    return [name_of(item), item.get("handler") or "", age_of(item, now)]


def _quota(item: Json, now: int) -> list[Any]:
    hard, used = status_of(item).get("hard") or {}, status_of(item).get("used") or {}
    requests: list[str] = []
    limits: list[str] = []
    for name in sorted(hard):
        (limits if name.startswith("limits") else requests).append(f"{name}: {used.get(name, '0')}/{hard[name]}")
    return [name_of(item), ", ".join(requests), ", ".join(limits), age_of(item, now)]


def _ingress(item: Json, now: int) -> list[Any]:
    spec = spec_of(item)
    hosts = [str(rule["host"]) for rule in spec.get("rules") or () if rule.get("host")]
    ingress = (status_of(item).get("loadBalancer") or {}).get("ingress") or []
    address = ",".join(str(i.get("ip") or i.get("hostname")) for i in ingress)
    return [name_of(item), spec.get("ingressClassName") or "<none>", ",".join(hosts) or "*", address,
            "80, 443" if spec.get("tls") else "80", age_of(item, now)]  # fmt: skip


def _network_policy(item: Json, now: int) -> list[Any]:
    return [name_of(item), selector(spec_of(item).get("podSelector")), age_of(item, now)]


def _webhooks(item: Json, now: int) -> list[Any]:
    return [name_of(item), len(item.get("webhooks") or ()), age_of(item, now)]


def _budget(item: Json, now: int) -> list[Any]:
    spec = spec_of(item)
    least = spec["minAvailable"] if spec.get("minAvailable") is not None else "N/A"
    most = spec["maxUnavailable"] if spec.get("maxUnavailable") is not None else "N/A"
    return [name_of(item), str(least), str(most), status_of(item).get("disruptionsAllowed") or 0, age_of(item, now)]


def _api_service(item: Json, now: int) -> list[Any]:
    service = spec_of(item).get("service") or {}
    where = f"{service.get('namespace')}/{service.get('name')}" if service else "Local"
    available = condition_of(item, "Available")
    shown = str(available.get("status") or "Unknown")
    if shown != "True" and available.get("reason"):
        shown += f" ({available['reason']})"
    return [name_of(item), where, shown, age_of(item, now)]


def _template(item: Json, now: int) -> list[Any]:
    pod = item.get("template") or {}
    names, images = containers_of({"spec": {"template": pod}})
    return [name_of(item), names, images, labels_line((pod.get("metadata") or {}).get("labels"))]


def _revision(item: Json, now: int) -> list[Any]:
    owner = next((o for o in metadata_of(item).get("ownerReferences") or () if o.get("controller")), None)
    shown = f"{str(owner.get('kind')).lower()}/{owner.get('name')}" if owner else "<none>"
    return [name_of(item), shown, str(item.get("revision") or 0), age_of(item, now)]


def _pod(item: Json, now: int) -> list[Any]:
    return [*pod_row(item, now, age), age_of(item, now), *_pod_wide(item)]


def _pod_wide(item: Json) -> list[Any]:
    spec, status = spec_of(item), status_of(item)
    gates = [str(gate.get("conditionType")) for gate in spec.get("readinessGates") or ()]
    passed = sum(condition_of(item, gate).get("status") == "True" for gate in gates)
    ip = status.get("podIP") or next((a.get("ip") for a in status.get("podIPs") or ()), None)
    return [ip or "<none>", spec.get("nodeName") or "<none>", status.get("nominatedNodeName") or "<none>",
            f"{passed}/{len(gates)}" if gates else "<none>"]  # fmt: skip


def _columns(text: str) -> list[TableColumn]:
    """`Name Ready:integer *IP`: a star marks -o wide, an underscore a blank."""
    found = []
    for word in text.split():
        priority = int(word.startswith("*"))
        name, _, written = word.lstrip("*").partition(":")
        found.append(
            TableColumn(name.replace("_", " "), written or "string", "name" if name == "Name" else "", priority)
        )
    return found


_EVENT = "Last_Seen Type Reason Object *Subobject *Source Message *First_Seen *Count *Name"
_WORKLOAD = "*Containers *Images *Selector"
_TABLE: list[tuple[Kind, str, Cells]] = [
    (kinds.POD, "Name Ready Status Restarts Age *IP *Node *Nominated_Node *Readiness_Gates", _pod),
    (kinds.NODE, "Name Status Roles Age Version *Internal-IP *External-IP *OS-Image *Kernel-Version "
     "*Container-Runtime", _node),
    (kinds.SERVICE, "Name Type Cluster-IP External-IP Port(s) Age *Selector", _service),
    (kinds.DEPLOYMENT, f"Name Ready Up-to-date Available Age {_WORKLOAD}", _deployment),
    (kinds.REPLICA_SET, f"Name Desired:integer Current:integer Ready:integer Age {_WORKLOAD}", _replica_set),
    (kinds.REPLICATION_CONTROLLER, f"Name Desired:integer Current:integer Ready:integer Age {_WORKLOAD}", _replica_set),
    (kinds.STATEFUL_SET, "Name Ready Age *Containers *Images", _stateful_set),
    (kinds.DAEMON_SET, "Name Desired:integer Current:integer Ready:integer Up-to-date:integer Available:integer "
     f"Node_Selector Age {_WORKLOAD}", _daemon_set),
    (kinds.JOB, f"Name Status Completions Duration Age {_WORKLOAD}", _job),
    (kinds.CRON_JOB, "Name Schedule Timezone Suspend:boolean Active:integer Last_Schedule Age "
     f"{_WORKLOAD}", _cron_job),
    (kinds.EVENT, _EVENT, _event),
    (kinds.EVENTS_EVENT, _EVENT, _event),
    (kinds.NAMESPACE, "Name Status Age", _namespace),
    (kinds.SECRET, "Name Type Data Age", _secret),
    (kinds.CONFIG_MAP, "Name Data Age", _config_map),
    (kinds.SERVICE_ACCOUNT, "Name Age", _service_account),
    (kinds.LEASE, "Name Holder Age", _lease),
    (kinds.PRIORITY_CLASS, "Name Value:integer Global-Default:boolean Age PreemptionPolicy", _priority_class),
    (kinds.CRD, "Name Created_At:date", _created_at),
    (kinds.ROLE, "Name Created_At:date", _created_at),
    (kinds.CLUSTER_ROLE, "Name Created_At:date", _created_at),
    (kinds.ROLE_BINDING, "Name Role Age *Users *Groups *ServiceAccounts", _binding),
    (kinds.CLUSTER_ROLE_BINDING, "Name Role Age *Users *Groups *ServiceAccounts", _binding),
    (kinds.ENDPOINTS, "Name Endpoints Age", _endpoints),
    (kinds.ENDPOINT_SLICE, "Name AddressType Ports Endpoints Age", _endpoint_slice),
    (kinds.PERSISTENT_VOLUME_CLAIM, "Name Status Volume Capacity Access_Modes StorageClass VolumeAttributesClass Age "
     "*VolumeMode", claim_row),
    (Kind("", "v1", "PersistentVolume", "persistentvolumes", namespaced=False), "Name Capacity Access_Modes "
     "Reclaim_Policy Status Claim StorageClass VolumeAttributesClass Reason Age *VolumeMode", volume_row),
    (Kind("storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False), "Name Provisioner ReclaimPolicy "
     "VolumeBindingMode AllowVolumeExpansion Age", storage_class_row),
    (Kind("networking.k8s.io", "v1", "IngressClass", "ingressclasses", namespaced=False),
     "Name Controller Parameters Age", _ingress_class),
    (kinds.RUNTIME_CLASS, "Name Handler Age", _runtime_class),
    (kinds.RESOURCE_QUOTA, "Name Request Limit Age", _quota),
    (kinds.LIMIT_RANGE, "Name Created_At:date", _created_at),
    (kinds.INGRESS, "Name Class Hosts Address Ports Age", _ingress),
    (kinds.NETWORK_POLICY, "Name Pod-Selector Age", _network_policy),
    (kinds.MUTATING_WEBHOOK, "Name Webhooks:integer Age", _webhooks),
    (kinds.VALIDATING_WEBHOOK, "Name Webhooks:integer Age", _webhooks),
    (kinds.POD_DISRUPTION_BUDGET, "Name Min_Available Max_Unavailable Allowed_Disruptions:integer Age", _budget),
    (kinds.API_SERVICE, "Name Service Available Age", _api_service),
    (kinds.POD_TEMPLATE, "Name Containers Images Pod_Labels", _template),
    (kinds.CONTROLLER_REVISION, "Name Controller Revision Age", _revision),
]  # fmt: skip
_LAYOUTS: dict[str, tuple[list[TableColumn], Cells]] = {
    kind.group_kind: (_columns(text), cells) for kind, text, cells in _TABLE
}
