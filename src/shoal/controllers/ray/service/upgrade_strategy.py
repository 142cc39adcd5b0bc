"""How a RayService wants to be upgraded: by a new cluster, by a new cluster step by step, or not at all. Pure."""

from __future__ import annotations

import msgspec

from shoal.api.meta import Json
from shoal.controllers.ray import view
from shoal.controllers.ray.settings import INCREMENTAL_UPGRADE, RaySettings

NEW_CLUSTER = "NewCluster"
INCREMENTAL = "NewClusterWithIncrementalUpgrade"
NO_UPGRADE = "None"
TYPES = (INCREMENTAL, NEW_CLUSTER, NO_UPGRADE)


class StepOptions(msgspec.Struct, frozen=True):
    """How far capacity and traffic may move at once, and how often."""

    surge: int = 100
    step: int = 0
    interval: int = 0
    gateway_class: str = ""


def upgrade_type(service: Json) -> str:
    """As written; empty when the operator decides."""
    return str((view.spec(service).get("upgradeStrategy") or {}).get("type") or "")


def is_incremental(service: Json, settings: RaySettings) -> bool:
    return upgrade_type(service) == INCREMENTAL and settings.gate(INCREMENTAL_UPGRADE)


def has_zero_downtime(service: Json, settings: RaySettings) -> bool:
    """May a change of the spec bring a second cluster?"""
    chosen = upgrade_type(service)
    return chosen == NEW_CLUSTER or is_incremental(service, settings) if chosen else settings.zero_downtime


def step_options(service: Json) -> StepOptions:
    written = (view.spec(service).get("upgradeStrategy") or {}).get("clusterUpgradeOptions") or {}
    surge = written.get("maxSurgePercent")
    return StepOptions(
        100 if surge is None else int(surge),
        int(written.get("stepSizePercent") or 0),
        int(written.get("intervalSeconds") or 0),
        str(written.get("gatewayClassName") or ""),
    )
