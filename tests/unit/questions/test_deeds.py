"""Random clusters with deeds: what `shoal why` is told would help is done to stored objects, or less than it says, and
the job has to start, or not to. The engine alone is judged in `tests/unit/engine/test_deeds.py`, in more worlds."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.api.quantity import amounts as read_amounts
from shoal.api.quantity import show
from shoal.cli import why
from shoal.engine import Engine
from shoal.sdk import gangs
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.unit.queues.build import cluster_queue, condition, flavor, job, local_queue, make, name_of, true
from tests.unit.queues.conftest import decide

WORLDS, AT_ONCE = 40, 4
CLASS = "kueue.x-k8s.io/priority-class"
SEARCHED = (*gangs.KINDS, *gangs.QUEUED)
Deed = Callable[[], Awaitable[None]]


def priority(name: str, value: int) -> Json:
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
    return {**kind, "metadata": {"name": name}, "value": value, "description": ""}


class Asked:
    """A small cluster with two queues, jobs that run and jobs that wait."""

    def __init__(self, cluster: Cluster, dice: random.Random) -> None:
        self.cluster = cluster
        self.dice = dice
        self.quota: dict[str, Json] = {}
        self.jobs: dict[str, Json] = {}

    async def fill(self) -> None:
        dice = self.dice
        for number in range(dice.randint(1, 2)):
            await self.cluster.add_node(f"node-{number}", cpu=str(dice.randint(4, 10)), memory="64Gi")
        cohort = {"cohortName": "all"} if dice.random() < 0.6 else {}
        await make(self.cluster, flavor())
        for name in ("left", "right"):
            made = cluster_queue(
                name,
                quota={"cpu": str(dice.randint(2, 8))},
                queueingStrategy=dice.choice(("StrictFIFO", "BestEffortFIFO", "BestEffortFIFO")),
                preemption={
                    "withinClusterQueue": dice.choice(("Never", "LowerPriority")),
                    "reclaimWithinCohort": dice.choice(("Never", "Any")),
                },
                **cohort,
            )
            self.quota[name] = made
            await make(self.cluster, made, local_queue(f"{name}-queue", name))
        await make(self.cluster, priority("low", 0), priority("high", 10))
        for number in range(dice.randint(4, 8)):
            made = job(
                f"job-{number}",
                dice.randint(1, 2),
                queue=f"{dice.choice(('left', 'right'))}-queue",
                labels={CLASS: dice.choice(("low", "low", "high"))},
                cpu=str(dice.randint(1, 4)),
            )
            (self.jobs[f"job-{number}"],) = await make(self.cluster, made)
            if dice.random() < 0.5:
                await self.cluster.settled()
        await self.cluster.settled()

    async def has_started(self, name: str) -> bool:
        return true("Admitted")(await self.cluster.get(kinds.WORKLOAD, name_of(self.jobs[name])))

    async def starts(self, name: str) -> None:
        await self.cluster.until(kinds.WORKLOAD, name_of(self.jobs[name]), true("Admitted"))

    # What may be done

    async def end(self, keys: list[str]) -> None:
        for key in keys:
            await self.cluster.client.delete(kinds.JOB, key.rpartition("/")[2], "default")

    async def raise_quota(self, place: str, more: dict[str, str], less: int = 0) -> None:
        name = place.partition("/")[0]
        groups = self.quota[name]["spec"]["resourceGroups"]
        for resource in groups[0]["flavors"][0]["resources"]:
            before = read_amounts({"cpu": resource["nominalQuota"]})["cpu"]
            grown = before + read_amounts(more).get(resource["name"], 0) - less
            resource["nominalQuota"] = show("cpu", grown)
        await self.cluster.client.patch(kinds.CLUSTER_QUEUE, name, None, {"spec": {"resourceGroups": groups}})

    async def add_nodes(self, wanted: Json, less: int = 0) -> None:
        cpu = show("cpu", read_amounts(wanted["amounts"])["cpu"] - less)
        for number in range(wanted["count"]):
            name = f"{self.dice.choice('amz')}-new-{number}"
            await self.cluster.add_node(name, labels=wanted.get("labels") or {}, cpu=cpu, memory="64Gi")

    async def do_together(self, wanted: Json) -> None:
        for one in wanted.get("quotas") or ():
            await self.raise_quota(one["place"], one["amounts"])
        if wanted.get("nodes"):
            await self.add_nodes(wanted["nodes"])

    def claims(self, told: Json) -> Iterator[tuple[str, bool, Deed]]:
        """What the answer says, whether the job must start then, and the deed."""
        release, increase, nodes, both = (told[one] for one in ("release", "leastIncrease", "newNodes", "together"))
        if release and not told["releaseNotShown"] and not told["moreRelease"]:
            yield "these end", True, lambda: self.end(release)
            if told["releaseMeasure"] == "least":
                for spared in release if len(release) > 1 else ():
                    rest = [key for key in release if key != spared]
                    yield f"all but {spared} end", False, lambda rest=rest: self.end(rest)
        if increase and increase["place"] != "nodes":
            yield "more quota", True, lambda: self.raise_quota(increase["place"], increase["amounts"])
            if increase["measure"] == "least":
                deed = lambda: self.raise_quota(increase["place"], increase["amounts"], less=1)  # noqa: E731
                yield "less quota than that", False, deed
        if nodes:
            yield "new nodes", True, lambda: self.add_nodes(nodes)
            if nodes["measure"] == "least":
                yield "a smaller node", False, lambda: self.add_nodes(nodes, less=1)
        if both:
            yield "all together", True, lambda: self.do_together(both)


def told_why(workload: Json) -> bool:
    return bool(condition(workload, "QuotaReserved").get("message"))


async def ask(cluster: Cluster, name: str) -> Json:
    return await why.explain_to(cluster.client, SEARCHED, name, "default", fresh=True)


async def judge(seed: int) -> str:
    """Ask about one job that waits, do one thing that the answer says, and return what was claimed."""
    dice = random.Random(seed)
    async with running() as cluster:
        decide(cluster)
        world = Asked(cluster, dice)
        await world.fill()
        waiting = [name for name in sorted(world.jobs) if not await world.has_started(name)]
        if not waiting:
            return "nothing waits"
        name = dice.choice(waiting)
        told = await ask(cluster, name)
        claims = list(world.claims(told))
        if not claims:
            return "no help"
        claim, must_start, deed = dice.choice(claims)
        await deed()
        if must_start:
            await world.starts(name)
        else:
            await cluster.settled()
            assert not await world.has_started(name), f"{seed}: {name} was told {told}; {claim}, and it started"
        return claim


@pytest.mark.parametrize("first", range(0, WORLDS, AT_ONCE))
async def test_what_is_told_to_help_helps_and_less_does_not(first: int) -> None:
    done = [await judge(seed) for seed in range(first, first + AT_ONCE)]
    assert set(done) - {"nothing waits", "no help"}, done


@proven(without=lambda patch: patch.setattr(Engine, "_with_help", lambda self, gang, found, now, effort: found))
async def test_f175_a_job_is_not_told_of_quota_that_goes_to_those_ahead(cluster: Cluster) -> None:
    """F175: a job asks what would help; one that runs holds all quota, and another is ahead in the queue. Holds: it is
    not told that the end of the first would start it; what it is told starts it."""
    await make(cluster, priority("high", 10))
    (first,) = await make(cluster, job("first", cpu="4"))
    await cluster.until(kinds.WORKLOAD, name_of(first), true("Admitted"))
    ahead, mine = await make(cluster, job("ahead", cpu="3", labels={CLASS: "high"}), job("mine", cpu="2"))
    for one in (ahead, mine):
        await cluster.until(kinds.WORKLOAD, name_of(one), told_why)
    told = await ask(cluster, "mine")
    assert (told["position"], told["release"]) == (2, [])
    world = Asked(cluster, random.Random(0))
    world.quota["cluster-queue"] = await cluster.get(kinds.CLUSTER_QUEUE, "cluster-queue")
    await world.raise_quota(told["leastIncrease"]["place"], told["leastIncrease"]["amounts"])
    await cluster.until(kinds.WORKLOAD, name_of(mine), true("Admitted"))
