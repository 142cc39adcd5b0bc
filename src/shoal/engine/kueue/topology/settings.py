"""How places in a topology are chosen. The defaults are Kueue's, named by its gates."""

from __future__ import annotations

import msgspec


class TopologySettings(msgspec.Struct, frozen=True, kw_only=True):
    mixed_profile: bool = True
    """`TASProfileMixed`: unconstrained pods go to the fullest domains."""
    balanced: bool = False
    """`TASBalancedPlacement`."""
    preferred_nodes: bool = False
    """`TASRespectNodeAffinityPreferred`."""
    keep_places: bool = False
    """`ElasticJobsViaWorkloadSlicesWithTAS`: pods of a slice that runs stay where they are."""
    keep_single_pods: bool = True
    """`SkipReassignmentForPodOwnedWorkloads`: a gang that is one Pod cannot move, and keeps its node."""


DEFAULT_TOPOLOGY = TopologySettings()
