"""What an administrator may choose about AppWrappers. Read once at the entry point and passed down."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from shoal.controllers.appwrapper.v1beta2.limits import Patience, Seconds
from shoal.controllers.demand import RaySidecars
from shoal.controllers.planning.node_health import NodeHealth
from shoal.controllers.planning.settings import PlanningSettings
from shoal.engine import EngineSettings

KUBERAY_SENDER = "before ScheduleNext - setHOL"


class AppWrapperSettings(msgspec.Struct, frozen=True, kw_only=True):
    supply: Literal["fit", "aggregate"] = "fit"
    """`fit` packs every pod onto nodes before it admits; `aggregate` keeps MCAD's cluster-wide sums."""
    policy: str = "priority"
    """Name of a shipped policy, or the import path of a user's own. Equal priorities are first in, first out."""
    dynamic_priority: bool = False
    """Let the priority of a waiting AppWrapper grow with age by its `priorityslope`, as MCAD's option."""
    preemption: bool = False
    """Stop gangs of lower priority, and borrowers of quota, for a gang that needs their room."""
    minimal_victims: bool = False
    """Quota trees: stop as few gangs as will do for one that reclaims its quota. Off: the oldest until it is enough, as
    MCAD does."""
    obtain: bool = False
    """Ask for nodes that a pool can still add, where a node autoscaler publishes its pools (the embedded cluster)."""
    quota: Literal["auto", "always", "never"] = "auto"
    """`auto`: quota is in force as soon as a QuotaSubtree exists."""
    backoff_sender: str = KUBERAY_SENDER
    """What `status.sender` reads after a back-off; published tutorials differ."""
    backoff_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=86400)] = 20.0
    """Fallback for a look at waiting gangs; events wake them long before."""
    bind_seconds: Seconds = 60.0
    """A dispatched gang whose pods are not all bound by then goes back whole; 0 switches that off."""
    create_seconds: Seconds = 60.0
    """How long transient refusals of a wrapped object are retried before the gang is taken back."""
    count_autoscaled_workers: Literal["maximum", "minimum", "replicas"] = "replicas"
    """How many workers of an autoscaled Ray group a gang must have room for before it starts."""
    ray_sidecars: RaySidecars = RaySidecars()
    """As the Ray operator is told by its own file; they count in a gang's demand."""
    head_of_line_seconds: Seconds = 0.0
    """For how long nothing may overtake the front of the queue once it was found not to fit."""
    events: bool = True
    """Write events about AppWrappers."""
    stamps: Literal["server", "webhook"] = "server"
    """Who records the creator of an AppWrapper: the embedded server by itself, or our webhook on any other cluster."""
    record_namespace: str = ""
    """Namespace of the record that `shoal import` writes (`shoal controller`: its own)."""
    trust_unstamped: bool = False
    """Dispatch AppWrappers whose creator no admission recorded, with our own rights."""
    create_as_creator: bool = False
    """Create wrapped objects as the user who created the AppWrapper (impersonation), so that roles, bindings and nested
    AppWrappers may be wrapped too."""
    patience: Patience = Patience()
    """Graces and retries of v1beta2 AppWrappers."""
    node_health: NodeHealth = NodeHealth()
    """What labels about unwell devices mean."""
    device_tolerations: bool = False
    """Pods that ask for a device tolerate a taint of its name by themselves, as the embedded server sees to."""
    pin_nodes: bool = False
    """Pin pods to their node where all pods of a template were planned on the same one."""
    pod_groups: bool = False
    """Add a PodGroup with minMember per gang, for clusters whose scheduler co-schedules by it."""
    pod_group_api: Literal["scheduling.x-k8s.io", "scheduling.k8s.io"] = "scheduling.x-k8s.io"
    """Whose PodGroups: those of scheduler-plugins, or Kubernetes' own (1.36 and later, where the server serves
    scheduling.k8s.io/v1alpha2)."""

    @property
    def planning(self) -> PlanningSettings:
        """What of this the planning loop goes by."""
        aging = self.dynamic_priority and self.policy == "priority"
        return PlanningSettings(
            decisions=EngineSettings(
                policy="priority-slope" if aging else self.policy,
                preemption=self.preemption,
                quota=self.quota != "never",
                minimal_victims=self.minimal_victims,
                head_hold=int(self.head_of_line_seconds * 1_000_000),
            ),
            provisioning=self.obtain,
            node_health=self.node_health,
            stamps=self.stamps,
            record_namespace=self.record_namespace,
        )

    def __post_init__(self) -> None:
        problem = self.patience.problem
        if problem:
            raise ValueError(f"patience: {problem}")
