"""The columns of built-in kinds, as `kubectl get` and `kubectl get -o wide` show them.

Each kind has its columns and a function from an object to its cells. Only `table.py` calls this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.times import parse_time
from shoal.errors import BadInput
from shoal.local.apiserver.table_pods import pod_row

Json = dict[str, Any]
Cells = Callable[[Json, int], list[Any]]

_DAY = 86_400


class Column(NamedTuple):
    name: str
    type: str = "string"
    format: str = ""
    priority: int = 0
    description: str = ""

    def definition(self) -> Json:
        return {"name": self.name, "type": self.type, "format": self.format, "description": self.description,
                "priority": self.priority}  # fmt: skip


def layout(kind: Kind) -> tuple[list[Column], Cells] | None:
    """Columns and row function of a built-in kind, or None."""
    return _LAYOUTS.get(kind.group_kind)


def duration(seconds: int) -> str:
    """How kubectl shows a span: `45s`, `3m20s`, `5h`, `2d3h`, `400d`."""
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // _DAY
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    if days < 2920:
        return f"{days // 365}y{days % 365}d" if days % 365 else f"{days // 365}y"
    return f"{days // 365}y"


def age(moment: Any, now: int) -> str:
    if not moment:
        return "<unknown>"
    try:
        return duration((now - parse_time(str(moment))) // 1_000_000)
    except BadInput:
        return "<invalid>"


def selector(found: Json | None) -> str:
    """A label selector in one line."""
    if not found:
        return "<none>"
    words = [f"{key}={value}" for key, value in sorted((found.get("matchLabels") or {}).items())]
    for item in found.get("matchExpressions") or ():
        values = ",".join(sorted(item.get("values") or ()))
        key, operator = item.get("key"), item.get("operator")
        words.append({"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": f"{key}",
                      "DoesNotExist": f"!{key}"}.get(str(operator), str(key)))  # fmt: skip
    return ",".join(words) or "<none>"


def _labels(found: Json | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((found or {}).items())) or "<none>"


def _meta(item: Json) -> Json:
    return item.get("metadata") or {}


def _spec(item: Json) -> Json:
    return item.get("spec") or {}


def _status(item: Json) -> Json:
    return item.get("status") or {}


def _head(item: Json) -> str:
    return str(_meta(item).get("name") or "")


def _age(item: Json, now: int) -> str:
    return age(_meta(item).get("creationTimestamp"), now)


def _containers(item: Json) -> tuple[str, str]:
    containers = ((_spec(item).get("template") or {}).get("spec") or {}).get("containers") or []
    return ",".join(str(c.get("name")) for c in containers), ",".join(str(c.get("image")) for c in containers)


def _condition(item: Json, name: str) -> Json:
    return next((c for c in _status(item).get("conditions") or () if c.get("type") == name), {})


# --- rows


def _node(item: Json, now: int) -> list[Any]:
    info, addresses = _status(item).get("nodeInfo") or {}, _status(item).get("addresses") or []
    ready = _condition(item, "Ready").get("status")
    words = ["Ready" if ready == "True" else "NotReady" if ready in ("False", "Unknown") else "Unknown"]
    if _spec(item).get("unschedulable"):
        words.append("SchedulingDisabled")
    prefix = "node-role.kubernetes.io/"
    labels = _meta(item).get("labels") or {}
    roles = sorted(
        [key[len(prefix) :] for key in labels if key.startswith(prefix)]
        + [value for key, value in labels.items() if key == "kubernetes.io/role" and value]
    )
    address = {a.get("type"): a.get("address") for a in addresses}
    return [_head(item), ",".join(words), ",".join(roles) or "<none>", _age(item, now),
            info.get("kubeletVersion") or "", address.get("InternalIP") or "<none>",
            address.get("ExternalIP") or "<none>",
            info.get("osImage") or "<unknown>", info.get("kernelVersion") or "<unknown>",
            info.get("containerRuntimeVersion") or "<unknown>"]  # fmt: skip


def _service(item: Json, now: int) -> list[Any]:
    spec = _spec(item)
    kind = spec.get("type") or "ClusterIP"
    ports = []
    for port in spec.get("ports") or ():
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        ports.append(f"{port.get('port')}{node}/{port.get('protocol') or 'TCP'}")
    external = ",".join(spec.get("externalIPs") or ())
    if kind == "LoadBalancer":
        ingress = (_status(item).get("loadBalancer") or {}).get("ingress") or []
        external = ",".join(str(i.get("ip") or i.get("hostname")) for i in ingress) or external or "<pending>"
    elif kind == "ExternalName":
        external = spec.get("externalName") or ""
    return [_head(item), kind, spec.get("clusterIP") or "<none>", external or "<none>", ",".join(ports) or "<none>",
            _age(item, now), _labels(spec.get("selector"))]  # fmt: skip


def _deployment(item: Json, now: int) -> list[Any]:
    status = _status(item)
    names, images = _containers(item)
    return [_head(item), f"{status.get('readyReplicas') or 0}/{_spec(item).get('replicas', 0)}",
            status.get("updatedReplicas") or 0, status.get("availableReplicas") or 0, _age(item, now), names, images,
            selector(_spec(item).get("selector"))]  # fmt: skip


def _replica_set(item: Json, now: int) -> list[Any]:
    status = _status(item)
    names, images = _containers(item)
    found = _spec(item).get("selector")
    if found and "matchLabels" not in found and "matchExpressions" not in found:
        found = {"matchLabels": found}  # a ReplicationController's selector is a plain map
    return [_head(item), _spec(item).get("replicas", 0), status.get("replicas") or 0, status.get("readyReplicas") or 0,
            _age(item, now), names, images, selector(found)]  # fmt: skip


def _stateful_set(item: Json, now: int) -> list[Any]:
    ready = f"{_status(item).get('readyReplicas') or 0}/{_spec(item).get('replicas', 0)}"
    return [_head(item), ready, _age(item, now), *_containers(item)]


def _daemon_set(item: Json, now: int) -> list[Any]:
    status = _status(item)
    counts = [status.get(name) or 0 for name in ("desiredNumberScheduled", "currentNumberScheduled", "numberReady",
                                                 "updatedNumberScheduled", "numberAvailable")]  # fmt: skip
    nodes = _labels(((_spec(item).get("template") or {}).get("spec") or {}).get("nodeSelector"))
    return [_head(item), *counts, nodes, _age(item, now), *_containers(item), selector(_spec(item).get("selector"))]


def _job(item: Json, now: int) -> list[Any]:
    spec, status = _spec(item), _status(item)
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
    if _condition(item, "Complete").get("status") == "True":
        state = "Complete"
    elif _condition(item, "Failed").get("status") == "True":
        state = "Failed"
    elif _meta(item).get("deletionTimestamp"):
        state = "Terminating"
    elif _condition(item, "Suspended").get("status") == "True":
        state = "Suspended"
    elif _condition(item, "FailureTarget").get("status") == "True":
        state = "FailureTarget"
    else:
        state = "Running"
    return [_head(item), state, completions, span, _age(item, now), *_containers(item), selector(spec.get("selector"))]


def _cron_job(item: Json, now: int) -> list[Any]:
    spec, status = _spec(item), _status(item)
    containers = _containers({"spec": (spec.get("jobTemplate") or {}).get("spec") or {}})
    last = age(status["lastScheduleTime"], now) if status.get("lastScheduleTime") else "<none>"
    return [_head(item), spec.get("schedule") or "", spec.get("timeZone") or "<none>", str(bool(spec.get("suspend"))),
            len(status.get("active") or ()), last, _age(item, now), *containers,
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
            _head(item)]  # fmt: skip


def _namespace(item: Json, now: int) -> list[Any]:
    return [_head(item), _status(item).get("phase") or "Active", _age(item, now)]


def _secret(item: Json, now: int) -> list[Any]:
    return [_head(item), item.get("type") or "Opaque", len(item.get("data") or ()), _age(item, now)]


def _config_map(item: Json, now: int) -> list[Any]:
    return [_head(item), len(item.get("data") or ()) + len(item.get("binaryData") or ()), _age(item, now)]


def _service_account(item: Json, now: int) -> list[Any]:
    return [_head(item), len(item.get("secrets") or ()), _age(item, now)]


def _lease(item: Json, now: int) -> list[Any]:
    return [_head(item), _spec(item).get("holderIdentity") or "", _age(item, now)]


def _priority_class(item: Json, now: int) -> list[Any]:
    policy = item.get("preemptionPolicy") or "PreemptLowerPriority"
    return [_head(item), item.get("value") or 0, bool(item.get("globalDefault")), _age(item, now), policy]


def _created_at(item: Json, now: int) -> list[Any]:
    return [_head(item), _meta(item).get("creationTimestamp") or ""]


def _binding(item: Json, now: int) -> list[Any]:
    role = item.get("roleRef") or {}
    people: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for subject in item.get("subjects") or ():
        name = str(subject.get("name"))
        if subject.get("kind") == "ServiceAccount":
            name = f"{subject.get('namespace')}/{name}"
        people.setdefault(str(subject.get("kind")), []).append(name)
    who = [", ".join(people[kind]) for kind in ("User", "Group", "ServiceAccount")]
    return [_head(item), f"{role.get('kind')}/{role.get('name')}", _age(item, now), *who]


def _endpoints(item: Json, now: int) -> list[Any]:
    found = []
    for subset in item.get("subsets") or ():
        for address in subset.get("addresses") or ():
            found += [f"{address.get('ip')}:{port.get('port')}" for port in subset.get("ports") or ()] or [
                str(address.get("ip"))
            ]
    return [_head(item), _brief(found), _age(item, now)]


def _brief(found: list[str]) -> str:
    more = f" + {len(found) - 3} more..." if len(found) > 3 else ""
    return ",".join(found[:3]) + more if found else "<none>"


def _endpoint_slice(item: Json, now: int) -> list[Any]:
    ports = _brief([str(port.get("port")) for port in item.get("ports") or ()]) if item.get("ports") else "<unset>"
    addresses = [a for endpoint in item.get("endpoints") or () for a in endpoint.get("addresses") or ()]
    shown = _brief(addresses) if item.get("endpoints") else "<unset>"
    return [_head(item), item.get("addressType") or "", ports, shown, _age(item, now)]


def _claim(item: Json, now: int) -> list[Any]:
    spec, status = _spec(item), _status(item)
    modes = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}
    bound = bool(spec.get("volumeName"))
    access = ",".join(modes.get(mode, mode) for mode in status.get("accessModes") or ()) if bound else ""
    size = str((status.get("capacity") or {}).get("storage") or "") if bound else ""
    return [_head(item), status.get("phase") or "Pending", spec.get("volumeName") or "", size, access,
            spec.get("storageClassName") or "", spec.get("volumeAttributesClassName") or "<unset>", _age(item, now),
            spec.get("volumeMode") or "Filesystem"]  # fmt: skip


def _quota(item: Json, now: int) -> list[Any]:
    hard, used = _status(item).get("hard") or {}, _status(item).get("used") or {}
    requests: list[str] = []
    limits: list[str] = []
    for name in sorted(hard):
        (limits if name.startswith("limits") else requests).append(f"{name}: {used.get(name, '0')}/{hard[name]}")
    return [_head(item), ", ".join(requests), ", ".join(limits), _age(item, now)]


def _ingress(item: Json, now: int) -> list[Any]:
    spec = _spec(item)
    hosts = [str(rule["host"]) for rule in spec.get("rules") or () if rule.get("host")]
    ingress = (_status(item).get("loadBalancer") or {}).get("ingress") or []
    address = ",".join(str(i.get("ip") or i.get("hostname")) for i in ingress)
    return [_head(item), spec.get("ingressClassName") or "<none>", ",".join(hosts) or "*", address,
            "80, 443" if spec.get("tls") else "80", _age(item, now)]  # fmt: skip


def _network_policy(item: Json, now: int) -> list[Any]:
    return [_head(item), selector(_spec(item).get("podSelector")), _age(item, now)]


def _webhooks(item: Json, now: int) -> list[Any]:
    return [_head(item), len(item.get("webhooks") or ()), _age(item, now)]


def _budget(item: Json, now: int) -> list[Any]:
    spec = _spec(item)
    least = spec["minAvailable"] if spec.get("minAvailable") is not None else "N/A"
    most = spec["maxUnavailable"] if spec.get("maxUnavailable") is not None else "N/A"
    return [_head(item), str(least), str(most), _status(item).get("disruptionsAllowed") or 0, _age(item, now)]


def _api_service(item: Json, now: int) -> list[Any]:
    service = _spec(item).get("service") or {}
    where = f"{service.get('namespace')}/{service.get('name')}" if service else "Local"
    available = _condition(item, "Available")
    shown = str(available.get("status") or "Unknown")
    if shown != "True" and available.get("reason"):
        shown += f" ({available['reason']})"
    return [_head(item), where, shown, _age(item, now)]


def _template(item: Json, now: int) -> list[Any]:
    pod = item.get("template") or {}
    names, images = _containers({"spec": {"template": pod}})
    return [_head(item), names, images, _labels((pod.get("metadata") or {}).get("labels"))]


def _revision(item: Json, now: int) -> list[Any]:
    owner = next((o for o in _meta(item).get("ownerReferences") or () if o.get("controller")), None)
    shown = f"{str(owner.get('kind')).lower()}/{owner.get('name')}" if owner else "<none>"
    return [_head(item), shown, item.get("revision") or 0, _age(item, now)]


def _pod(item: Json, now: int) -> list[Any]:
    return [*pod_row(item, now, age), _age(item, now), *_pod_wide(item)]


def _pod_wide(item: Json) -> list[Any]:
    spec, status = _spec(item), _status(item)
    gates = [str(gate.get("conditionType")) for gate in spec.get("readinessGates") or ()]
    passed = sum(_condition(item, gate).get("status") == "True" for gate in gates)
    ip = status.get("podIP") or next((a.get("ip") for a in status.get("podIPs") or ()), None)
    return [ip or "<none>", spec.get("nodeName") or "<none>", status.get("nominatedNodeName") or "<none>",
            f"{passed}/{len(gates)}" if gates else "<none>"]  # fmt: skip


def _columns(text: str) -> list[Column]:
    """`Name Ready:integer *IP`: a star marks -o wide, an underscore a blank."""
    found = []
    for word in text.split():
        priority = int(word.startswith("*"))
        name, _, written = word.lstrip("*").partition(":")
        found.append(Column(name.replace("_", " "), written or "string", "name" if name == "Name" else "", priority))
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
    (kinds.SERVICE_ACCOUNT, "Name Secrets:integer Age", _service_account),
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
     "*VolumeMode", _claim),
    (kinds.RESOURCE_QUOTA, "Name Request Limit Age", _quota),
    (kinds.LIMIT_RANGE, "Name Created_At:date", _created_at),
    (kinds.INGRESS, "Name Class Hosts Address Ports Age", _ingress),
    (kinds.NETWORK_POLICY, "Name Pod-Selector Age", _network_policy),
    (kinds.MUTATING_WEBHOOK, "Name Webhooks:integer Age", _webhooks),
    (kinds.VALIDATING_WEBHOOK, "Name Webhooks:integer Age", _webhooks),
    (kinds.POD_DISRUPTION_BUDGET, "Name Min_Available Max_Unavailable Allowed_Disruptions:integer Age", _budget),
    (kinds.API_SERVICE, "Name Service Available Age", _api_service),
    (kinds.POD_TEMPLATE, "Name Containers Images Pod_Labels", _template),
    (kinds.CONTROLLER_REVISION, "Name Controller Revision:integer Age", _revision),
]  # fmt: skip
_LAYOUTS: dict[str, tuple[list[Column], Cells]] = {
    kind.group_kind: (_columns(text), cells) for kind, text, cells in _TABLE
}
