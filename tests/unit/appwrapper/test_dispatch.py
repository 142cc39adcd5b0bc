"""AppWrappers from the outside: held until they fit, created whole, handed over."""

from __future__ import annotations

from shoal.api import kinds
from tests.cluster import Cluster
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, needs, pod, trail, waits


async def test_what_fits_is_created_and_says_so_in_mcads_words(cluster: Cluster) -> None:
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("train", pod("one", cpu="1"), config_map("settings", rate="1")))
    wrapper = await cluster.until(kinds.APP_WRAPPER, "train", dispatched)
    assert trail(wrapper) == [
        ("Init", "", ""),
        ("Queueing", "AwaitingHeadOfLine", ""),
        ("HeadOfLine", "FrontOfQueue.", ""),
        ("Dispatched", "AppWrapperRunnable", ""),
    ]
    status = wrapper["status"]
    assert (status["state"], status["canrun"], status["filterignore"]) == ("Running", True, True)
    assert status["sender"] == "before manageQueueJob - afterEtcdDispatching"
    created = await cluster.get(kinds.POD, "one")
    assert created["metadata"]["labels"] == {"appwrapper.mcad.ibm.com": "train", "resourceName": "one"}
    assert created["metadata"]["ownerReferences"][0]["uid"] == wrapper["metadata"]["uid"]
    assert "settings" in await cluster.names(kinds.CONFIG_MAP)


async def test_what_does_not_fit_waits_with_no_object_created(cluster: Cluster) -> None:
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("big", config_map("part"), needs=[needs(2, cpu="3")]))
    wrapper = await cluster.until(kinds.APP_WRAPPER, "big", waits)
    assert trail(wrapper)[-1] == (
        "Backoff",
        "AppWrapperNotRunnable.",
        "Insufficient resources to dispatch AppWrapper.",
    )
    assert wrapper["status"]["state"] == "Pending"
    assert "canrun" not in wrapper["status"]
    assert "cpu" in wrapper["status"]["message"]
    await cluster.settled()
    assert "part" not in await cluster.names(kinds.CONFIG_MAP)


async def test_deleting_the_first_starts_the_next(cluster: Cluster) -> None:
    for name in ("first", "second"):
        await cluster.create(kinds.APP_WRAPPER, app_wrapper(name, pod(name, cpu="3")))
    await cluster.until(kinds.APP_WRAPPER, "first", dispatched)
    await cluster.until(kinds.APP_WRAPPER, "second", waits)
    await cluster.client.delete(kinds.APP_WRAPPER, "first", "default")
    await cluster.until(kinds.APP_WRAPPER, "second", dispatched)
    await cluster.until_gone(kinds.POD, "first")
    assert await cluster.names(kinds.POD) == ["second"]


async def test_a_small_one_passes_a_big_one_that_waits(cluster: Cluster) -> None:
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("big", config_map("a"), needs=[needs(1, cpu="40")]))
    await cluster.until(kinds.APP_WRAPPER, "big", waits)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("small", config_map("b"), needs=[needs(1, cpu="1")]))
    await cluster.until(kinds.APP_WRAPPER, "small", dispatched)
    assert waits(await cluster.get(kinds.APP_WRAPPER, "big"))


async def test_equality_fits_and_a_millicore_more_does_not(cluster: Cluster) -> None:
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("more", config_map("a"), needs=[needs(1, cpu="4001m")]))
    await cluster.until(kinds.APP_WRAPPER, "more", waits)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("exact", config_map("b"), needs=[needs(1, cpu="4")]))
    await cluster.until(kinds.APP_WRAPPER, "exact", dispatched)
