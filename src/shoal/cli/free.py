"""`shoal free`: what is left. Quotas and nodes as they are stored, and the largest gang that would start.

Everything is read with the asker's rights; what may not be read is said and left out. How large a gang may be is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.api.quantity import amount
from shoal.cli import show, telling
from shoal.cli.reach import cluster_options, namespace_option, output_option, reach
from shoal.errors import BadInput, ShoalError
from shoal.kube.client import Client
from shoal.sdk import asking, places, shapes, submitting
from shoal.sdk.shapes import ClusterShape, JobShape, PodShape

WORKERS, UNQUEUED_WORKERS = "workers", "spec.rayClusterSpec.workerGroupSpecs.0.template"
"""The pod set of the workers, as a Workload and as a Ray job without a queue call it."""
BAR = 20
MOST_NODES = 200


@click.command(
    epilog="\b\nExamples:\n  shoal free\n  shoal free --queue team-a --worker-gpu 1"
    "\n  shoal free --worker-cpu 8 -o json"
)
@click.option("--queue", default="", help="Ask for a gang of this LocalQueue. Default: one without a queue.")
@click.option("--worker-cpu", default="1", show_default=True)
@click.option("--worker-memory", default="2Gi", show_default=True)
@click.option("--worker-gpu", default="0", show_default=True)
@click.option("--head-cpu", default="1", show_default=True)
@click.option("--head-memory", default="2Gi", show_default=True)
@namespace_option
@output_option
@cluster_options
def command(
    queue: str, worker_cpu: str, worker_memory: str, worker_gpu: str, head_cpu: str, head_memory: str,
    namespace: str, output: str, kubeconfig: Path | None, context: str | None, name: str | None,
) -> None:  # fmt: skip
    """Show what is used and left of every quota and node, and how many workers of one shape would start now."""
    shape = ClusterShape(
        workers=1,
        head=PodShape(cpu=head_cpu, memory=head_memory),
        worker=PodShape(cpu=worker_cpu, memory=worker_memory, gpu=worker_gpu),
    )
    try:
        told = telling.run(_gather(shape, queue, namespace, (kubeconfig, context, name)))
    except BadInput as error:
        raise click.UsageError(str(error)) from None
    if output == "table":
        _print(told, shape)
    else:
        show.document(told, output)


async def _gather(shape: ClusterShape, queue: str, namespace: str, where: tuple[Any, ...]) -> dict[str, Any]:
    async with reach(*where) as client:
        told: dict[str, Any] = {"notRead": []}
        for name, rows in (("quotas", places.quotas), ("usage", places.usages), ("nodes", places.nodes)):
            try:
                told[name] = await rows(client)
            except ShoalError as error:
                told[name] = []
                told["notRead"].append(str(error))
        told["largest"] = await _largest(client, shape, queue, namespace)
        return told


async def _largest(client: Client, shape: ClusterShape, queue: str, namespace: str) -> dict[str, Any]:
    job: Json = shapes.ray_job(JobShape(entrypoint="true", name="shape", queue=queue, cluster=shape), namespace)
    job["metadata"]["name"] = shapes.renamed("shape")
    try:
        judged = await submitting.create(client, kinds.RAY_JOB, job, namespace, dry_run=True)
        judged["metadata"].pop("managedFields", None)
        answer = await asking.would_start(client, judged, namespace, largest=WORKERS if queue else UNQUEUED_WORKERS)
    except asking.NoAnswer as error:
        return {"queue": queue, "notAnswered": str(error)}
    found = {"queue": queue, "workers": answer.get("largest"), "message": answer.get("message", "")}
    return {key: value for key, value in found.items() if value is not None}


def _print(told: dict[str, Any], shape: ClusterShape) -> None:
    if told["quotas"]:
        fields = ("clusterQueue", "flavor", "resource", "guaranteed", "used", "unused", "borrowed", "lent")
        show.table(
            ("CLUSTERQUEUE", "FLAVOR", "RESOURCE", "GUARANTEED", "USED", "UNUSED", "BORROWED", "LENT"),
            [[str(row[field]) for field in fields] for row in told["quotas"]],
        )
        click.echo()
    if told["usage"]:
        show.table(
            ("CLUSTERQUEUE", "LOCALQUEUE", "USER", "HAD LATELY", "SHARE"),
            [
                [
                    row["clusterQueue"],
                    f"{row['namespace']}/{row['queue']}",
                    row["user"],
                    ", ".join(f"{value} {name}" for name, value in row["consumed"].items()) or "nothing",
                    "" if row["weightedShare"] is None else str(row["weightedShare"]),
                ]
                for row in told["usage"]
            ],
        )
        click.echo()
    for node in told["nodes"][:MOST_NODES]:
        parts = [f"{resource} {usage_bar(resource, one)}" for resource, one in node["amounts"].items()]
        if "gpuMemory" in node:
            parts.append(f"{node['gpuMemory']} of memory in each GPU")
        click.echo(show.harmless(f"{node['name']} ({node['state']})  " + "  ".join(parts)))
    if len(told["nodes"]) > MOST_NODES:
        click.echo(f"and {len(told['nodes']) - MOST_NODES} more nodes")
    for line in told["notRead"]:
        click.echo(show.harmless(f"not shown: {line}"), err=True)
    click.echo(show.harmless(_sentence(told["largest"], shape)))


def _sentence(largest: dict[str, Any], shape: ClusterShape) -> str:
    worker = ", ".join(f"{value} {name}" for name, value in shape.worker.amounts().items())
    where = f"in queue {largest['queue']}" if largest["queue"] else "without a queue"
    if "notAnswered" in largest:
        return f"how large a gang would start is not known: {largest['notAnswered']}"
    if "workers" not in largest:
        return "how large a gang would start is not known: this cluster is too large to try it out"
    if largest["workers"] < 0:
        return f"not even a head would start now {where}: {largest['message']}"
    workers = "1 worker" if largest["workers"] == 1 else f"{largest['workers']} workers"
    return f"a Ray job {where} would start now with up to {workers} of {worker}"


def usage_bar(resource: str, one: dict[str, str], width: int = BAR) -> str:
    used, offered = amount(resource, one["used"]), amount(resource, one["allocatable"])
    full = min(width, round(width * used / offered)) if offered else 0
    return f"[{'#' * full}{'.' * (width - full)}] {show.sized(one['used'])}/{show.sized(one['allocatable'])}"
