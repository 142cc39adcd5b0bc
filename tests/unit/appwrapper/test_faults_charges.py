"""Drift of quota and room: who grows, changes labels or brings more than was promised stays charged."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.appwrapper import QuotaSubtree
from shoal.api.meta import Json
from shoal.controllers.appwrapper import quota
from shoal.engine.mcad import NodeUse
from shoal.engine.mcad.forest import QuotaForest
from shoal.engine.nodes.ledger import Ledger
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.appwrapper.build import (
    app_wrapper,
    config_map,
    dispatched,
    needs,
    of_gang,
    pod,
    set_pod,
    waits,
)
from tests.unit.appwrapper.test_faults_dispatch import (
    impatient,
)
from tests.unit.appwrapper.test_faults_races import labelled, plant


def counts_no_pods_of_gangs(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Ledger._charge_pod
    monkeypatch.setattr(
        Ledger, "_charge_pod", lambda self, fact: None if fact.gang else original(self, fact), raising=True
    )
    impatient(monkeypatch)


@proven(without=counts_no_pods_of_gangs)
async def test_f034_a_gang_that_grew_counts_by_the_larger_of_promise_and_pods(cluster: Cluster) -> None:
    """F34: an operator adds a pod to a running gang and takes it away again. Holds: while it is there its room is
    taken, together with what was promised; afterwards exactly what was promised."""
    wrapper = await cluster.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("a"), needs=[needs(1, cpu="1")]))
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    for name in ("first", "more"):
        await cluster.create(kinds.POD, of_gang(wrapper, pod(name, cpu="1")))
        await set_pod(cluster, name, "Running")
    await cluster.settled()
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("next", config_map("n"), needs=[needs(1, cpu="3")]))
    await cluster.until(kinds.APP_WRAPPER, "next", waits)
    await cluster.client.delete(kinds.POD, "more", "default", grace_seconds=0)
    await cluster.until(kinds.APP_WRAPPER, "next", dispatched)


def lets_go_of_the_relabelled(monkeypatch: pytest.MonkeyPatch) -> None:
    original = QuotaForest.restore

    def careless(self: QuotaForest, consumer: Any, seats: Any) -> None:
        if any(self._trees[name].leaf(group) is None for name, group in consumer.groups.items()):
            self.release(consumer.uid)
        else:
            original(self, consumer, seats)

    monkeypatch.setattr(QuotaForest, "restore", careless)
    impatient(monkeypatch)


@proven(without=lets_go_of_the_relabelled)
async def test_f035_a_running_gang_cannot_leave_its_quota_by_a_label(cluster: Cluster) -> None:
    """F35: the owner of a running gang changes its quota label to one that does not exist. Holds: it stays charged to
    the tree, and no other gang gets its share as well."""
    await plant(cluster)
    gang = app_wrapper("gang", config_map("a"), needs=[needs(1, cpu="2")])
    await cluster.create(kinds.APP_WRAPPER, labelled(gang, team="green"))
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    await cluster.client.patch(kinds.APP_WRAPPER, "gang", "default", {"metadata": {"labels": {"team": "nowhere"}}})
    await cluster.settled()
    other = app_wrapper("other", config_map("o"), needs=[needs(1, cpu="2")])
    await cluster.create(kinds.APP_WRAPPER, labelled(other, team="green"))
    waiting = await cluster.until(kinds.APP_WRAPPER, "other", waits)
    assert "team/root" in waiting["status"]["message"]


@proven(without=counts_no_pods_of_gangs)
async def test_f035_a_pod_that_claims_a_gang_stays_charged(cluster: Cluster) -> None:
    """F35: somebody's own pod carries the mark of another gang. Holds: its room is taken as any pod's."""
    wrapper = await cluster.create(kinds.APP_WRAPPER, app_wrapper("gang", pod("own", cpu="1")))
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    await set_pod(cluster, "own", "Running")
    await cluster.create(kinds.POD, of_gang(wrapper, pod("stowaway", cpu="2")))
    await set_pod(cluster, "stowaway", "Running")
    await cluster.settled()
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("next", config_map("n"), needs=[needs(1, cpu="2")]))
    await cluster.until(kinds.APP_WRAPPER, "next", waits)


@proven(without=counts_no_pods_of_gangs)
async def test_f036_pods_are_charged_as_the_server_stored_them(cluster: Cluster) -> None:
    """F36: a webhook put a sidecar of 2 cpu into a pod that was promised 1. Holds: 3 are taken."""
    wrapper = await cluster.create(kinds.APP_WRAPPER, app_wrapper("gang", config_map("a"), needs=[needs(1, cpu="1")]))
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    injected = of_gang(wrapper, pod("x", cpu="1"))
    injected["spec"]["containers"].append({**pod("y", cpu="2")["spec"]["containers"][0], "name": "sidecar"})
    await cluster.create(kinds.POD, injected)
    await set_pod(cluster, "x", "Running")
    await cluster.settled()
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("next", config_map("n"), needs=[needs(1, cpu="2")]))
    await cluster.until(kinds.APP_WRAPPER, "next", waits)


def lists_everyone(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = quota.status_of

    def named(subtree: QuotaSubtree, tree: str, use: dict[tuple[str, str], NodeUse]) -> Json:
        status = counted(subtree, tree, use)
        for child in status.get("children") or ():
            child["consumers"] = list(use.get((tree, child["name"]), NodeUse()).holders)
        return status

    monkeypatch.setattr(quota, "status_of", named)


@proven(without=lists_everyone)
async def test_f038_a_status_does_not_grow_with_the_gangs_at_a_node(cluster: Cluster) -> None:
    """F38: more gangs sit at a quota node than a status could list. Holds: the status is written, and has their
    number alone."""
    await plant(cluster)
    for number in range(23):
        tiny = app_wrapper(f"g{number:02}", config_map(f"c{number}"), needs=[needs(1, cpu="10m")])
        await cluster.create(kinds.APP_WRAPPER, labelled(tiny, team="green"))
    for number in range(23):
        await cluster.until(kinds.APP_WRAPPER, f"g{number:02}", dispatched)
    stored = await cluster.until(
        kinds.QUOTA_SUBTREE, "team-root", lambda one: "230m" in str((one.get("status") or {}).get("children"))
    )
    green = next(one for one in stored["status"]["children"] if one["name"] == "green")
    assert green["consumerCount"] == 23 and "consumers" not in green
