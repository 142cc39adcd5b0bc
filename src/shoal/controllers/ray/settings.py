"""What an operator decides once for all Ray clusters: one typed object, read at the entry point and passed down.

The names of the environment switches are KubeRay's, so that an existing deployment keeps its meaning. Nothing below
the entry point looks at the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from shoal.api.labels import RAY_OPERATOR
from shoal.controllers.ray import operator_file
from shoal.errors import BadInput

DELETION_POLICY = "RayJobDeletionPolicy"
MULTI_HOST_INDEXING = "RayMultiHostIndexing"
INCREMENTAL_UPGRADE = "RayServiceIncrementalUpgrade"
CRON_JOBS = "RayCronJob"
GATES_ON = frozenset(
    {"RayClusterStatusConditions", DELETION_POLICY, MULTI_HOST_INDEXING, INCREMENTAL_UPGRADE, CRON_JOBS}
)
EMBEDDED_STORAGE = "GCSFaultToleranceEmbeddedStorage"
NETWORK_POLICY = "RayClusterNetworkPolicy"
HISTORY_SERVER = "RayClusterHistoryServer"
MUTUAL_TLS = "RayClusterMTLS"
SIDECAR_RESTART = "SidecarSubmitterRestart"
ROLLING_UPGRADE = "RayClusterRollingUpgrade"
GATES = GATES_ON | {EMBEDDED_STORAGE, NETWORK_POLICY, HISTORY_SERVER, MUTUAL_TLS, SIDECAR_RESTART, ROLLING_UPGRADE}
OTHER_GATES = frozenset({"AsyncJobInfoQuery", "KubernetesWAS", "AllAlpha", "AllBeta"})
"""KubeRay takes them; here they change nothing."""

SCHEDULER_PLUGINS, VOLCANO, YUNIKORN, KAI = "scheduler-plugins", "volcano", "yunikorn", "kai-scheduler"
BATCH_SCHEDULERS = (SCHEDULER_PLUGINS, VOLCANO, YUNIKORN, KAI)

CONTROLLER_NAME = RAY_OPERATOR
_ADMISSION: dict[str, Literal["spec", "metadata", "off"]] = {"true": "metadata", "false": "off"}
"""Of KubeRay's switch for its webhooks; without it all is refused that cannot work."""


class RaySidecars(msgspec.Struct, frozen=True):
    """What the Ray operator adds to the pods of every cluster, whatever the cluster says."""

    head: tuple[dict[str, Any], ...] = ()
    worker: tuple[dict[str, Any], ...] = ()
    waits_for_head: bool = True
    """Workers begin with a step that waits for their head."""


class RaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Operator-wide choices. Defaults are KubeRay's where it has the switch."""

    version: str = "shoal-0.1"
    namespaces: tuple[str, ...] = ()
    """Namespaces to look at; none means all."""
    workers: int = 10
    """Reconciles at the same time."""
    gates: frozenset[str] = GATES_ON
    cluster_domain: str = "cluster.local"
    """Domain of Services inside the cluster (KubeRay: CLUSTER_DOMAIN)."""
    login_shell: bool = False
    """Start Ray through a login shell (KubeRay: ENABLE_LOGIN_SHELL)."""
    inject_probes: bool = True
    """Add liveness and readiness probes to Ray containers that have none (KubeRay: ENABLE_PROBES_INJECTION)."""
    inject_wait_for_head: bool = True
    """Add an init container to workers that waits for the head (KubeRay: ENABLE_INIT_CONTAINER_INJECTION)."""
    fixed_head_name: bool = False
    """Give the head pod a name without a random part (KubeRay: ENABLE_DETERMINISTIC_HEAD_POD_NAME)."""
    head_cluster_ip: bool = False
    """Give the head Service a cluster IP (KubeRay: ENABLE_RAY_HEAD_CLUSTER_IP_SERVICE)."""
    ingress_on_openshift: bool = False
    """Lead to dashboards by Ingresses on OpenShift, too, not by Routes (KubeRay: USE_INGRESS_ON_OPENSHIFT)."""
    pod_resize: bool = True
    """Ray's autoscaler may resize pods in place (annotation `ray.io/ippr`); `shoal controller` turns it off where the
    API server has no `pods/resize`, `shoal up` always."""
    random_pod_delete: bool = False
    """Delete workers beyond the wanted number although Ray's autoscaler is on (KubeRay: ENABLE_RANDOM_POD_DELETE)."""
    redis_cleanup: bool = True
    """Clean Redis up when a fault-tolerant cluster is deleted (KubeRay: ENABLE_GCS_FT_REDIS_CLEANUP)."""
    delete_finished_rayjob: bool = False
    """Delete the RayJob itself after its time to live (KubeRay: DELETE_RAYJOB_CR_AFTER_JOB_FINISHES)."""
    default_auth_token: bool = False
    """Give every cluster a token that asks for none itself (an open dashboard runs anyone's code)."""
    token_by_agent: bool = False
    """The same where our node agent starts the processes: it puts the token into their environment, not into pods
    (`shoal up`: on)."""
    admission: Literal["spec", "metadata", "off"] = "spec"
    """What admission refuses: whatever cannot work (`spec`), or bad names and groups of one name, as KubeRay's webhook
    (`metadata`; KubeRay: ENABLE_WEBHOOKS=true), or nothing (`off`; ENABLE_WEBHOOKS=false). The rest is stored, and the
    status says what is wrong."""
    default_image: str = "rayproject/ray:2.60.0"
    """Image of pods that the operator makes where no template names one."""
    default_ray_version: str = "2.60.0"
    """Ray version of clusters that name none."""
    container_env: tuple[dict[str, Any], ...] = ()
    """Variables for every Ray container; the user's own win."""
    head_sidecars: tuple[dict[str, Any], ...] = ()
    worker_sidecars: tuple[dict[str, Any], ...] = ()
    """Containers for every head and every worker, after those of the template."""
    pod_labels: dict[str, str] = {}
    pod_annotations: dict[str, str] = {}
    """For every Ray pod whose template has none of that name."""
    zero_downtime: bool = True
    """A RayService without an upgrade type gets a new cluster when its spec changes (KubeRay: ENABLE_ZERO_DOWNTIME)."""
    time_zone: str = "UTC"
    """Time zone of RayCronJobs that name none."""
    status_check_timeout: float = 300.0
    """Seconds of dashboard errors after which a running job counts as lost."""
    transition_grace: float = 300.0
    """Seconds a job may be terminal in Ray before its RayJob must be."""
    submitter_grace: float = 30.0
    """Seconds after the submitter's end in which the Ray job must become terminal."""
    cluster_lost_grace: float = 10.0
    """Seconds without a head pod after which a running job counts as lost."""
    stop_timeout: float = 30.0
    """Seconds that suspend and deadlines wait for Ray to stop a job."""
    drain_workers: bool = True
    """Workers (Ray 2.60 or newer) with a grace period of their own are told to drain that long; Ray's own is 30 s."""
    idle_delete_after: float = 7 * 24 * 3600.0
    """Seconds after which a cluster that Ray's autoscaler suspended for idleness is deleted; 0 means never."""
    mount_autoscaler_token: bool = False
    """Mount the autoscaler's API token by an explicit volume, where no admission plugin adds one."""
    batch_scheduler: Literal["", "scheduler-plugins", "volcano", "yunikorn", "kai-scheduler"] = ""
    """Another scheduler that starts Ray clusters as gangs: its group objects are made and its marks put on pods. Empty
    means Shoal's own gangs."""
    gang: Literal["on", "off"] = "off"
    """`on`: a RayJob or RayCluster that no queue and no owner holds starts once all of it has room; nothing of it
    exists before (`shoal up`: on)."""
    scheduler_name: str = ""
    """`schedulerName` for Ray pods whose template names none."""
    status_delay: float = 2.0
    """Seconds that mere progress (counts on the way up) may wait to be merged into one status write."""
    create_limit: int = 16
    """Pods of one cluster created at the same time."""
    kubernetes_proxy: bool = False
    """Reach dashboards through the API server: for an operator outside the cluster's network."""
    dashboard_by_pod_address: bool = False
    """Reach dashboards by the head pod's address: for an operator that the cluster's DNS does not serve."""

    def gate(self, name: str) -> bool:
        return name in self.gates

    @property
    def sidecars(self) -> RaySidecars:
        """For controllers that count what a Ray cluster asks for before its pods are there."""
        return RaySidecars(self.head_sidecars, self.worker_sidecars, self.inject_wait_for_head)


def from_environment(environment: Mapping[str, str], gates: Mapping[str, bool] | None = None) -> RaySettings:
    """Settings as KubeRay's environment switches and feature gates describe them.

    What KubeRay takes as flags, and what only we have, is read from variables that begin with `SHOAL_RAY_`; one of them
    names a file as KubeRay's `--config` takes it, which wins.
    """
    enabled = set(GATES_ON)
    for name, on in {**_gates(environment.get("SHOAL_RAY_FEATURE_GATES", "")), **(gates or {})}.items():
        (enabled.add if on else enabled.discard)(name)
    chosen = RaySettings(
        gates=frozenset(enabled),
        namespaces=tuple(_listed(environment.get("SHOAL_RAY_NAMESPACES", ""))),
        default_auth_token=_on(environment, "SHOAL_RAY_DEFAULT_TOKEN", False),
        kubernetes_proxy=_on(environment, "SHOAL_RAY_USE_KUBERNETES_PROXY", False),
        drain_workers=_on(environment, "SHOAL_RAY_DRAIN_WORKERS", True),
        idle_delete_after=_seconds(environment, "SHOAL_RAY_IDLE_DELETE_SECONDS", 7 * 24 * 3600.0),
        batch_scheduler=checked_scheduler(environment.get("SHOAL_RAY_BATCH_SCHEDULER", "")),
        admission=_ADMISSION.get(environment.get("ENABLE_WEBHOOKS", "").strip().lower(), "spec"),
        gang="on" if environment.get("SHOAL_RAY_GANG", "").strip().lower() in ("on", "true") else "off",
        scheduler_name=environment.get("SHOAL_RAY_SCHEDULER_NAME", ""),
        cluster_domain=environment.get("CLUSTER_DOMAIN") or "cluster.local",
        login_shell=_on(environment, "ENABLE_LOGIN_SHELL", False),
        inject_probes=_on(environment, "ENABLE_PROBES_INJECTION", True),
        inject_wait_for_head=_on(environment, "ENABLE_INIT_CONTAINER_INJECTION", True),
        fixed_head_name=_on(environment, "ENABLE_DETERMINISTIC_HEAD_POD_NAME", False),
        head_cluster_ip=_on(environment, "ENABLE_RAY_HEAD_CLUSTER_IP_SERVICE", False),
        ingress_on_openshift=_on(environment, "USE_INGRESS_ON_OPENSHIFT", False),
        random_pod_delete=_on(environment, "ENABLE_RANDOM_POD_DELETE", False),
        redis_cleanup=_on(environment, "ENABLE_GCS_FT_REDIS_CLEANUP", True),
        delete_finished_rayjob=_on(environment, "DELETE_RAYJOB_CR_AFTER_JOB_FINISHES", False),
        zero_downtime=_on(environment, "ENABLE_ZERO_DOWNTIME", True),
        status_check_timeout=_seconds(environment, "RAYJOB_STATUS_CHECK_TIMEOUT_SECONDS", 300.0),
        transition_grace=_seconds(environment, "RAYJOB_DEPLOYMENT_STATUS_TRANSITION_GRACE_PERIOD_SECONDS", 300.0),
    )
    file = environment.get("SHOAL_RAY_CONFIG", "")
    if not file:
        return chosen
    settings = msgspec.structs.replace(chosen, **operator_file.read(file))
    checked_scheduler(settings.batch_scheduler)
    return settings


def checked_scheduler(name: str) -> Any:
    """Raises BadInput for a batch scheduler that there is not: its pods would wait for ever."""
    if name and name not in BATCH_SCHEDULERS:
        raise BadInput(f"batch scheduler {name!r:.60}: use one of {', '.join(BATCH_SCHEDULERS)}")
    return name


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _gates(text: str) -> dict[str, bool]:
    """`A=true,B=false`. Raises BadInput, as KubeRay refuses to start, for a gate that there is not."""
    found = {}
    for word in _listed(text):
        name, _, value = word.partition("=")
        if name not in GATES | OTHER_GATES:
            raise BadInput(
                f"feature gate {name!r:.60}: there is none of that name; use one of {', '.join(sorted(GATES))}"
            )
        if value.strip().lower() not in ("true", "false"):
            raise BadInput(f"feature gate {name}: {value!r:.60} is neither true nor false")
        found[name] = value.strip().lower() == "true"
    return found


def _on(environment: Mapping[str, str], name: str, default: bool) -> bool:
    """As KubeRay reads its switches: only the opposite word turns one over."""
    text = environment.get(name, "").strip().lower()
    return text != "false" if default else text == "true"


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(environment.get(name) or default)
    except ValueError:
        return default
