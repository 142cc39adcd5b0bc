"""The parts of core/v1 that Shoal reads: pods, nodes, namespaces, services and their small neighbours.

Read by the scheduler, the node agent, the built-in controllers and the ledger. What none of them computes with stays
raw (affinity, volumes, probes), so a cached pod is small and nothing of it is lost or misread.
"""

from __future__ import annotations

import msgspec

from shoal.api.fields import ABSENT, IntOrString, PartialMeta, Resources
from shoal.api.meta import Object, Part

# --- pods


class ResourceRequirements(Part):
    requests: Resources | None = None
    limits: Resources | None = None
    claims: msgspec.Raw = ABSENT


class ContainerPort(Part):
    container_port: int = 0
    name: str = ""
    protocol: str = "TCP"
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")


class EnvVar(Part):
    name: str
    value: str = ""
    value_from: msgspec.Raw = ABSENT


class VolumeMount(Part):
    name: str
    mount_path: str = ""
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False


class Container(Part):
    """A container or an init container; `restart_policy` "Always" makes an init container a sidecar."""

    name: str = ""
    image: str = ""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    working_dir: str = ""
    env: tuple[EnvVar, ...] | None = None
    env_from: msgspec.Raw = ABSENT
    ports: tuple[ContainerPort, ...] | None = None
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str = ""
    volume_mounts: tuple[VolumeMount, ...] | None = None
    liveness_probe: msgspec.Raw = ABSENT
    readiness_probe: msgspec.Raw = ABSENT
    startup_probe: msgspec.Raw = ABSENT
    lifecycle: msgspec.Raw = ABSENT
    security_context: msgspec.Raw = ABSENT


class Toleration(Part):
    """`operator` empty means Equal; an empty key with Exists tolerates everything."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Named(Part):
    """An entry of which only the name matters, such as a scheduling gate or a reference within the namespace."""

    name: str = ""


class PodSpec(Part):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    resources: ResourceRequirements | None = None
    overhead: Resources | None = None
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: msgspec.Raw = ABSENT
    topology_spread_constraints: msgspec.Raw = ABSENT
    tolerations: tuple[Toleration, ...] | None = None
    scheduling_gates: tuple[Named, ...] | None = None
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str = ""
    host_network: bool = False
    hostname: str = ""
    subdomain: str = ""
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    service_account_name: str = ""
    automount_service_account_token: bool | None = None
    image_pull_secrets: tuple[Named, ...] | None = None
    volumes: msgspec.Raw = ABSENT
    security_context: msgspec.Raw = ABSENT
    resource_claims: msgspec.Raw = ABSENT


class PodTemplateSpec(Part):
    metadata: PartialMeta = PartialMeta()
    spec: PodSpec = PodSpec()


class PodCondition(Part):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_probe_time: str | None = None
    last_transition_time: str | None = None


class ContainerStateWaiting(Part):
    reason: str = ""
    message: str = ""


class ContainerStateRunning(Part):
    started_at: str | None = None


class ContainerStateTerminated(Part):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    container_id: str = msgspec.field(default="", name="containerID")


class ContainerState(Part):
    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Part):
    name: str
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")


class PodAddress(Part):
    ip: str = ""


class PodStatus(Part):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[PodCondition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    host_ip: str = msgspec.field(default="", name="hostIP")
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodAddress, ...] | None = msgspec.field(default=None, name="podIPs")
    start_time: str | None = None
    nominated_node_name: str = ""
    qos_class: str = ""


class Pod(Object):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class PodTemplateObject(Object):
    """core/v1 PodTemplate: what a ProvisioningRequest points at."""

    template: PodTemplateSpec = PodTemplateSpec()


# --- nodes


class Taint(Part):
    key: str
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class NodeSpec(Part):
    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None
    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    provider_id: str = msgspec.field(default="", name="providerID")


class NodeCondition(Part):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None


class NodeAddress(Part):
    type: str = ""
    address: str = ""


class NodeStatus(Part):
    capacity: Resources | None = None
    allocatable: Resources | None = None
    conditions: tuple[NodeCondition, ...] | None = None
    addresses: tuple[NodeAddress, ...] | None = None


class Node(Object):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# --- namespaces, services and small neighbours


class NamespaceSpec(Part):
    finalizers: tuple[str, ...] | None = None


class NamespaceStatus(Part):
    phase: str = ""
    conditions: tuple[NodeCondition, ...] | None = None


class Namespace(Object):
    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


class ServicePort(Part):
    name: str = ""
    port: int = 0
    target_port: IntOrString = 0
    node_port: int = 0
    protocol: str = "TCP"
    app_protocol: str = ""


class ServiceSpec(Part):
    type: str = "ClusterIP"
    selector: dict[str, str] | None = None
    ports: tuple[ServicePort, ...] | None = None
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    cluster_ips: tuple[str, ...] | None = msgspec.field(default=None, name="clusterIPs")
    external_name: str = ""
    publish_not_ready_addresses: bool = False


class Service(Object):
    spec: ServiceSpec = ServiceSpec()
    status: msgspec.Raw = ABSENT


class ConfigMap(Object):
    data: dict[str, str] | None = None
    binary_data: dict[str, str] | None = None
    immutable: bool = False


class Secret(Object):
    """`data` is base64 text, as on the wire. Its values never belong in a log."""

    type: str = ""
    data: dict[str, str] | None = None
    string_data: dict[str, str] | None = None
    immutable: bool = False


class ServiceAccount(Object):
    image_pull_secrets: tuple[Named, ...] | None = None
    automount_service_account_token: bool | None = None


class ObjectReference(Part):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class EndpointAddress(Part):
    ip: str = ""
    hostname: str = ""
    node_name: str | None = None
    target_ref: ObjectReference | None = None


class EndpointPort(Part):
    name: str = ""
    port: int = 0
    protocol: str = "TCP"
    app_protocol: str | None = None


class EndpointSubset(Part):
    addresses: tuple[EndpointAddress, ...] | None = None
    not_ready_addresses: tuple[EndpointAddress, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None


class Endpoints(Object):
    subsets: tuple[EndpointSubset, ...] | None = None


class LimitRangeItem(Part):
    type: str = ""
    max: Resources | None = None
    min: Resources | None = None
    default: Resources | None = None
    default_request: Resources | None = None
    max_limit_request_ratio: Resources | None = None


class LimitRangeSpec(Part):
    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(Object):
    spec: LimitRangeSpec = LimitRangeSpec()


class ResourceQuotaSpec(Part):
    hard: Resources | None = None
    scopes: tuple[str, ...] | None = None
    scope_selector: msgspec.Raw = ABSENT


class ResourceQuotaStatus(Part):
    hard: Resources | None = None
    used: Resources | None = None


class ResourceQuota(Object):
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class PersistentVolumeClaim(Object):
    spec: msgspec.Raw = ABSENT
    status: msgspec.Raw = ABSENT


class Event(Object):
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
    involved_object: ObjectReference = ObjectReference()
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    reporting_component: str = ""
    reporting_instance: str = ""
    source: msgspec.Raw = ABSENT
