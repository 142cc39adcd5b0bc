"""What an outsider's kind of job and admission check go through, with nothing of them in `src`.

Run by test_outsider.py in a process of its own, in which both are installed as a package would install them. Not
collected by itself: without the package there is nothing to see.
"""

from __future__ import annotations

from typing import Any

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli import admission
from shoal.cli.cluster import judges, preparers
from shoal.cli.installation import NAME, NAMESPACE, lease_rules, member_rules, rules
from shoal.cli.why import explain_to
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.multicluster import ClusterController
from shoal.controllers.queues import QueueSettings
from shoal.kube.client import Client
from shoal.sdk import queued
from shoal.sdk.rows import rows_of
from tests.cluster import Cluster, running
from tests.planning import planned
from tests.resting import rules_of
from tests.unit.clusters.build import QUICK, town
from tests.unit.clusters.test_rights import grant
from tests.unit.outsider.training_run import TrainingRuns
from tests.unit.queues.build import cluster_queue, flavor, local_queue, make, template, true

KIND = TrainingRuns.kind
RESOURCE = (KIND.group, KIND.plural)
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{NAME}"
GRANTED = "lab.example/granted"
BUDGET = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "AdmissionCheck",
    "metadata": {"name": "budget"},
    "spec": {
        "controllerName": "lab.example/budget",
        "parameters": {"apiGroup": "lab.example", "kind": "Budget", "name": "this-year"},
    },
}


def definition() -> Json:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": KIND.version, "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{KIND.plural}.{KIND.group}"},
        "spec": {
            "group": KIND.group,
            "scope": "Namespaced",
            "names": {"kind": KIND.kind, "plural": KIND.plural, "singular": "trainingrun"},
            "versions": [version],
        },
    }


def run(name: str, workers: int = 2, **labels: str) -> Json:
    return {
        "apiVersion": KIND.api_version,
        "kind": KIND.kind,
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"kueue.x-k8s.io/queue-name": "user-queue", **labels},
        },
        "spec": {"suspend": True, "workers": workers, "template": template(cpu="1")},
    }


async def workload_of(cluster: Cluster, made: Json, holds: Any) -> Json:
    """Its Workload, once it is in that state."""
    name = next(
        one["metadata"]["name"]
        for one in await cluster.client.list(kinds.WORKLOAD, "default")
        if one["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    )
    return await cluster.until(kinds.WORKLOAD, name, holds)


def decide(cluster: Cluster, client: Client) -> None:
    settings, queues = AppWrapperSettings(trust_unstamped=True), QueueSettings()
    cluster.rules = rules_of(settings, queues)
    cluster.start(planned(client, settings, queues=queues).run())


async def test_it_is_held_started_and_ended_with_the_rights_that_are_shipped() -> None:
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="8", memory="64Gi")
        await cluster.create(kinds.CRD, definition())
        await grant(cluster, ACCOUNT, [*rules(), *lease_rules()])
        decide(cluster, Client(cluster.server.transport(user=ACCOUNT, groups=("system:authenticated",))))
        await make(cluster, flavor(), cluster_queue(), local_queue())
        first = await cluster.create(KIND, run("first", 3))
        running_one = await cluster.until(KIND, "first", lambda one: one["spec"]["suspend"] is False)
        second = await cluster.create(KIND, run("second", 3))
        await cluster.until(KIND, "second", lambda one: bool(one))
        await cluster.settled()

        rows = {row["name"]: row for row in await rows_of(cluster.client, "default")}
        assert (rows["first"]["kind"], rows["first"]["state"]) == ("TrainingRun", "Running")
        assert rows["second"]["state"] == "Queued" and "insufficient unused quota" in rows["second"]["reason"]
        others = await queued.other_kinds(cluster.client, await queued.workloads(cluster.client, "default"))
        said = await explain_to(cluster.client, others, "second", "default")
        assert said.get("position") == 1 and said["holders"] == ["TrainingRun/default/first"], said

        await cluster.client.patch(KIND, "first", "default", {"status": {"result": "done"}}, subresource="status")
        await workload_of(cluster, first, true("Finished"))
        await cluster.until(KIND, "second", lambda one: one["spec"]["suspend"] is False)
        await workload_of(cluster, second, true("Admitted"))
        assert running_one["spec"]["workers"] == 3
        await cluster.client.patch(KIND, "second", "default", {"status": {"result": "done"}}, subresource="status")
        await workload_of(cluster, second, true("Finished"))


async def test_admission_webhook_and_rights_of_a_hub_know_it() -> None:
    async with running(with_builtin=False) as cluster:
        assert RESOURCE in judges(cluster.client) and RESOURCE in preparers(cluster.client)
    configured = str(admission.configurations("shoal-system", "", queues=True))
    assert f"'{KIND.plural}'" in configured and f"'{KIND.group}'" in configured
    assert any(rule["apiGroups"] == [KIND.group] and rule["resources"] == [KIND.plural] for rule in member_rules())


async def test_it_runs_in_another_cluster() -> None:
    async with town("a") as t:
        for cluster in (t.hub, t.members["a"]):
            await cluster.create(kinds.CRD, definition())
        t.run_hub(ClusterController(Client(t.hub.server.transport()), QUICK, connect=t.connect).run())
        await t.connected()
        made = await t.hub.create(KIND, run("train"))
        await t.members["a"].until(KIND, "train", lambda one: one["spec"]["suspend"] is False)
        await t.members["a"].client.patch(
            KIND, "train", "default", {"status": {"result": "done"}}, subresource="status"
        )
        await t.hub.until(KIND, "train", lambda one: (one.get("status") or {}).get("result") == "done")
        await workload_of(t.hub, made, true("Finished"))


async def test_its_admission_check_is_asked() -> None:
    async with running() as cluster:
        await cluster.add_node("node-1", cpu="8", memory="64Gi")
        await cluster.create(kinds.CRD, definition())
        settings, queues = (
            AppWrapperSettings(trust_unstamped=True),
            QueueSettings(copied_labels=("lab.example/granted",)),
        )
        cluster.start(planned(cluster.client, settings, queues=queues).run())
        await make(cluster, flavor(), cluster_queue(checks=["budget"]), local_queue(), BUDGET)
        await cluster.until(kinds.ADMISSION_CHECK, "budget", true("Active"))
        await cluster.create(KIND, run("paid", **{GRANTED: "yes"}))
        unpaid = await cluster.create(KIND, run("unpaid"))
        await cluster.until(KIND, "paid", lambda one: one["spec"]["suspend"] is False)
        held = await workload_of(cluster, unpaid, lambda one: bool((one.get("status") or {}).get("admissionChecks")))
        held = await workload_of(
            cluster, unpaid, lambda one: "not granted" in one["status"]["admissionChecks"][0]["message"]
        )
        assert held["status"]["admissionChecks"][0]["state"] == "Pending"
        assert (await cluster.get(KIND, "unpaid"))["spec"]["suspend"] is True
        await cluster.client.patch(
            kinds.WORKLOAD,
            held["metadata"]["name"],
            "default",
            {"metadata": {"labels": {"lab.example/granted": "yes"}}},
        )
        await cluster.until(KIND, "unpaid", lambda one: one["spec"]["suspend"] is False)
