"""Pods that come one by one, while the watch lags behind what was written, each have a place of their own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.api.kueue_workload import Workload
from shoal.controllers.planning.pods import SeenPod
from shoal.controllers.queues import topology_gates
from shoal.controllers.queues.topology_gates import TopologyGates
from shoal.kube.errors import Conflict
from tests.faults import proven

HOST = "kubernetes.io/hostname"


def workload(*nodes: str, request: dict[str, Any] | None = None) -> Workload:
    domains = [{"values": [name], "count": 1} for name in nodes]
    given = {"name": "main", "count": len(nodes), "topologyAssignment": {"levels": [HOST], "domains": domains}}
    return msgspec.convert(
        {
            "metadata": {"name": "train", "namespace": "default", "uid": "w"},
            "spec": {
                "podSets": [
                    {
                        "name": "main",
                        "count": len(nodes),
                        "template": {"spec": {"containers": []}},
                        "topologyRequest": request,
                    }
                ]
            },
            "status": {"admission": {"clusterQueue": "cq", "podSetAssignments": [given]}},
        },
        Workload,
    )


def pod(name: str, revision: str = "1", **more: str) -> SeenPod:
    spec = {"containers": [], "schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]}
    labels = {"kueue.x-k8s.io/podset": "main", **more}
    metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": revision, "labels": labels}
    return msgspec.json.decode(msgspec.json.encode({"metadata": metadata, "spec": spec, "status": {}}), type=SeenPod)


class Server:
    """Takes what is written of a revision once."""

    def __init__(self) -> None:
        self.sent: dict[str, str] = {}

    async def send(self, write: Any) -> Any:
        return await write(self)

    async def patch(self, kind: Any, name: str, namespace: str, change: Any, type: Any) -> None:
        if name in self.sent:
            raise Conflict(409, "Conflict", "changed meanwhile")
        self.sent[name] = change["spec"]["nodeSelector"][HOST]


def forgets_what_it_wrote(patch: pytest.MonkeyPatch) -> None:
    slots = topology_gates.slots
    patch.setattr(topology_gates, "slots", lambda placement, pods, label, sent, failed: slots(placement, pods, label))


@proven(without=forgets_what_it_wrote)
async def test_f761_a_pod_that_comes_before_the_watch_told_of_a_write_gets_a_place_of_its_own() -> None:
    """F761: a pod of a gang with places in a topology comes up while those before it are seen as they were before they
    were sent to theirs. Holds: it gets the place that is left, and no node two pods for one place."""
    gates, server = TopologyGates(), Server()
    await gates.open(workload("n1", "n2", "n3"), [pod("a"), pod("c")], server)  # type: ignore[arg-type]
    assert server.sent == {"a": "n1", "c": "n2"}
    await gates.open(workload("n1", "n2", "n3"), [pod("a"), pod("b"), pod("c")], server)  # type: ignore[arg-type]
    assert server.sent == {"a": "n1", "c": "n2", "b": "n3"}


async def test_a_pod_that_changed_before_it_was_sent_is_sent_as_it_is_now() -> None:
    gates, server = TopologyGates(), Server()
    server.sent["a"] = ""  # another program's write, which the watch has not told
    await gates.open(workload("n1"), [pod("a")], server)  # type: ignore[arg-type]
    del server.sent["a"]
    await gates.open(workload("n1"), [pod("a", "2")], server)  # type: ignore[arg-type]
    assert server.sent == {"a": "n1"}


INDEX, GROUP = "batch.kubernetes.io/job-completion-index", "jobset.sigs.k8s.io/job-index"
OF_JOB_SET = {"podIndexLabel": INDEX, "subGroupIndexLabel": GROUP, "subGroupCount": 2}


def ranks_by_index_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(topology_gates, "_rank", lambda pod, request, count: topology_gates._number(pod, INDEX))


@proven(without=ranks_by_index_alone)
async def test_f834_each_job_of_a_job_set_has_places_side_by_side() -> None:
    """F834: a replicated job of a JobSet has several Jobs, whose pods have the same indexes. Holds: each Job has places
    side by side, in the order of jobs and then of pods, as Kueue sends them."""
    gates, server = TopologyGates(), Server()
    pods = [pod(f"pod-{job}-{index}", **{GROUP: job, INDEX: index}) for index in "10" for job in "10"]
    await gates.open(workload("n1", "n2", "n3", "n4", request=OF_JOB_SET), pods, server)  # type: ignore[arg-type]
    assert server.sent == {"pod-0-0": "n1", "pod-0-1": "n2", "pod-1-0": "n3", "pod-1-1": "n4"}
    late = TopologyGates(), Server()
    await late[0].open(workload("n1", "n2", "n3", "n4", request=OF_JOB_SET), pods[:1], late[1])  # type: ignore[arg-type]
    assert late[1].sent == {"pod-1-1": "n4"}, "whichever comes first"


async def test_pods_of_a_job_go_by_their_index_also_where_only_the_queue_asks_for_places() -> None:
    gates, server = TopologyGates(), Server()
    await gates.open(workload("n1", "n2", "n3"), [pod("a", **{INDEX: "2"})], server)  # type: ignore[arg-type]
    assert server.sent == {"a": "n3"}
