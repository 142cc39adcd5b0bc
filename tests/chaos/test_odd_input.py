"""Whatever anybody sends, everyone else is answered at once and the controller lives on (I50).

A town on a virtual clock without faults of the network, whose definition of AppWrappers looks at no spec: hostile and
broken objects of every kind that is read come between ordinary gangs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperController, AppWrapperSettings
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.kube.errors import ApiError
from tests.chaos.town import Town
from tests.checker.safety import unanswered
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, config_map, needs, pod, quota

LONGEST = 1.0
"""Seconds of processor time that one second of the town may take."""


def deep(levels: int) -> Json:
    found: Json = {}
    for _ in range(levels):
        found = {"template": found, "list": [found]} if levels < 12 else {"template": found}
    return found


def odd_wrapper(name: str, random: Random) -> Json:
    """An AppWrapper as no friend would write it."""
    made = app_wrapper(name, pod(f"{name}-pod", cpu="1"))
    item = made["spec"]["resources"]["GenericItems"][0]
    template = item["generictemplate"]

    def change(where: Json, key: str, value: Any) -> Callable[[], None]:
        return lambda: where.__setitem__(key, value)

    huge = {"replicas": 2**31 - 1, "requests": {"cpu": "9" * 40, "memory": "1e90"}}
    random.choice(
        [
            change(item, "custompodresources", [huge]),
            change(item, "custompodresources", [needs(10**6, cpu="1m")] * 50),
            change(item, "custompodresources", [{"replicas": -7, "requests": {"cpu": "-1"}}]),
            change(template["spec"], "containers", [{"resources": {"requests": {"cpu": "much"}}}, None, 3]),
            change(template["spec"], "containers", {"not": "a list"}),
            change(
                template["spec"], "affinity", {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": 1}}
            ),
            change(template["spec"], "tolerations", "all of them"),
            change(template, "metadata", {"name": "\x1b[2J" * 50}),
            change(item, "generictemplate", {"apiVersion": "x/y/z", "kind": "Odd", "spec": deep(200)}),
            change(
                item, "generictemplate", {"apiVersion": "a.b/v1", "kind": "Odd", "metadata": {"name": "o"}, **deep(11)}
            ),
            change(made["spec"], "priority", 2**31 - 1),
            change(made["spec"], "priorityslope", -1e300),
            change(made["spec"], "schedulingSpec", {"minAvailable": -5, "requeuing": {"timeInSeconds": -1}}),
            change(made["metadata"], "labels", {"team": "nowhere"}),
            change(made, "status", {"admission": "{{{", "canrun": True, "state": "Running"}),
            change(made, "status", {"admission": '{"epoch":-1,"sets":{"0.pod":[9,{"cpu":9}]}}', "state": "Odd"}),
            change(
                made["spec"]["resources"],
                "GenericItems",
                [{"generictemplate": config_map(f"{name}-{n}")} for n in range(60)],
            ),
        ]
    )()
    return made


def odd_others(number: int, random: Random) -> tuple[Any, Json]:
    """Nodes, pods and quota trees that cannot be."""
    node: Json = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"odd-{number}"}, "spec": {"taints": "x"}}
    node["status"] = {"allocatable": {"cpu": random.choice(["a", "-4", "1e99", "9" * 50])}, "conditions": [None]}
    stray = pod(f"odd-{number}", cpu=random.choice(["-3", "?", "1e60"]))
    stray["spec"]["nodeName"] = "nowhere"
    ring = quota("team", "leaf", ("root", {"cpu": "x"}, True), ("leaf", {"cpu": "1"}, False))
    ring["metadata"]["name"] = f"odd-{number}"
    return random.choice([(kinds.NODE, node), (kinds.POD, stray), (kinds.QUOTA_SUBTREE, ring)])


def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a controller whose only worker waits for each in turn."""
    original = AppWrapperController._reconcile

    async def slow(self: AppWrapperController, address: Any) -> float | None:
        await self.clock.sleep(5.0)
        return await original(self, address)

    monkeypatch.setattr(AppWrapperController, "_reconcile", slow)


@pytest.mark.not_at_rest("what is stored cannot be read, and the clock stands still")
@proven(without=one_at_a_time)
@pytest.mark.parametrize("seed", range(3))
async def test_f045_odd_objects_hold_no_gang_up(seed: int) -> None:
    """F45: whatever is stored cannot be read, or asks for the impossible, at the start and later. Holds: the controller
    starts and goes on; everyone gets a first status within a second (I50), and who has room is dispatched."""
    random, clock = Random(seed), VirtualClock()
    town = await Town(clock, seed).start()
    client = Client(town.server.transport())
    await anything_goes(client)
    await town.add_node("node-0", 64, pods=500)
    got_in = [await offered(client, kinds.APP_WRAPPER, odd_wrapper(f"old-{n}", random)) for n in range(10)]
    settings = AppWrapperSettings(events=False, quota="never", preemption=seed == 1)
    running = asyncio.ensure_future(planned(Client(town.transport()), settings, clock).run())
    costs = []
    for number in range(20):
        got_in.append(await offered(client, *odd_others(number, random)))
        got_in.append(await offered(client, kinds.APP_WRAPPER, odd_wrapper(f"odd-{number}", random)))
        good = app_wrapper(f"good-{number}", config_map(f"c{number}"), needs=[needs(1, cpu="1")])
        await town.ask("POST", kinds.APP_WRAPPER, body=good)
        began = time.process_time()
        await clock.advance(1.0)
        costs.append(time.process_time() - began)
    await clock.advance(2.0)
    assert sum(got_in) > 20 and not running.done(), (sum(got_in), running)
    assert [one for one in unanswered(town.changes, clock.now()) if "good-" in one] == []
    gangs = {one["metadata"]["name"]: one for one in await town.objects(kinds.APP_WRAPPER)}
    states = {name: (one.get("status") or {}).get("state") for name, one in gangs.items() if name.startswith("good-")}
    assert set(states.values()) == {"Running"}, states
    assert max(costs) < LONGEST, costs
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await town.stop()


async def anything_goes(client: Client) -> None:
    """A definition that looks at no spec, as an administrator may have installed."""
    name = "appwrappers.workload.codeflare.dev"
    there = await client.get(kinds.CRD, name)
    for version in there["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        schema.pop("x-kubernetes-validations", None)
        schema["properties"]["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    await client.update(kinds.CRD, there, name)


async def offered(client: Client, kind: Kind, obj: Json) -> bool:
    """Whether the server took it."""
    try:
        made = await client.create(kind, obj, "default" if kind.namespaced else None)
        if "status" in obj:
            changed = {"status": obj["status"]}
            await client.patch(
                kind, made["metadata"]["name"], "default" if kind.namespaced else None, changed, subresource="status"
            )
    except ApiError:
        return False
    return True
