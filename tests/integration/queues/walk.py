"""A queued life on a real server, under exactly the rights that `shoal install` grants; the test plays the autoscaler.

Called by the install suite, which has the control plane and the controller running. Manifests are v1beta1 on purpose:
that is what published tutorials use.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tests.controlplane.plane import ControlPlane

Json = dict[str, Any]
V1BETA1 = "kueue.x-k8s.io/v1beta1"
QUEUES: list[Json] = [
    {"apiVersion": V1BETA1, "kind": "ResourceFlavor", "metadata": {"name": "plain"}},
    {
        "apiVersion": V1BETA1,
        "kind": "AdmissionCheck",
        "metadata": {"name": "nodes"},
        "spec": {
            "controllerName": "kueue.x-k8s.io/provisioning-request",
            "parameters": {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "nodes"},
        },
    },
    {
        "apiVersion": V1BETA1,
        "kind": "ProvisioningRequestConfig",
        "metadata": {"name": "nodes"},
        "spec": {"provisioningClassName": "check-capacity.autoscaling.x-k8s.io"},
    },
    {
        "apiVersion": V1BETA1,
        "kind": "ClusterQueue",
        "metadata": {"name": "team"},
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": ["cpu", "memory"],
                    "flavors": [
                        {
                            "name": "plain",
                            "resources": [
                                {"name": "cpu", "nominalQuota": 1},
                                {"name": "memory", "nominalQuota": "1Gi"},
                            ],
                        }
                    ],
                }
            ],
            "admissionChecks": ["nodes"],
        },
    },
    {
        "apiVersion": V1BETA1,
        "kind": "LocalQueue",
        "metadata": {"name": "team", "namespace": "default"},
        "spec": {"clusterQueue": "team"},
    },
]


def job(name: str) -> Json:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "600m"}}}
    labels = {"kueue.x-k8s.io/queue-name": "team"}
    gates = [{"name": "example.com/held"}]  # the simulated nodes here would complete it in a moment
    template = {"spec": {"containers": [container], "restartPolicy": "Never", "schedulingGates": gates}}
    spec = {"parallelism": 1, "completions": 1, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels}, "spec": spec}


class Queues:
    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def create(self, *objects: Json) -> None:
        body = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.plane.kubectl("create", "-f", "-", stdin=json.dumps(body))

    def get(self, *what: str) -> Json:
        return dict(json.loads(self.plane.kubectl("get", *what, "-o", "json")))

    def until(self, holds: Callable[[Json], bool], *what: str) -> Json:
        deadline = time.monotonic() + 60
        while True:
            found = self.get(*what)
            if holds(found):
                return found
            assert time.monotonic() < deadline, f"it never came to that: {found}"
            time.sleep(0.1)

    def workload_of(self, name: str) -> str:
        found = self.until(
            lambda all: any(one["metadata"]["name"].startswith(f"job-{name}-") for one in all["items"]), "workloads"
        )
        return next(
            str(one["metadata"]["name"]) for one in found["items"] if one["metadata"]["name"].startswith(f"job-{name}-")
        )

    def provide(self, request: str) -> None:
        self.until(lambda all: any(one["metadata"]["name"] == request for one in all["items"]), "provisioningrequests")
        conditions = [
            {
                "type": kind,
                "status": "True",
                "reason": kind,
                "message": "",
                "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            for kind in ("Accepted", "Provisioned")
        ]
        patch = json.dumps({"status": {"conditions": conditions}})
        where = ("provisioningrequest", request, "--subresource=status", "--type=merge", "-p", patch)
        self.plane.kubectl("patch", *where)


def condition(obj: Json, kind: str) -> Json:
    found = (obj.get("status") or {}).get("conditions") or ()
    return next((one for one in found if one["type"] == kind), {})


def assert_walk_holds(plane: ControlPlane, at_rest: Callable[[], None]) -> None:
    """Held by the webhook, started when its nodes are there, stopped when it is switched off, gone with its job.
    `at_rest` judges what is stored, while there are gangs."""
    queues = Queues(plane)
    queues.create(*QUEUES)
    queues.until(lambda one: condition(one, "Active").get("status") == "True", "clusterqueue", "team")
    queues.create(job("one"), job("two"))
    names = {name: queues.workload_of(name) for name in ("one", "two")}
    assert all(queues.get("job", name)["spec"]["suspend"] is True for name in names)  # the webhook did that
    both = queues.until(
        lambda all: {condition(one, "QuotaReserved").get("status") for one in all["items"]} == {"True", "False"},
        "workloads",
    )
    reserved = [one for one in both["items"] if condition(one, "QuotaReserved")["status"] == "True"]
    first = next(name for name, workload in names.items() if workload == reserved[0]["metadata"]["name"])
    second = next(name for name in names if name != first)
    queues.provide(f"{names[first]}-nodes-1")
    started = queues.until(lambda one: one["spec"]["suspend"] is False, "job", first)
    marks = started["spec"]["template"]["metadata"]["annotations"]
    assert marks["autoscaling.x-k8s.io/consume-provisioning-request"] == f"{names[first]}-nodes-1"
    queues.until(lambda one: bool((one.get("status") or {}).get("startTime")), "job", first)
    off = json.dumps({"spec": {"active": False}})
    plane.kubectl("patch", "workload", names[first], "--type=merge", "-p", off)
    stopped = queues.until(
        lambda one: condition(one, "QuotaReserved").get("status") == "False", "workload", names[first]
    )
    assert condition(stopped, "Evicted")["reason"] == "Deactivated"
    consumes = "autoscaling.x-k8s.io/consume-provisioning-request"
    queues.until(
        lambda one: consumes not in (one["spec"]["template"]["metadata"].get("annotations") or {}), "job", first
    )
    queues.provide(f"{names[second]}-nodes-1")
    queues.until(lambda one: one["spec"]["suspend"] is False, "job", second)
    columns = plane.kubectl("get", "workload", names[second]).split("\n")[0].split()
    assert columns == ["NAME", "QUEUE", "RESERVED", "IN", "ADMITTED", "FINISHED", "AGE"]
    at_rest()
    plane.kubectl("delete", "jobs", "one", "two", "--wait=true")
    queues.until(lambda all: not all["items"], "workloads")
    queues.until(lambda all: not all["items"], "provisioningrequests")
    queues.until(lambda one: one["status"]["admittedWorkloads"] == 0, "clusterqueue", "team")
    plane.kubectl("delete", "localqueue/team", "clusterqueue/team", "admissioncheck/nodes", "--wait=true")
    plane.kubectl("delete", "provisioningrequestconfig/nodes", "resourceflavor/plain", "--wait=true")
