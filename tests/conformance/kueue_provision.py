"""Judge `provision` cases: what one look of the provisioning check makes of one Workload.

Compared are the ProvisioningRequests and PodTemplates that are there afterwards, the states of the checks, and events.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Collection
from typing import Any

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.queues import QueueSettings
from shoal.kube.errors import KubeError
from tests.conformance.kueue_api import filled
from tests.conformance.kueue_given import Case, compared
from tests.conformance.kueue_stage import Stage

CLEANUP = "CleanupProvisioningRequestsOnEviction"
GIVEN = (
    ("admissionChecks", kinds.ADMISSION_CHECK),
    ("provisioningRequestConfigs", kinds.PROVISIONING_REQUEST_CONFIG),
    ("resourceFlavors", kinds.RESOURCE_FLAVOR),
)


def gates_apart(given: Case) -> str:
    """A gate of the case that works otherwise here; empty where there is none."""
    kept = (given.get("featureGates") or {}).get(CLEANUP) is False
    return f"{CLEANUP}=False" if kept else ""


def provision_differences(given: Case, expect: Case) -> list[str]:
    return asyncio.run(_differences(given, expect))


async def _differences(given: Case, expect: Case) -> list[str]:
    stage = Stage(given["now"], QueueSettings(supply="off"))
    for name, kind in GIVEN:
        for obj in given[name]:
            stage.give(kind, obj)
    stored = stage.give(kinds.WORKLOAD, given["workload"])
    for obj in given["provisioningRequests"]:
        stage.give(kinds.PROVISIONING_REQUEST, _owned(obj, stored))
    for obj in given["podTemplates"]:
        stage.give(kinds.POD_TEMPLATE, _owned(obj, stored))
    handed = {one["metadata"]["name"] for one in given["podTemplates"]}
    workload = stage.queues.caches.workloads.list()[0]
    try:
        await stage.queues.reconciler._provisioning.look(workload)
    except KubeError as error:
        if not expect["error"]:
            return [f"error: {error}"]
    after = stage.store.all(kinds.WORKLOAD)[0]
    found = compared("checks", _checks(after.get("status") or {}), _checks(expect))
    found += compared("events", _sorted(stage.told.events), _sorted(expect["events"]))
    requests = [_seen(one) for one in stage.store.all(kinds.PROVISIONING_REQUEST)]
    found += compared("requests", _sorted(requests), _sorted([_seen(one) for one in expect["provisioningRequests"]]))
    templates = [_seen(one, handed) for one in stage.store.all(kinds.POD_TEMPLATE)]
    wanted = [_seen(one, handed) for one in expect["podTemplates"]]
    return found + compared("templates", _sorted(templates), _sorted(wanted))


def _owned(request: Json, workload: Json) -> Json:
    """By this very Workload: cases name their owners, and a store finds them by UID."""
    made = copy.deepcopy(request)
    for one in made["metadata"].get("ownerReferences") or ():
        if one["name"] == workload["metadata"]["name"]:
            one.update(uid=workload["metadata"]["uid"], controller=True)
    return made


def _checks(status: Json) -> list[Any]:
    listed = status.get("admissionChecks") or ()
    return [{name: part for name, part in one.items() if name != "lastTransitionTime" and part} for one in listed]


def _seen(obj: Json, handed: Collection[str] = ()) -> Any:
    """Ours names an image where a template has none, as the API server asks for one, and hands over templates that
    were there before to their request."""
    name, template = obj["metadata"]["name"], copy.deepcopy(obj.get("template") or {})
    for container in (template.get("spec") or {}).get("containers") or ():
        if container.get("image") == "pause":
            del container["image"]
    owners = [one["name"] for one in obj["metadata"].get("ownerReferences") or ()]
    return filled(
        {
            "name": name,
            "labels": obj["metadata"].get("labels"),
            "owners": owners if name not in handed else None,
            "spec": obj.get("spec"),
            "template": template,
        }
    )


def _sorted(entries: list[Any]) -> list[Any]:
    return sorted(entries, key=repr)
