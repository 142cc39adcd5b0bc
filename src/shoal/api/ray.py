"""RayCluster, RayJob, RayService, RayCronJob (ray.io) and Ray (ray.k8s.io): the kinds that people bring from KubeRay.

Only what the Ray operator and the queues compute with is typed; pod templates and container-like options stay raw.
Absent means the documented default, never zero by accident: a field with a meaning for "unset" is None.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from shoal.api.fields import (
    ABSENT,
    Amount,
    Conditions,
    Int32,
    Int64,
    OpaqueList,
    OpaqueMap,
    PodTemplate,
    Rule,
    StringList,
    Timestamp,
)
from shoal.api.labels import KUEUE_MULTIKUEUE, RAY_OPERATOR
from shoal.api.meta import Object, Part

MAX_INT32 = 2147483647
MANAGERS = (RAY_OPERATOR, KUEUE_MULTIKUEUE)

ManagedBy = Annotated[
    str,
    Rule(
        max_length=253,
        cel=(
            ("self == oldSelf", "the managedBy field is immutable"),
            (
                "self in ['ray.io/kuberay-operator', 'kueue.x-k8s.io/multikueue']",
                "the managedBy field value must be either 'ray.io/kuberay-operator' or 'kueue.x-k8s.io/multikueue'",
            ),
        ),
    ),
]
StartParams = dict[str, str]

# --- RayCluster


class HeadGroup(Part):
    template: Annotated[PodTemplate, Rule(required=True)] = ABSENT
    ray_start_params: StartParams | None = None
    service_type: str = ""
    head_service: OpaqueMap = ABSENT
    enable_ingress: bool | None = None
    ingress_options: OpaqueMap = ABSENT
    resources: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class ScaleStrategy(Part):
    workers_to_delete: tuple[str, ...] | None = None


class WorkerGroup(Part):
    """Like workers. With `numOfHosts` above 1 a replica is that many pods."""

    group_name: Annotated[str, Rule(required=True)] = ""
    template: Annotated[PodTemplate, Rule(required=True)] = ABSENT
    replicas: Annotated[Int32, Rule(default=0)] | None = None
    min_replicas: Annotated[Int32, Rule(default=0, required=True)] = 0
    max_replicas: Annotated[Int32, Rule(default=MAX_INT32, required=True)] = MAX_INT32
    num_of_hosts: Annotated[Int32, Rule(default=1)] = 1
    idle_timeout_seconds: Int32 | None = None
    priority: Int32 = 0
    suspend: bool | None = None
    ray_start_params: StartParams | None = None
    resources: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    scale_strategy: ScaleStrategy = ScaleStrategy()


class AutoscalerOptions(Part):
    version: Annotated[str, Rule(enum=["v1", "v2"])] | None = None
    idle_timeout_seconds: Int32 | None = None
    upscaling_mode: Annotated[str, Rule(enum=["Default", "Aggressive", "Conservative"])] | None = None
    image: str = ""
    image_pull_policy: str = ""
    resources: Annotated[OpaqueMap, Rule(shape="ResourceRequirements")] = ABSENT
    security_context: Annotated[OpaqueMap, Rule(shape="SecurityContext")] = ABSENT
    env: Annotated[OpaqueList, Rule(shape="[]EnvVar")] = ABSENT
    env_from: OpaqueList = ABSENT
    volume_mounts: Annotated[OpaqueList, Rule(shape="[]VolumeMount")] = ABSENT
    command: StringList = ABSENT
    args: StringList = ABSENT


class Credential(Part):
    value: str = ""
    value_from: OpaqueMap = ABSENT


class GcsStorage(Part):
    claim_name: str = ""
    size: Amount | None = None
    storage_class_name: str | None = None
    access_modes: tuple[str, ...] | None = None
    sub_path: str = ""
    deletion_policy: Annotated[str, Rule(enum=["DeleteWithCluster", "Retain"])] | None = None


class GcsFaultTolerance(Part):
    backend: (
        Annotated[
            str,
            Rule(enum=["redis", "rocksdb"], cel=(("self == oldSelf", "the backend field is immutable"),)),
        ]
        | None
    ) = None
    redis_address: str = ""
    redis_username: Credential | None = None
    redis_password: Credential | None = None
    external_storage_namespace: str = ""
    storage: GcsStorage | None = None


class UpgradeStrategy(Part):
    """`Recreate` replaces all pods at once, `Rolling` group by group; `None` leaves running pods alone."""

    type: Annotated[str, Rule(enum=["Recreate", "Rolling", "None"])] | None = None


class AuthOptions(Part):
    mode: Annotated[str, Rule(enum=["disabled", "token"])] | None = None
    secret_name: str = ""
    enable_k8s_token_auth: bool = msgspec.field(default=False, name="enableK8sTokenAuth")


class TlsOptions(Part):
    enabled: bool = False


class IdleTermination(Part):
    """Suspend or delete the cluster when no driver was attached for `timeoutSeconds`."""

    timeout_seconds: Annotated[Int32, Rule(minimum=1)] | None = None
    policy: Annotated[str, Rule(enum=["Suspend", "Delete"], default="Suspend")] = "Suspend"


class HistoryServerOptions(Part):
    collector_options: OpaqueMap = ABSENT


class RayClusterSpec(Part):
    head_group_spec: Annotated[HeadGroup, Rule(required=True)] = HeadGroup()
    worker_group_specs: tuple[WorkerGroup, ...] | None = None
    ray_version: str = ""
    enable_in_tree_autoscaling: bool | None = None
    autoscaler_options: AutoscalerOptions | None = None
    head_service_annotations: dict[str, str] | None = None
    suspend: bool | None = None
    idle_suspend: bool | None = None
    idle_termination_options: IdleTermination | None = None
    managed_by: ManagedBy | None = None
    gcs_fault_tolerance_options: GcsFaultTolerance | None = None
    upgrade_strategy: UpgradeStrategy | None = None
    auth_options: AuthOptions | None = None
    network_policy: OpaqueMap = ABSENT
    tls_options: TlsOptions | None = None
    history_server_options: HistoryServerOptions | None = None


class HeadInfo(Part):
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_name: str = ""
    service_ip: str = msgspec.field(default="", name="serviceIP")
    service_name: str = ""


class WorkerGroupStatus(Part):
    """Counts of one group, in pods."""

    name: str = ""
    desired: Int32 = 0
    running: Int32 = 0
    ready: Int32 = 0
    pending: Int32 = 0
    failed: Int32 = 0


class RayClusterStatus(Part):
    state: str = ""
    reason: str = ""
    conditions: Conditions | None = None
    desired_worker_replicas: Int32 = 0
    min_worker_replicas: Int32 = 0
    max_worker_replicas: Int32 = 0
    ready_worker_replicas: Int32 = 0
    available_worker_replicas: Int32 = 0
    desired_cpu: Amount = msgspec.field(default="0", name="desiredCPU")
    desired_memory: Amount = "0"
    desired_gpu: Amount = msgspec.field(default="0", name="desiredGPU")
    desired_tpu: Amount = msgspec.field(default="0", name="desiredTPU")
    head: HeadInfo = HeadInfo()
    endpoints: dict[str, str] | None = None
    state_transition_times: dict[str, Timestamp] | None = None
    last_update_time: Timestamp | None = None
    observed_generation: Int64 = 0
    worker_groups: tuple[WorkerGroupStatus, ...] | None = None


class RayCluster(Object):
    spec: RayClusterSpec = RayClusterSpec()
    status: RayClusterStatus = RayClusterStatus()


# --- RayJob


class SubmitterConfig(Part):
    backoff_limit: Int32 | None = None


class DeletionPolicy(Part):
    policy: Annotated[str, Rule(enum=["DeleteCluster", "DeleteWorkers", "DeleteSelf", "DeleteNone"])] | None = None


class DeletionCondition(Part):
    job_status: Annotated[str, Rule(enum=["SUCCEEDED", "FAILED", "STOPPED"])] | None = None
    job_deployment_status: Annotated[str, Rule(enum=["Failed"])] | None = None
    ttl_seconds: Annotated[Int32, Rule(default=0, minimum=0)] = 0


class DeletionRule(Part):
    policy: Annotated[str, Rule(required=True, enum=["DeleteCluster", "DeleteWorkers", "DeleteSelf", "DeleteNone"])] = (
        ""
    )
    condition: Annotated[DeletionCondition, Rule(required=True)] = DeletionCondition()


class DeletionStrategy(Part):
    """Rules, or the older pair of `onSuccess` and `onFailure`; not both."""

    on_success: DeletionPolicy | None = None
    on_failure: DeletionPolicy | None = None
    deletion_rules: Annotated[tuple[DeletionRule, ...], Rule(min_items=1, max_items=32)] | None = None


class RayJobSpec(Part):
    entrypoint: str = ""
    ray_cluster_spec: RayClusterSpec | None = None
    cluster_selector: dict[str, str] | None = None
    submission_mode: Annotated[str, Rule(default="K8sJobMode")] = "K8sJobMode"
    submitter_pod_template: PodTemplate = ABSENT
    submitter_config: SubmitterConfig | None = None
    job_id: str = ""
    runtime_env_yaml: str = msgspec.field(default="", name="runtimeEnvYAML")
    metadata: dict[str, str] | None = None
    entrypoint_num_cpus: float = 0.0
    entrypoint_num_gpus: float = 0.0
    entrypoint_resources: str = ""
    shutdown_after_job_finishes: bool = False
    ttl_seconds_after_finished: Annotated[Int32, Rule(default=0)] = 0
    deletion_strategy: DeletionStrategy | None = None
    backoff_limit: Annotated[Int32, Rule(default=0)] = 0
    active_deadline_seconds: Int32 | None = None
    pre_running_deadline_seconds: Int32 | None = None
    suspend: bool = False
    managed_by: ManagedBy | None = None


class RayJobInfo(Part):
    start_time: Timestamp | None = None
    end_time: Timestamp | None = None


class RayJobStatus(Part):
    job_id: str = ""
    ray_cluster_name: str = ""
    dashboard_url: str = msgspec.field(default="", name="dashboardURL")
    job_status: str = ""
    job_deployment_status: str = ""
    reason: str = ""
    message: str = ""
    conditions: Conditions | None = None
    start_time: Timestamp | None = None
    end_time: Timestamp | None = None
    succeeded: Int32 | None = None
    failed: Int32 | None = None
    ray_cluster_status: RayClusterStatus = RayClusterStatus()
    ray_job_info: RayJobInfo = RayJobInfo()
    job_status_check_failure_start_time: Timestamp | None = None
    observed_generation: Int64 = 0


class RayJob(Object):
    spec: RayJobSpec = RayJobSpec()
    status: RayJobStatus = RayJobStatus()


# --- RayService


class ClusterUpgradeOptions(Part):
    """How an incremental upgrade moves: percent of capacity and of traffic at once, and seconds between two steps."""

    max_surge_percent: Annotated[Int32, Rule(default=100)] = 100
    step_size_percent: Annotated[Int32, Rule(required=True)] = 0
    interval_seconds: Annotated[Int32, Rule(required=True)] = 0
    gateway_class_name: Annotated[str, Rule(required=True)] = ""


class RayServiceUpgradeStrategy(Part):
    type: str | None = None
    cluster_upgrade_options: ClusterUpgradeOptions | None = None


class RayServiceSpec(Part):
    serve_config_v2: str = msgspec.field(default="", name="serveConfigV2")
    ray_cluster_config: Annotated[RayClusterSpec, Rule(required=True)] | None = None
    serve_service: OpaqueMap = ABSENT
    upgrade_strategy: RayServiceUpgradeStrategy | None = None
    ray_cluster_deletion_delay_seconds: Annotated[Int32, Rule(minimum=0)] | None = None
    exclude_head_pod_from_serve_svc: bool | None = None
    service_unhealthy_second_threshold: Int32 | None = None
    deployment_unhealthy_second_threshold: Int32 | None = None
    suspend: bool | None = None
    managed_by: ManagedBy | None = None


class ServeDeploymentStatus(Part):
    status: str = ""
    message: str = ""


class ServeApplicationStatus(Part):
    status: str = ""
    message: str = ""
    serve_deployment_statuses: dict[str, ServeDeploymentStatus] | None = None


class RayServiceClusterStatus(Part):
    """One of the two clusters of a RayService, and what Serve says there."""

    ray_cluster_name: str = ""
    ray_cluster_status: RayClusterStatus = RayClusterStatus()
    application_statuses: dict[str, ServeApplicationStatus] | None = None
    target_capacity: Int32 | None = None
    traffic_routed_percent: Int32 | None = None
    last_traffic_migrated_time: Timestamp | None = None


class RayServiceStatus(Part):
    conditions: Conditions | None = None
    active_service_status: RayServiceClusterStatus = RayServiceClusterStatus()
    pending_service_status: RayServiceClusterStatus = RayServiceClusterStatus()
    service_status: str = ""
    num_serve_endpoints: Int32 | None = None
    observed_generation: Int64 = 0
    last_update_time: Timestamp | None = None


class RayService(Object):
    spec: RayServiceSpec = RayServiceSpec()
    status: RayServiceStatus = RayServiceStatus()


# --- RayCronJob


class RayCronJobSpec(Part):
    """KubeRay's fields, and those of Kubernetes' CronJob that it lacks."""

    schedule: Annotated[str, Rule(required=True)] = ""
    time_zone: Annotated[str, Rule(min_length=1)] | None = None
    suspend: bool | None = None
    job_template: Annotated[RayJobSpec, Rule(required=True)] | None = None
    concurrency_policy: Annotated[str, Rule(enum=["Allow", "Forbid", "Replace"])] | None = None
    starting_deadline_seconds: Annotated[Int64, Rule(minimum=0)] | None = None
    successful_jobs_history_limit: Annotated[Int32, Rule(minimum=0)] | None = None
    failed_jobs_history_limit: Annotated[Int32, Rule(minimum=0)] | None = None


class RayCronJobStatus(Part):
    last_schedule_time: Timestamp | None = None
    suspended: bool | None = None
    not_before: Timestamp | None = None


class RayCronJob(Object):
    spec: RayCronJobSpec = RayCronJobSpec()
    status: RayCronJobStatus = RayCronJobStatus()


# --- Ray: the first proposal's kind


class RaySpec(Part):
    """Typed form, or the whole cluster-launcher configuration as text; typed fields win."""

    min_workers: Annotated[Int32, Rule(minimum=0)] | None = None
    max_workers: Annotated[Int32, Rule(minimum=0)] | None = None
    initial_workers: Annotated[Int32, Rule(minimum=0)] | None = None
    auto_scaling_mode: Annotated[str, Rule(enum=["default", "aggressive"])] | None = None
    target_utilization: Annotated[Int32, Rule(minimum=1, maximum=100)] | None = None
    idle_timeout_minutes: Annotated[Int32, Rule(minimum=0)] | None = None
    head: PodTemplate = ABSENT
    worker: PodTemplate = ABSENT
    configuration: str = ""


class RayCondition(Part):
    type: str
    status: str
    last_probe_time: Annotated[Timestamp, Rule(nullable=True)] | None = None
    last_transition_time: Timestamp | None = None
    reason: str = ""
    message: str = ""


class ReplicaStatus(Part):
    replicas: Int32 = 0
    updated_replicas: Int32 = 0
    ready_replicas: Int32 = 0
    available_replicas: Int32 = 0
    unavailable_replicas: Int32 = 0
    conditions: tuple[RayCondition, ...] | None = None


class RayStatus(Part):
    launcher: ReplicaStatus = ReplicaStatus()
    head: ReplicaStatus = ReplicaStatus()
    worker: ReplicaStatus = ReplicaStatus()
    conditions: tuple[RayCondition, ...] | None = None
    start_time: Timestamp | None = None
    observed_generation: Int64 = 0
    last_reconcile_time: Timestamp | None = None


class Ray(Object):
    spec: RaySpec = RaySpec()
    status: RayStatus = RayStatus()
