"""What is wrong with a RayService: the first problem, in KubeRay's words. Pure; for the reconciler and the webhook."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.go_duration import go_duration
from shoal.controllers.ray.service.spec_changes import cluster_config
from shoal.controllers.ray.service.upgrade_strategy import INCREMENTAL, TYPES, upgrade_type
from shoal.controllers.ray.settings import RaySettings
from shoal.controllers.ray.template_shape import SERVICE, problems_of_shape
from shoal.controllers.ray.validation import cluster_rules

METADATA, SPEC = "InvalidRayServiceMetadata", "InvalidRayServiceSpec"
_TIMEOUT = f"RayService annotations is invalid: annotation {names.INITIALIZING_TIMEOUT}"
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)


class RayServiceProblem(msgspec.Struct, frozen=True):
    """The reason of the event, and the sentence."""

    event: str
    message: str


def first_metadata_problem(service: Json) -> RayServiceProblem | None:
    for found in _metadata(service):
        return RayServiceProblem(METADATA, f"The RayService metadata is invalid: {found}")
    return None


def first_problem(service: Json, settings: RaySettings) -> RayServiceProblem | None:
    if (problem := first_metadata_problem(service)) is not None:
        return problem
    for found in _checked_spec(service, settings):
        return RayServiceProblem(SPEC, f"The RayService spec is invalid: {found}")
    return None


def initializing_timeout(service: Json) -> float | None:
    """Seconds, or None where none is asked for."""
    written = view.annotations_of(service).get(names.INITIALIZING_TIMEOUT, "")
    seconds = go_duration(written) if written else None
    if seconds is None and _INTEGER.fullmatch(written):
        seconds = float(written)
    return seconds if seconds is not None and seconds > 0 else None


def _metadata(service: Json) -> Iterator[str]:
    name = view.name(service)
    if len(name) > names.LONGEST_SERVICE:
        yield f"RayService name should be no more than {names.LONGEST_SERVICE} characters"
    if not cluster_rules.DNS_1035.fullmatch(name):
        yield (
            "RayService name should be a valid DNS1035 label: a DNS-1035 label must consist of lower case alphanumeric "
            "characters or '-', start with an alphabetic character, and end with an alphanumeric character"
        )
    written = view.annotations_of(service).get(names.INITIALIZING_TIMEOUT, "")
    seconds = go_duration(written) if written else None
    if seconds is not None:
        if seconds <= 0:
            yield f"{_TIMEOUT} must be a positive duration, got: {written}"
    elif _INTEGER.fullmatch(written):
        if int(written) <= 0:
            yield f"{_TIMEOUT} must be a positive integer (seconds), got: {written}"
    elif written:
        yield (
            f"{_TIMEOUT} has invalid format: {written}. "
            "Expected Go duration format (e.g., '5m', '1h') or positive integer seconds"
        )


def _checked_spec(service: Json, settings: RaySettings) -> Iterator[str]:
    if not isinstance(service.get("spec"), dict) or not isinstance(view.spec(service).get("rayClusterConfig"), dict):
        yield "spec.rayClusterConfig is missing"
        return
    yield from problems_of_shape(view.spec(service).get("serveService"), SERVICE, "spec.serveService")
    try:
        yield from _spec(service, settings)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        yield f"spec has a field of the wrong type: {error}"  # where no schema checked it before us


def _spec(service: Json, settings: RaySettings) -> Iterator[str]:
    spec, config = view.spec(service), cluster_config(service)
    if (config.get("authOptions") or {}).get("enableK8sTokenAuth") is True:
        yield "K8s token auth mode is currently not supported for RayService"
    judged = {key: value for key, value in config.items() if key != "upgradeStrategy"}  # the RayCluster says so itself
    metadata = {"labels": {names.ORIGIN_KIND: "RayService"}, "annotations": view.annotations_of(service)}
    yield from cluster_rules.problems_of_spec({"metadata": metadata, "spec": judged}, settings)
    if ((view.head({"spec": config}).get("headService") or {}).get("metadata") or {}).get("name"):
        yield "spec.rayClusterConfig.headGroupSpec.headService.metadata.name should not be set"
    written = (spec.get("upgradeStrategy") or {}).get("type")
    if written is not None and written not in TYPES:
        options = "NewClusterWithIncrementalUpgrade, NewCluster, or None"
        yield f"Spec.UpgradeStrategy.Type value {written} is invalid, valid options are {options}"
    delay = spec.get("rayClusterDeletionDelaySeconds")
    if delay is not None and int(delay) < 0:
        yield f"Spec.RayClusterDeletionDelaySeconds should be a non-negative integer, got {delay}"
    if upgrade_type(service) == INCREMENTAL:
        yield from _incremental(spec, config)


def _incremental(spec: Json, config: Json) -> Iterator[str]:
    if config.get("enableInTreeAutoscaling") is not True:
        yield f"Ray Autoscaler is required for {INCREMENTAL}"
    options = spec["upgradeStrategy"].get("clusterUpgradeOptions")
    if options is None:
        yield f"ClusterUpgradeOptions are required for {INCREMENTAL}"
        return
    surge, step = options.get("maxSurgePercent"), options.get("stepSizePercent")
    surge = 100 if surge is None else int(surge)
    if not 0 <= surge <= 100:
        yield "maxSurgePercent must be between 0 and 100"
    if step is None or not 0 <= int(step) <= 100:
        yield "stepSizePercent must be between 0 and 100"
    elif int(step) > surge:
        yield "stepSizePercent must be less than or equal to maxSurgePercent"
    if int(options.get("intervalSeconds") or 0) <= 0:
        yield "intervalSeconds must be greater than 0"
    if not options.get("gatewayClassName"):
        yield f"gatewayClassName is required for {INCREMENTAL}"
