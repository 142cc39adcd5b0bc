"""What a preemption costs is told on the Workload, and counted."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily

from shoal.api import kinds
from shoal.api.meta import Json
from tests.cluster import Cluster
from tests.unit.queues.build import cluster_queue, flavor, job, local_queue, make, name_of, said, true
from tests.unit.queues.conftest import decide

GPU = "nvidia.com/gpu"
HIGH = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "WorkloadPriorityClass",
    "metadata": {"name": "high"},
    "value": 9,
}


def devices(name: str, labels: dict[str, str] | None = None) -> Json:
    made = job(name, 1, labels=labels, cpu="1", nvidia_com_gpu="2")
    made["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {GPU: "2"}
    return made


async def test_what_a_preempted_job_had_done_is_told_and_counted(quiet: Cluster) -> None:
    controller = decide(quiet)
    await quiet.add_node("gpus", cpu="16", memory="64Gi", **{GPU: "2"})
    queue = cluster_queue(quota={"cpu": "4", GPU: "2"}, preemption={"withinClusterQueue": "LowerPriority"})
    await make(quiet, flavor(), HIGH, queue, local_queue())
    low = devices("low")
    low["metadata"]["annotations"] = {"shoal.dev/checkpointed-at": "2020-01-01T00:00:00Z"}
    (low,) = await make(quiet, low)
    await quiet.until(kinds.WORKLOAD, name_of(low), true("Admitted"))
    (high,) = await make(quiet, devices("high", {"kueue.x-k8s.io/priority-class": "high"}))
    left = await quiet.until(kinds.WORKLOAD, name_of(low), true("Evicted"))
    status, reason, message = said(left, "shoal.dev/WorkLost")
    assert (status, reason) == ("True", "Preempted")
    assert message.startswith("Lost ") and message.endswith("since its last checkpoint"), message
    await quiet.until(kinds.WORKLOAD, name_of(high), true("Admitted"))
    families = [one for one in controller.metrics.collect() if isinstance(one, CounterMetricFamily)]
    lost = next(one for one in families if one.name == "shoal_preemption_lost_accelerator_seconds")
    assert [sample.labels["cluster_queue"] for sample in lost.samples] == ["cluster-queue"]
