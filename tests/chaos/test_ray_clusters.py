"""Random faults from a seed: whatever is lost, doubled or refused on the way, the invariants hold at every revision.

At most one live head per cluster; never more live workers in a group than were wanted at some recent revision; with an
autoscaler only named or dead workers are deleted; once faults end, what stands is what was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from shoal.api import kinds
from shoal.controllers.ray import RaySettings, names, view
from shoal.kube.client import Client
from shoal.kube.errors import NotFound, Unknown, Unsent
from shoal.kube.transport import Request, Response
from tests.conformance.kuberay_traces import Stage
from tests.resting import looked_at, rules_of
from tests.unit.ray import judgement
from tests.unit.ray.builders import group, ray_cluster

SEEDS = range(6)


class Faulty:
    """A transport that loses requests or answers, or refuses, by the dice."""

    def __init__(self, inner: Any, random: Random) -> None:
        self.inner, self.random = inner, random
        self.chance = 0.0

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        if request.method == "GET" or self.random.random() >= self.chance:
            return await self.inner.send(request, timeout=timeout)
        fate = self.random.choice(("unsent", "lost", "busy", "error"))
        if fate == "unsent":
            raise Unsent("refused by the dice")
        if fate == "lost":
            await self.inner.send(request, timeout=timeout)
            raise Unknown("the answer was lost")
        code, reason = (429, "TooManyRequests") if fate == "busy" else (500, "InternalError")
        return Response(code, {}, b'{"kind":"Status","reason":"%s","message":"by the dice"}' % reason.encode())

    def stream(self, request: Request, *, idle_timeout: float | None = None) -> Any:
        return self.inner.stream(request, idle_timeout=idle_timeout)

    async def close(self) -> None:
        await self.inner.close()


def live(stage: Stage, **labels: str) -> list[dict[str, Any]]:
    return [
        pod
        for pod in stage.objects(kinds.POD)
        if all(view.labels(pod).get(key) == value for key, value in labels.items())
        and (pod.get("status") or {}).get("phase") not in ("Failed", "Succeeded")
    ]


async def set_pod(client: Client, name: str, status: dict[str, Any]) -> None:
    try:
        await client.patch(kinds.POD, name, "default", {"status": status}, subresource="status")
    except NotFound:
        return  # deleted meanwhile


def violations(stage: Stage, wanted: set[int]) -> Iterator[str]:
    heads = live(stage, **{names.NODE_TYPE: names.HEAD})
    if len(heads) > 1:
        yield f"{len(heads)} heads"
    workers = live(stage, **{names.NODE_TYPE: names.WORKER})
    if len(workers) > max(wanted):
        yield f"{len(workers)} workers, wanted at most {max(wanted)}"


@pytest.mark.parametrize("autoscaling", [False, True], ids=["by-hand", "autoscaled"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_no_seed_breaks_an_invariant(seed: int, autoscaling: bool) -> None:
    random = Random(seed)
    stage = Stage(RaySettings())
    faulty = Faulty(stage.transport.inner, random)
    stage.transport.inner = faulty
    test = Client(stage.server.transport())  # the test itself meets no faults
    recent = {2}
    broken: list[str] = []
    deleted: set[str] = set()
    excused: set[str] = set()

    def at_every_revision(kind: str, pod: dict[str, Any]) -> None:
        broken.extend(violations(stage, recent))
        if kind == "DELETED":
            deleted.add(view.name(pod))

    await stage.start()
    stage.server.on_change(kinds.POD, at_every_revision)
    body = ray_cluster("demo", group(replicas=2), enableInTreeAutoscaling=autoscaling)
    await test.create(kinds.RAY_CLUSTER, body, "default")
    wanted = 2
    faulty.chance = 0.3
    for _ in range(25):
        action = random.choice(("scale", "fail", "ready", "cut", "wait", "time"))
        workers = live(stage, **{names.NODE_TYPE: names.WORKER})
        if action == "scale":
            wanted = random.randint(0, 5)
            recent.add(wanted)
            spec = group(replicas=wanted)
            if autoscaling and len(workers) > wanted:
                named = [view.name(pod) for pod in random.sample(workers, len(workers) - wanted)]
                spec["scaleStrategy"] = {"workersToDelete": named}
                excused.update(named)
            await test.patch(kinds.RAY_CLUSTER, "demo", "default", {"spec": {"workerGroupSpecs": [spec]}})
        elif action == "fail" and workers:
            victim = view.name(random.choice(workers))
            excused.add(victim)
            await set_pod(test, victim, {"phase": "Failed"})
        elif action == "ready":
            for pod in live(stage):
                ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                await set_pod(test, view.name(pod), ready)
        elif action == "cut":
            stage.server.cut_watches()
        elif action == "time":
            stage.clock.advance(random.choice((1, 10, 400)))
        for _ in range(random.randint(1, 40)):
            await asyncio.sleep(0)
    faulty.chance = 0.0
    for _ in range(4):
        stage.clock.advance(700)
        for _ in range(60):
            await asyncio.sleep(0)
    await stage.settle()
    standing = live(stage, **{names.NODE_TYPE: names.WORKER})
    heads = live(stage, **{names.NODE_TYPE: names.HEAD})
    await stage.stop()
    assert broken == []
    assert judgement.violations(stage) == []
    assert looked_at(stage.server.server, rules_of(ray=True, jobs=False), stage.clock.now()) == []
    assert len(heads) == 1
    if autoscaling:
        assert {name for name in deleted if "-worker-" in name} <= excused
        assert len(standing) >= wanted
    else:
        assert len(standing) == wanted
