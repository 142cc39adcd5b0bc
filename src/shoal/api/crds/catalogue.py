"""Every CRD that Shoal brings: names, versions, columns and subresources. Schemas come from the types.

A new custom kind is added here and in `shoal.api.registry`; nothing else lists them.
"""

from __future__ import annotations

import msgspec

from shoal.api import (
    appwrapper,
    autoscaling,
    kueue,
    kueue_other,
    kueue_v1beta1,
    kueue_workload,
    questions,
    ray,
    scheduling,
)
from shoal.api.meta import Json, Object

KUEUE_DEPRECATION = "This version is deprecated. Use v1beta2 instead."
_UNAPPROVED = "unapproved, kept for users of the first proposal for Ray on Kubernetes"


class Column(msgspec.Struct, frozen=True):
    """One column of `kubectl get`; `priority` 1 shows it only with `-o wide`."""

    name: str
    json_path: str
    type: str = "string"
    priority: int = 0


class Version(msgspec.Struct, frozen=True):
    name: str
    type: type[Object]
    storage: bool = False
    deprecation: str = ""


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One CRD. `converts` marks versions of different shape; the others share one stored shape.

    `legacy` marks the groups of old MCAD releases. Their kinds have the same names as the current ones, and kubectl
    takes the group that the server lists first when it is asked for a bare name such as `appwrapper`.
    """

    group: str
    kind: str
    plural: str
    versions: tuple[Version, ...]
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    status: bool = True
    scale: tuple[str, str] | None = None
    selectable: tuple[str, ...] = ()
    converts: bool = False
    legacy: bool = False
    annotations: Json = {}

    @property
    def name(self) -> str:
        return f"{self.plural}.{self.group}"


def condition(type: str, field: str = "status") -> str:
    """JSON path to a condition's field."""
    return f".status.conditions[?(@.type=='{type}')].{field}"


AGE = Column("Age", ".metadata.creationTimestamp", "date")

_LEGACY_COLUMNS = (
    Column("State", ".status.state"),
    Column("QueueState", ".status.queuejobstate"),
    Column("Reason", ".status.message"),
    AGE,
)
_APP_WRAPPER_COLUMNS = (  # of both dialects: whichever version kubectl asks for, it lists objects of either
    *_LEGACY_COLUMNS[:2],
    Column("Status", ".status.phase"),
    _LEGACY_COLUMNS[2],
    Column("Quota Reserved", condition("QuotaReserved"), priority=1),
    Column("Resources Deployed", condition("ResourcesDeployed"), priority=1),
    Column("Unhealthy", condition("Unhealthy"), priority=1),
    AGE,
)
_RAY_CLUSTER_COLUMNS = (
    Column("desired workers", ".status.desiredWorkerReplicas", "integer"),
    Column("available workers", ".status.availableWorkerReplicas", "integer"),
    Column("cpus", ".status.desiredCPU"),
    Column("memory", ".status.desiredMemory"),
    Column("gpus", ".status.desiredGPU"),
    Column("tpus", ".status.desiredTPU", priority=1),
    Column("status", ".status.state"),
    Column("age", ".metadata.creationTimestamp", "date"),
    Column("head pod IP", ".status.head.podIP", priority=1),
    Column("head service IP", ".status.head.serviceIP", priority=1),
)
_RAY_JOB_COLUMNS = (
    Column("job status", ".status.jobStatus"),
    Column("deployment status", ".status.jobDeploymentStatus"),
    Column("ray cluster name", ".status.rayClusterName"),
    Column("start time", ".status.startTime"),
    Column("end time", ".status.endTime"),
    Column("age", ".metadata.creationTimestamp", "date"),
)


def _mcad(group: str) -> tuple[Definition, ...]:
    legacy = group == "mcad.ibm.com"
    versions: tuple[Version, ...] = (Version("v1beta1", appwrapper.AppWrapper, storage=True),)
    if not legacy:
        versions = (*versions, Version("v1beta2", appwrapper.AppWrapper))
    return (
        Definition(
            group=group,
            kind="AppWrapper",
            plural="appwrappers",
            short_names=() if legacy else ("aw",),
            legacy=legacy,
            versions=versions,
            columns=_LEGACY_COLUMNS if legacy else _APP_WRAPPER_COLUMNS,
        ),
        Definition(
            group=group,
            kind="SchedulingSpec",
            plural="schedulingspecs",
            legacy=legacy,
            versions=(Version("v1beta1", appwrapper.SchedulingSpec, storage=True),),
            status=False,
        ),
    )


def _quota_subtree(group: str, version: str) -> Definition:
    return Definition(
        group=group,
        kind="QuotaSubtree",
        plural="quotasubtrees",
        short_names=() if group == "ibm.com" else ("qst",),
        legacy=group == "ibm.com",
        versions=(Version(version, appwrapper.QuotaSubtree, storage=True),),
        status=False,
        columns=(Column("Tree", ".metadata.labels.tree"), Column("Parent", ".spec.parent"), AGE),
    )


def _ray(kind: str, plural: str, type: type[Object], columns: tuple[Column, ...]) -> Definition:
    return Definition(
        group="ray.io",
        kind=kind,
        plural=plural,
        categories=("all",),
        versions=(Version("v1", type, storage=True), Version("v1alpha1", type)),
        columns=columns,
    )


def _kueue(
    kind: str,
    plural: str,
    type: type[Object],
    *,
    old: type[Object] | None = None,
    short: tuple[str, ...],
    columns: tuple[Column, ...] = (),
    namespaced: bool = False,
    status: bool = True,
    selectable: tuple[str, ...] = (),
) -> Definition:
    return Definition(
        group="kueue.x-k8s.io",
        kind=kind,
        plural=plural,
        short_names=short,
        namespaced=namespaced,
        status=status,
        columns=columns,
        selectable=selectable,
        converts=old is not None,
        versions=(
            Version("v1beta2", type, storage=True),
            Version("v1beta1", old or type, deprecation=KUEUE_DEPRECATION),
        ),
    )


def _kueue_kinds() -> tuple[Definition, ...]:
    return (
        _kueue(
            "ClusterQueue",
            "clusterqueues",
            kueue.ClusterQueue,
            old=kueue_v1beta1.ClusterQueue,
            short=("cq",),
            columns=(
                Column("Cohort", ".spec.cohortName"),
                Column("Strategy", ".spec.queueingStrategy", priority=1),
                Column("Pending Workloads", ".status.pendingWorkloads", "integer"),
                Column("Admitted Workloads", ".status.admittedWorkloads", "integer", priority=1),
            ),
        ),
        _kueue(
            "LocalQueue",
            "localqueues",
            kueue.LocalQueue,
            old=kueue_v1beta1.LocalQueue,
            short=("queue", "queues", "lq"),
            namespaced=True,
            columns=(
                Column("ClusterQueue", ".spec.clusterQueue"),
                Column("Pending Workloads", ".status.pendingWorkloads", "integer"),
                Column("Admitted Workloads", ".status.admittedWorkloads", "integer"),
            ),
        ),
        _kueue(
            "Workload",
            "workloads",
            kueue_workload.Workload,
            old=kueue_v1beta1.Workload,
            short=("kwl", "kueueworkload", "kueueworkloads"),
            namespaced=True,
            selectable=(".status.admission.clusterQueue",),
            columns=(
                Column("Queue", ".spec.queueName"),
                Column("Reserved in", ".status.admission.clusterQueue"),
                Column("Admitted", condition("Admitted")),
                Column("Finished", condition("Finished")),
                AGE,
            ),
        ),
        _kueue("Cohort", "cohorts", kueue.Cohort, old=kueue_v1beta1.Cohort, short=("co",)),
        _kueue(
            "ResourceFlavor", "resourceflavors", kueue.ResourceFlavor, short=("flavor", "flavors", "rf"), status=False
        ),
        _kueue("AdmissionCheck", "admissionchecks", kueue.AdmissionCheck, short=("ac",)),
        _kueue(
            "ProvisioningRequestConfig",
            "provisioningrequestconfigs",
            kueue.ProvisioningRequestConfig,
            short=("prc",),
            status=False,
        ),
        _kueue(
            "WorkloadPriorityClass",
            "workloadpriorityclasses",
            kueue.WorkloadPriorityClass,
            short=("wpc",),
            status=False,
            columns=(Column("Value", ".value", "integer"),),
        ),
        _kueue("Topology", "topologies", kueue_other.Topology, short=("topo",), status=False),
        _kueue("MultiKueueConfig", "multikueueconfigs", kueue_other.MultiKueueConfig, short=("mkconf",), status=False),
        _kueue(
            "MultiKueueCluster",
            "multikueueclusters",
            kueue_other.MultiKueueCluster,
            old=kueue_v1beta1.MultiKueueCluster,
            short=("mkc",),
            columns=(Column("Connected", condition("Active")), AGE),
        ),
    )


DEFINITIONS: tuple[Definition, ...] = (
    *_mcad("workload.codeflare.dev"),
    *_mcad("mcad.ibm.com"),
    _quota_subtree("quota.codeflare.dev", "v1alpha1"),
    _quota_subtree("ibm.com", "v1"),
    _ray("RayCluster", "rayclusters", ray.RayCluster, _RAY_CLUSTER_COLUMNS),
    _ray("RayJob", "rayjobs", ray.RayJob, _RAY_JOB_COLUMNS),
    _ray(
        "RayService",
        "rayservices",
        ray.RayService,
        (
            Column("service status", ".status.serviceStatus"),
            Column("num serve endpoints", ".status.numServeEndpoints", "integer"),
            AGE,
        ),
    ),
    Definition(
        group="ray.io",
        kind="RayCronJob",
        plural="raycronjobs",
        categories=("all",),
        versions=(Version("v1", ray.RayCronJob, storage=True),),
        columns=(
            Column("schedule", ".spec.schedule"),
            Column("timezone", ".spec.timeZone"),
            Column("last schedule", ".status.lastScheduleTime", "date"),
            Column("age", ".metadata.creationTimestamp", "date"),
            Column("suspend", ".spec.suspend", "boolean"),
        ),
    ),
    Definition(
        group="ray.k8s.io",
        kind="Ray",
        plural="rays",
        categories=("all",),
        versions=(Version("v1alpha1", ray.Ray, storage=True),),
        scale=(".spec.initialWorkers", ".status.worker.replicas"),
        annotations={"api-approved.kubernetes.io": _UNAPPROVED},
        columns=(
            Column("Launcher", ".status.launcher.conditions[0].type"),
            Column("Head", ".status.head.readyReplicas", "integer"),
            Column("Workers", ".status.worker.readyReplicas", "integer"),
            Column("Ready", condition("Ready")),
            AGE,
        ),
    ),
    *_kueue_kinds(),
    Definition(
        group="autoscaling.x-k8s.io",
        kind="ProvisioningRequest",
        plural="provisioningrequests",
        short_names=("provreq", "provreqs"),
        versions=(
            Version("v1", autoscaling.ProvisioningRequest, storage=True),
            Version("v1beta1", autoscaling.ProvisioningRequest),
        ),
        columns=(
            Column("Accepted", condition("Accepted")),
            Column("Provisioned", condition("Provisioned")),
            Column("Failed", condition("Failed")),
            AGE,
        ),
    ),
    Definition(
        group="scheduling.x-k8s.io",
        kind="PodGroup",
        plural="podgroups",
        short_names=("pg", "pgs"),
        versions=(Version("v1alpha1", scheduling.PodGroup, storage=True),),
        columns=(
            Column("Phase", ".status.phase"),
            Column("MinMember", ".spec.minMember", "integer"),
            Column("Running", ".status.running", "integer"),
            AGE,
        ),
    ),
    Definition(
        group="shoal.dev",
        kind="Question",
        plural="questions",
        versions=(Version("v1alpha1", questions.Question, storage=True),),
        columns=(
            Column("About", ".spec.target.kind"),
            Column("Name", ".spec.target.name"),
            Column("Reason", ".status.reason"),
            Column("Answer", ".status.message"),
            AGE,
        ),
    ),
)
