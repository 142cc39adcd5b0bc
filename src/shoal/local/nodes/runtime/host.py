"""What all pods of one agent share: where state lies, how pods are kept apart, what images mean, who hears events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from shoal.api.meta import Json
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.events import EventType
from shoal.local.images import ImageTable
from shoal.local.nodes.runtime.builds import Builds
from shoal.local.nodes.runtime.devices import Gpu
from shoal.local.nodes.runtime.gate import StartGate
from shoal.local.nodes.runtime.limits import ContainerLimits, NoLimits
from shoal.local.nodes.runtime.memorywatch import MemoryWatch
from shoal.local.nodes.runtime.sources import Sources
from shoal.local.nodes.sandbox import Sandbox

Announce = Callable[[Json, EventType, str, str], None]
"""An event about a pod: the pod, Normal or Warning, reason, message."""


def _silent(pod: Json, kind: EventType, reason: str, message: str) -> None:
    return None


@dataclass
class PodHost:
    directory: Path
    sandbox: Sandbox
    sources: Sources
    images: ImageTable = field(default_factory=ImageTable)
    builds: Builds = field(default_factory=Builds)
    gate: StartGate = field(default_factory=StartGate)
    clock: Clock = field(default_factory=SystemClock)
    announce: Announce = _silent
    limits: ContainerLimits = field(default_factory=NoLimits)
    links: Callable[[str], dict[str, str]] = lambda namespace: {}
    """Variables that name the Services of a namespace."""
    head_of: Callable[[Json], Json | None] = lambda pod: None
    """The head of a worker's Ray cluster, if there is one now."""
    restart_base: float = 10.0
    """First pause before a restart, doubled up to `restart_cap`: the kubelet's figures."""
    restart_cap: float = 300.0
    retry_period: float = 2.0
    """How soon a container is tried again whose configuration was not complete."""
    ray_period: float = 2.0
    """How often a Ray node is asked whether it is still there."""
    eviction_period: float = 10.0
    """How often the sizes of limited volumes are looked at."""
    gpus: tuple[Gpu, ...] = ()
    """Those that are really there."""
    memory_watch: MemoryWatch | None = None
    """Enforces memory limits where `limits` cannot."""
    private: tuple[Path, ...] = ()
    """What no pod may see: the state of clusters, and files with their credentials."""
    view: str = ""
    """How that is kept from pods in the loopback sandbox; empty: not at all. See `views`."""
    memory: Path | None = None
    """Where volumes go that are to be kept in memory; None keeps them on disk."""

    @property
    def pods(self) -> Path:
        return self.directory / "pods"

    @property
    def claims(self) -> Path:
        return self.directory / "claims"
