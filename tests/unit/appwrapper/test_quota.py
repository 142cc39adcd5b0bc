"""Quota across namespaces: who sits where, what is published, and what happens when trees change."""

from __future__ import annotations

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.appwrapper.intake import Intake
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, has_state, needs, quota, trail, waits


def labelled(obj: Json, **labels: str) -> Json:
    obj["metadata"]["labels"] = labels
    return obj


def asks(name: str, cpu: str, team: str = "", **spec: int) -> Json:
    made = app_wrapper(name, config_map(name), needs=[needs(1, cpu=cpu)], **spec)
    return labelled(made, team=team) if team else made


async def plant(cluster: Cluster, *, default: str = "0") -> None:
    """root 3 { blue 2, green 2 (hard), default }."""
    await cluster.create(kinds.QUOTA_SUBTREE, quota("team", "", ("root", {"cpu": "3"}, False)))
    blue, green = ("blue", {"cpu": "2"}, False), ("green", {"cpu": "2"}, True)
    await cluster.create(kinds.QUOTA_SUBTREE, quota("team", "root", blue, green, ("default", {"cpu": default}, False)))


@pytest.fixture
async def preempting(quiet: Cluster) -> Cluster:
    quiet.start(planned(quiet.client, AppWrapperSettings(preemption=True)).run())
    return quiet


async def test_over_quota_waits_in_mcads_words_and_starts_when_quota_grows(cluster: Cluster) -> None:
    await plant(cluster)
    await cluster.create(kinds.APP_WRAPPER, asks("one", "2", "green"))
    await cluster.until(kinds.APP_WRAPPER, "one", dispatched)
    await cluster.create(kinds.APP_WRAPPER, asks("two", "1", "green"))
    waiting = await cluster.until(kinds.APP_WRAPPER, "two", waits)
    assert trail(waiting)[-1] == (
        "Backoff",
        "quota limit exceeded",
        "Insufficient quota and/or resources to dispatch AppWrapper.",
    )
    assert "team/green" in waiting["status"]["message"] and "cpu" in waiting["status"]["message"]
    bigger = quota("team", "root", ("blue", {"cpu": "2"}, False), ("green", {"cpu": "3"}, True))["spec"]
    await cluster.client.patch(kinds.QUOTA_SUBTREE, "team-root", "default", {"spec": bigger})
    # the root carries 3 and one+two need 3
    await cluster.until(kinds.APP_WRAPPER, "two", dispatched)


async def test_a_gang_that_names_no_leaf_is_seated_at_default(cluster: Cluster) -> None:
    await plant(cluster)
    await cluster.create(kinds.APP_WRAPPER, asks("plain", "1"))
    wrapper = await cluster.until(kinds.APP_WRAPPER, "plain", dispatched)
    assert wrapper["metadata"]["labels"] == {"team": "default"}
    seats = msgspec.json.decode(wrapper["status"]["admission"])["seats"]
    assert seats["team"]["node"] == "root", "default has no quota of its own: it borrows"


async def test_a_leaf_that_does_not_exist_is_named(cluster: Cluster) -> None:
    await plant(cluster)
    await cluster.create(kinds.APP_WRAPPER, asks("lost", "1", "purple"))
    waiting = await cluster.until(kinds.APP_WRAPPER, "lost", waits)
    assert "no leaf 'purple'" in waiting["status"]["message"]


async def test_a_borrower_makes_way_for_who_is_within_quota(preempting: Cluster) -> None:
    cluster = preempting
    await plant(cluster)
    await cluster.create(kinds.APP_WRAPPER, asks("borrower", "3", "blue"))
    await cluster.until(kinds.APP_WRAPPER, "borrower", dispatched)
    await cluster.create(kinds.APP_WRAPPER, asks("owner", "1", "green"))
    await cluster.until(kinds.APP_WRAPPER, "owner", dispatched)
    borrower = await cluster.until(kinds.APP_WRAPPER, "borrower", has_state("Pending"))
    assert ("PreemptCandidate", "Preempted") in [one[:2] for one in trail(borrower)]
    assert "borrower" not in await cluster.names(kinds.CONFIG_MAP)


async def test_a_preemptor_does_not_displace_those_it_was_displaced_by(preempting: Cluster) -> None:
    cluster = preempting
    await test_a_borrower_makes_way_for_who_is_within_quota(cluster)
    await cluster.settled()
    assert dispatched(await cluster.get(kinds.APP_WRAPPER, "owner"))


async def test_the_tree_says_what_is_used_and_by_which_gangs(cluster: Cluster) -> None:
    await plant(cluster)
    await cluster.create(kinds.APP_WRAPPER, asks("one", "2", "blue"))
    await cluster.create(kinds.APP_WRAPPER, asks("two", "1", "blue"))
    await cluster.until(kinds.APP_WRAPPER, "one", dispatched)
    await cluster.until(kinds.APP_WRAPPER, "two", dispatched)
    stored = await cluster.until(
        kinds.QUOTA_SUBTREE,
        "team-root",
        lambda one: one.get("status", {}).get("children", ({},))[0].get("consumerCount") == 2,
    )
    blue, green, _ = stored["status"]["children"]
    assert blue["allocated"]["requests"] == {"cpu": "2"}
    assert blue["borrowed"]["requests"] == {"cpu": "1"}
    assert "one" not in str(blue) and "two" not in str(blue)
    assert green["allocated"].get("requests", {}) == {}
    await cluster.settled()
    quiet_revision = (await cluster.get(kinds.QUOTA_SUBTREE, "team-root"))["metadata"]["resourceVersion"]
    await cluster.settled()
    assert (await cluster.get(kinds.QUOTA_SUBTREE, "team-root"))["metadata"]["resourceVersion"] == quiet_revision


def does_not_hear_of_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Intake._subtree_changed
    monkeypatch.setattr(
        Intake, "_subtree_changed", lambda self, kind, change: original(self, kind, change) if change.new else None
    )
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


@proven(without=does_not_hear_of_deletions)
async def test_f033_a_tree_deleted_under_load_frees_who_waited_for_it(cluster: Cluster) -> None:
    """F33: quota is lowered below its use, then the tree is deleted. Holds: no gang is evicted, no new one is admitted
    above the limit, and without a tree there is no constraint."""
    await plant(cluster)
    await cluster.create(kinds.APP_WRAPPER, asks("one", "2", "green"))
    await cluster.until(kinds.APP_WRAPPER, "one", dispatched)
    smaller = quota("team", "root", ("blue", {"cpu": "2"}, False), ("green", {"cpu": "1"}, True))["spec"]
    await cluster.client.patch(kinds.QUOTA_SUBTREE, "team-root", "default", {"spec": smaller})
    await cluster.create(kinds.APP_WRAPPER, asks("two", "1", "green"))
    await cluster.until(kinds.APP_WRAPPER, "two", waits)
    assert dispatched(await cluster.get(kinds.APP_WRAPPER, "one"))
    await cluster.client.delete(kinds.QUOTA_SUBTREE, "team-root", "default")
    await cluster.client.delete(kinds.QUOTA_SUBTREE, "team-top", "default")
    await cluster.until(kinds.APP_WRAPPER, "two", dispatched)


async def test_a_restart_seats_everyone_where_they_sat(quiet: Cluster) -> None:
    running = quiet.start(planned(quiet.client, AppWrapperSettings()).run())
    await plant(quiet)
    await quiet.create(kinds.APP_WRAPPER, asks("one", "2", "green"))
    await quiet.until(kinds.APP_WRAPPER, "one", dispatched)
    running.cancel()
    quiet.start(planned(quiet.client, AppWrapperSettings()).run())
    await quiet.create(kinds.APP_WRAPPER, asks("two", "1", "green"))
    await quiet.until(kinds.APP_WRAPPER, "two", waits)


async def test_never_means_that_trees_are_ignored(quiet: Cluster) -> None:
    quiet.start(planned(quiet.client, AppWrapperSettings(quota="never")).run())
    await plant(quiet)
    await quiet.create(kinds.APP_WRAPPER, asks("one", "4", "green"))
    wrapper = await quiet.until(kinds.APP_WRAPPER, "one", dispatched)
    assert wrapper["metadata"]["labels"] == {"team": "green"}
