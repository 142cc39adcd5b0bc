"""AppWrappers of v1beta1 that a hub gives to its members: whole, in one place, with their status at home."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.meta import Json
from tests.unit.appwrapper.build import dispatched, has_state, job, set_pod
from tests.unit.appwrapper.test_faults_races import labelled, plant
from tests.unit.appwrapper.test_life import completing, finish_job, pod_of
from tests.unit.clusters.build import config
from tests.unit.clusters.wrappers import SENDING, gang, sending_town

NO_CLUSTER = "Cannot find a cluster with enough resources to dispatch AppWrapper."


def is_sent(one: Json) -> bool:
    return bool((one.get("status") or {}).get("isdispatched"))


def says(text: str) -> Any:
    return lambda one: text in (one.get("status") or {}).get("message", "")


def is_over_quota(one: Json) -> bool:
    found = (one.get("status") or {}).get("conditions") or ()
    return any(each.get("reason") == "quota limit exceeded" for each in found)


def backs_off(one: Json) -> bool:
    found = (one.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Backoff" and each["message"] == NO_CLUSTER for each in found)


async def test_two_members_take_one_each_and_the_third_waits_nowhere() -> None:
    async with sending_town("a", "b") as t:
        t.send()
        await t.connected()
        for name, home in (("one", "a"), ("two", "b")):
            body = gang(name)
            body["metadata"]["labels"] = {"team": "green"}
            made = await t.hub.create(kinds.APP_WRAPPER, body)
            sent = await t.hub.until(kinds.APP_WRAPPER, name, dispatched)
            assert is_sent(sent) and sent["status"]["canrun"] and sent["status"]["state"] == "Running"
            assert await t.where(kinds.APP_WRAPPER, name) == [home]
            copy = await t.members[home].get(kinds.APP_WRAPPER, name)
            assert copy["metadata"]["labels"]["IsDispatched"] == "true"
            assert copy["metadata"]["labels"]["team"] == "green"
            assert copy["spec"]["resources"] == made["spec"]["resources"]
            assert await t.members[home].names(kinds.POD) == [name]
        await t.hub.create(kinds.APP_WRAPPER, gang("three"))
        waiting = await t.hub.until(kinds.APP_WRAPPER, "three", backs_off)
        assert not waiting["status"].get("canrun") and waiting["status"]["state"] == "Pending"
        for name in ("a", "b"):
            assert f"{name}: " in waiting["status"]["message"]
        await t.settled()
        assert await t.where(kinds.APP_WRAPPER, "three") == []
        assert await t.hub.names(kinds.POD) == []
        await t.hub.client.delete(kinds.APP_WRAPPER, "one", "default")
        await t.hub.until_gone(kinds.APP_WRAPPER, "one")
        await t.hub.until(kinds.APP_WRAPPER, "three", dispatched)
        assert await t.where(kinds.APP_WRAPPER, "three") == ["a"]
        assert await t.where(kinds.APP_WRAPPER, "one") == []


async def test_the_end_comes_back() -> None:
    async with sending_town("a") as t:
        t.send()
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, completing("done", (job("train", cpu="3"), "Complete,Failed")))
        await t.hub.until(kinds.APP_WRAPPER, "done", dispatched)
        await set_pod(t.members["a"], await pod_of(t.members["a"], "train"), "Succeeded")
        await finish_job(t.members["a"], "train")
        ended = await t.hub.until(kinds.APP_WRAPPER, "done", has_state("Completed"))
        assert not ended["status"].get("canrun") and is_sent(ended)
        assert [one["type"] for one in ended["status"]["conditions"]][-2:] == ["Dispatched", "Completed"]
        await t.hub.create(kinds.APP_WRAPPER, gang("next"))  # its room and quota are free
        await t.hub.until(kinds.APP_WRAPPER, "next", dispatched)
        await t.hub.client.delete(kinds.APP_WRAPPER, "done", "default")
        await t.hub.until_gone(kinds.APP_WRAPPER, "done")
        assert await t.where(kinds.APP_WRAPPER, "done") == []


async def test_cluster_scheduling_restricts_where_it_goes() -> None:
    async with sending_town("a", "b", "c") as t:
        await t.hub.client.patch(kinds.MULTIKUEUE_CLUSTER, "c", None, {"metadata": {"labels": {"gpu": "h100"}}})
        t.send()
        await t.connected()
        named = {"clusterScheduling": {"clusters": [{"name": "b"}]}}
        selected = {"clusterScheduling": {"clusterSelector": {"matchLabels": {"gpu": "h100"}}}}
        for name, spec, home in (("named", named, "b"), ("selected", selected, "c")):
            await t.hub.create(kinds.APP_WRAPPER, gang(name, schedulingSpec=spec))
            await t.hub.until(kinds.APP_WRAPPER, name, dispatched)
            assert await t.where(kinds.APP_WRAPPER, name) == [home]
        await t.hub.create(kinds.APP_WRAPPER, gang("more", schedulingSpec=named))
        waiting = await t.hub.until(kinds.APP_WRAPPER, "more", backs_off)
        assert "a: clusterScheduling.clusters does not name it" in waiting["status"]["message"]


async def test_what_no_member_has_room_for_runs_at_home_where_that_is_allowed() -> None:
    async with sending_town("a") as t:
        await t.hub.add_node("home", cpu="4", memory="64Gi")
        await t.hub.client.patch(kinds.MULTIKUEUE_CONFIG, "everywhere", None, {"spec": {"clusters": ["a", "local"]}})
        t.send()
        await t.connected()
        for name, away in (("one", ["a"]), ("two", [])):
            await t.hub.create(kinds.APP_WRAPPER, gang(name))
            found = await t.hub.until(kinds.APP_WRAPPER, name, dispatched)
            assert is_sent(found) == bool(away)
            assert await t.where(kinds.APP_WRAPPER, name) == away
        assert await t.hub.names(kinds.POD) == ["two"]


async def test_a_quota_tree_of_the_hub_counts_it_once_wherever_it_runs() -> None:
    async with sending_town("a", "b") as t:
        await plant(t.hub)
        t.send()
        await t.connected()
        for name in ("one", "two"):
            await t.hub.create(kinds.APP_WRAPPER, labelled(gang(name, cpu="2"), team="green"))
        await t.hub.until(kinds.APP_WRAPPER, "one", dispatched)
        over = await t.hub.until(kinds.APP_WRAPPER, "two", is_over_quota)
        assert not is_sent(over)
        assert await t.where(kinds.APP_WRAPPER, "two") == []
        await t.hub.client.delete(kinds.APP_WRAPPER, "one", "default")
        await t.hub.until(kinds.APP_WRAPPER, "two", dispatched)


async def test_a_member_that_does_not_start_it_in_time_loses_it_to_the_next() -> None:
    async with sending_town("a", "b") as t:
        t.send(msgspec.structs.replace(SENDING, admit_seconds=1.0, refused_seconds=60.0))
        await t.connected()
        await plant(t.members["a"], root="0")  # quota of its own, which the hub does not see
        await t.hub.create(kinds.APP_WRAPPER, gang("train"))
        await t.hub.until(kinds.APP_WRAPPER, "train", dispatched)
        await t.members["a"].until_gone(kinds.APP_WRAPPER, "train")
        assert await t.where(kinds.APP_WRAPPER, "train") == ["b"]


async def test_clusters_of_several_configs_take_app_wrappers() -> None:
    async with sending_town("a", "b") as t:
        await t.hub.client.patch(kinds.MULTIKUEUE_CONFIG, "everywhere", None, {"spec": {"clusters": ["a"]}})
        t.send(msgspec.structs.replace(SENDING, app_wrappers="everywhere,more"))
        await t.connected()
        await t.hub.create(kinds.APP_WRAPPER, gang("one"))
        await t.hub.until(kinds.APP_WRAPPER, "one", says("there is no MultiKueueConfig more"))
        await t.hub.create(kinds.MULTIKUEUE_CONFIG, config("b", "a", name="more"))
        await t.hub.until(kinds.APP_WRAPPER, "one", dispatched)
        await t.hub.create(kinds.APP_WRAPPER, gang("two"))
        await t.hub.until(kinds.APP_WRAPPER, "two", dispatched)
        assert (await t.where(kinds.APP_WRAPPER, "one"), await t.where(kinds.APP_WRAPPER, "two")) == (["a"], ["b"])
