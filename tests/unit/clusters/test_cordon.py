"""A member that an administrator cordons or drains: it takes nothing new, and what it runs runs on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.multicluster.copies import wanted_on
from shoal.controllers.multicluster.members import Members
from shoal.controllers.multicluster.record import record_of
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.clusters.build import is_on, is_placed, our_check, sent_job, town
from tests.unit.clusters.test_commands import call, served
from tests.unit.queues.build import complete, job, make, name_of, pods_of, true


async def cordon(hub: Cluster, name: str, since: str | None = "2026-01-01T00:00:00Z") -> None:
    change = {"metadata": {"annotations": {"shoal.dev/cordoned": since}}}
    await hub.client.patch(kinds.MULTIKUEUE_CLUSTER, name, None, change)


async def test_a_cordoned_cluster_keeps_its_gangs_and_gets_no_more() -> None:
    async with town("a", "b") as t:
        t.start_hub()
        await t.connected()
        (first,) = await make(t.hub, sent_job("first", 2))
        home = (await t.hub.until(kinds.WORKLOAD, name_of(first), is_placed))["status"]["clusterName"]
        (other,) = {"a", "b"} - {home}
        await pods_of(t.members[home], "first", 2)
        await cordon(t.hub, home)
        (second,) = await make(t.hub, sent_job("second", 2))
        await t.hub.until(kinds.WORKLOAD, name_of(second), is_on(other))
        await pods_of(t.members[other], "second", 2)
        assert await t.where(kinds.JOB, "second") == [other]
        assert is_on(home)(await t.hub.get(kinds.WORKLOAD, name_of(first)))
        assert await t.where(kinds.JOB, "first") == [home]


def keeps_its_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Members, "is_cordoned", lambda self, name: False)


@proven(without=keeps_its_offers)
async def test_f220_a_cordoned_cluster_gives_back_what_it_was_only_offered() -> None:
    """F220: a member is cordoned while a waiting gang's copy is there: the copy is admitted later and holds the
    member's quota, or starts there after all. Holds: the copy goes, the gang waits with the reason, and the member
    is offered the gang again when it is uncordoned."""
    async with town("a") as t:
        await make(t.members["a"], job("local", 8))
        await t.members["a"].until(kinds.JOB, "local", lambda one: one["spec"]["suspend"] is False)
        t.start_hub()
        await t.connected()
        (made,) = await make(t.hub, sent_job("train", 2))
        await t.members["a"].until(kinds.WORKLOAD, name_of(made), lambda one: True)
        await cordon(t.hub, "a")
        await t.members["a"].until_gone(kinds.WORKLOAD, name_of(made))
        waits = await t.hub.until(kinds.WORKLOAD, name_of(made), lambda one: "cordoned" in _message(one))
        assert our_check(waits)["message"] == "a: cordoned: it takes no new gangs until shoal cluster uncordon a"
        assert not record_of(await t.hub.until(kinds.WORKLOAD, name_of(made), _is_nowhere)).leaving
        await t.members["a"].client.delete(kinds.JOB, "local", "default")
        await t.members["a"].until_gone(kinds.JOB, "local")
        await t.settled()
        assert name_of(made) not in await t.members["a"].names(kinds.WORKLOAD)
        await cordon(t.hub, "a", None)
        await t.hub.until(kinds.WORKLOAD, name_of(made), is_on("a"))
        await pods_of(t.members["a"], "train", 2)


async def test_a_drain_waits_for_the_end_of_every_gang_and_stops_none(tmp_path: Path) -> None:
    async with town("a") as t:
        where = ("--kubeconfig", await served(t.hub, tmp_path / "hub"))
        t.start_hub()
        await t.connected()
        (made,) = await make(t.hub, sent_job("train", 2))
        await t.hub.until(kinds.WORKLOAD, name_of(made), is_on("a"))
        await pods_of(t.members["a"], "train", 2)
        late = await call("cluster", "drain", "a", "--timeout", "0.2", *where)
        assert "1 gangs are still in a after 0.2 s: default/train; it stays cordoned" in str(late.exception)
        assert await t.members["a"].names(kinds.JOB) == ["train"]
        listed = (await call("cluster", "list", *where)).stdout.splitlines()
        assert "cordoned; " in listed[1]
        draining = asyncio.create_task(call("cluster", "drain", "a", *where))
        await complete(t.members["a"], "train", 2)
        await t.hub.until(kinds.WORKLOAD, name_of(made), true("Finished"))
        done = await draining
        assert done.exit_code == 0, done.output
        assert "cluster a drained: no gang is in it" in done.stdout
        assert (await call("cluster", "uncordon", "a", *where)).stdout == "cluster a uncordoned\n"
        found = await t.hub.get(kinds.MULTIKUEUE_CLUSTER, "a")
        assert "shoal.dev/cordoned" not in (found["metadata"].get("annotations") or {})
        unknown = await call("cluster", "cordon", "nowhere", *where)
        assert "there is no cluster nowhere" in str(unknown.exception)


def test_a_copy_that_leaves_is_not_wanted_although_it_is_recorded() -> None:
    conditions = [{"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    record = '{"epoch": 5, "on": ["a", "b"], "leaving": ["a"]}'
    workload: Json = {
        "metadata": {"name": "w", "annotations": {"shoal.dev/dispatch": record}},
        "status": {"conditions": conditions},
    }
    assert (wanted_on(workload, "a"), wanted_on(workload, "b")) == ("nothing", "place")


def _message(workload: Json) -> str:
    return str(our_check(workload).get("message") or "")


def _is_nowhere(workload: Json) -> bool:
    return not record_of(workload).on
