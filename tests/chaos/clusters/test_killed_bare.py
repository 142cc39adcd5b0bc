"""The hub dies after every single write of an AppWrapper's walk through members in which nothing of ours runs.

The end is that of a calm walk, and meanwhile no wrapped object was released in two members, nor where the hub had not
stored that it goes.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.demand.stopped import Stopped
from shoal.controllers.multicluster import bare_copies
from tests.chaos.clusters.test_killed_wrappers import CopyWatch, MortalSender
from tests.faults import proven
from tests.unit.appwrapper.build import dispatched
from tests.unit.clusters.wrappers import gang, sending_town

MOST_WRITES = 50
AT_ONCE = 8


class PodWatch(CopyWatch):
    """The same of pods that a scheduler may bind."""

    plural = ("", "pods")

    def _look(self, cluster: str, event: object) -> None:
        pod: Json = msgspec.json.decode(event.record.raw)  # type: ignore[attr-defined]
        name, there = pod["metadata"]["name"], self._at.setdefault(pod["metadata"]["name"], set())
        if event.type == "DELETED":  # type: ignore[attr-defined]
            there.discard(cluster)
        elif not pod["spec"].get("schedulingGates") and cluster not in there:
            there.add(cluster)
            if len(there) > 1:
                self.broken.append(f"{name} is in {sorted(there)}")
            if self._stored(name) != cluster:
                self.broken.append(f"{name} is in {cluster}, and the hub says {self._stored(name) or 'nothing'}")
            if not self._is_sent(name):
                self.broken.append(f"{name} is released in {cluster}, and the hub has not stored that it was sent")

    def _is_sent(self, name: str) -> bool:
        resource = self._town.hub.server.registry.find("workload.codeflare.dev", "appwrappers")
        assert resource is not None
        found = [msgspec.json.decode(record.raw) for record in resource.collection.records()]
        return any(one["metadata"]["name"] == name and one["status"].get("isdispatched") for one in found)


async def walk_once(at: int = 0) -> tuple[list[object], list[str]]:
    """Two gangs run in two members, one is deleted, and a third takes its place."""
    async with sending_town("a", "b", bare=("a", "b")) as t:
        mortal, watch = MortalSender(t, at), PodWatch(t)
        t.run_hub(mortal.lives())
        await t.connected()
        for name in ("one", "two"):
            await t.hub.create(kinds.APP_WRAPPER, gang(name))
            await t.hub.until(kinds.APP_WRAPPER, name, dispatched)
        await t.hub.create(kinds.APP_WRAPPER, gang("three"))
        await t.hub.client.delete(kinds.APP_WRAPPER, "one", "default")
        await t.hub.until_gone(kinds.APP_WRAPPER, "one")
        await t.hub.until(kinds.APP_WRAPPER, "three", dispatched)
        assert watch.broken == [], f"dies at write {at} ({mortal.hub.writes[-1:]})"
        left = [sorted(await member.names(kinds.POD)) for member in t.members.values()]
        return sorted(left), mortal.hub.writes


def is_born_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare_copies, "stopped", lambda obj: Stopped(obj))


@pytest.mark.not_at_rest("nothing that decides runs in the members; the hub is judged by what is where")
@proven(without=is_born_running)
async def test_f608_a_hub_that_dies_after_any_write_releases_every_object_in_a_bare_member_once() -> None:
    """F608: the hub dies after any one of its writes while it makes, releases, follows and removes wrapped objects in
    members without Shoal. Holds: none is released in two members or before it is stored that it was sent, and all ends
    as if it had not died."""
    calm, writes = await walk_once()
    assert calm == [["three"], ["two"]]
    assert len(writes) <= MOST_WRITES
    for first in range(1, len(writes) + 1, AT_ONCE):
        walks = (walk_once(at) for at in range(first, min(first + AT_ONCE, len(writes) + 1)))
        assert [state for state, _ in await asyncio.gather(*walks)] == [calm] * min(AT_ONCE, len(writes) + 1 - first)
