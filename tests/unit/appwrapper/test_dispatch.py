"""AppWrappers from the outside: held until they fit, created whole, handed over."""

from __future__ import annotations

import asyncio

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers import appwrapper
from shoal.controllers.appwrapper import AppWrapperSettings
from tests.cluster import Cluster
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, job, needs, pod, trail, waits


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


def deployment(name: str, labels: dict[str, str], template_labels: dict[str, str]) -> Json:
    template = {"metadata": {"labels": template_labels}, "spec": pod(name, cpu="1")["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels}, "spec": spec}


async def test_several_kinds_get_labels_owner_and_end_together(cluster: Cluster) -> None:
    # the Deployment is valid only because its own label wins over its template's, as published manifests rely on
    wraps = (config_map("settings"), deployment("web", {"app": "x"}, {"app": "y", "tier": "z"}), job("train", cpu="1"))
    wrapper = await cluster.create(kinds.APP_WRAPPER, app_wrapper("gang", *wraps))
    await cluster.until(kinds.APP_WRAPPER, "gang", dispatched)
    for kind, name in ((kinds.CONFIG_MAP, "settings"), (kinds.DEPLOYMENT, "web"), (kinds.JOB, "train")):
        made = (await cluster.get(kind, name))["metadata"]
        assert made["labels"]["appwrapper.mcad.ibm.com"] == "gang" and made["labels"]["resourceName"] == name
        owner = made["ownerReferences"][0]
        assert (owner["uid"], owner["controller"]) == (wrapper["metadata"]["uid"], True)
        assert owner["blockOwnerDeletion"] and owner["apiVersion"] == "workload.codeflare.dev/v1beta1"
    template = (await cluster.get(kinds.DEPLOYMENT, "web"))["spec"]["template"]["metadata"]["labels"]
    assert template == {"app": "x", "tier": "z", "appwrapper.mcad.ibm.com": "gang", "resourceName": "web"}
    await cluster.client.delete(kinds.APP_WRAPPER, "gang", "default")
    for kind, name in ((kinds.CONFIG_MAP, "settings"), (kinds.DEPLOYMENT, "web"), (kinds.JOB, "train")):
        await cluster.until_gone(kind, name)


async def test_declared_amounts_win_over_the_template_in_both_directions(cluster: Cluster) -> None:
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("less", pod("less", cpu="40"), needs=[needs(1, cpu="1")]))
    await cluster.until(kinds.APP_WRAPPER, "less", dispatched)
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("more", pod("more", cpu="1"), needs=[needs(1, cpu="40")]))
    await cluster.until(kinds.APP_WRAPPER, "more", waits)


async def test_a_limit_stands_in_for_a_request_of_zero(cluster: Cluster) -> None:
    declared = [{"replicas": 1, "requests": {"cpu": "0"}, "limits": {"cpu": "40"}}]
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("limited", config_map("a"), needs=declared))
    await cluster.until(kinds.APP_WRAPPER, "limited", waits)


async def test_sums_are_enough_where_aggregate_is_chosen(quiet: Cluster) -> None:
    await quiet.add_node("node-2", cpu="4")
    quiet.start(appwrapper.run(quiet.client))
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("fit", config_map("a"), needs=[needs(1, cpu="6")]))
    assert "cpu" in (await quiet.until(kinds.APP_WRAPPER, "fit", waits))["status"]["message"]
    sums = app_wrapper("sums", pod("b", cpu="6"), pod("c"))
    sums["metadata"]["annotations"] = {"shoal.dev/supply": "aggregate"}
    await quiet.create(kinds.APP_WRAPPER, sums)
    await quiet.until(kinds.APP_WRAPPER, "sums", dispatched)
    # as in MCAD, its pods do not wait for each other: one may run while another finds no node
    assert "shoal.dev/gang-size" not in (await quiet.get(kinds.POD, "c"))["metadata"]["annotations"]


async def test_age_overtakes_where_priority_grows(quiet: Cluster) -> None:
    quiet.start(planned(quiet.client, AppWrapperSettings(dynamic_priority=True)).run())
    await quiet.create(kinds.APP_WRAPPER, app_wrapper("running", config_map("r"), needs=[needs(1, cpu="3")]))
    await quiet.until(kinds.APP_WRAPPER, "running", dispatched)
    steep = app_wrapper("steep", config_map("a"), needs=[needs(1, cpu="3")], priorityslope=1000)
    await quiet.create(kinds.APP_WRAPPER, steep)
    await quiet.until(kinds.APP_WRAPPER, "steep", waits)
    await asyncio.sleep(0.1)  # a hundred points of priority
    flat = app_wrapper("flat", config_map("b"), needs=[needs(1, cpu="3")], priority=10)
    await quiet.create(kinds.APP_WRAPPER, flat)
    await quiet.until(kinds.APP_WRAPPER, "flat", waits)
    await quiet.client.delete(kinds.APP_WRAPPER, "running", "default")
    await quiet.until(kinds.APP_WRAPPER, "steep", dispatched)
    assert waits(await quiet.get(kinds.APP_WRAPPER, "flat"))
