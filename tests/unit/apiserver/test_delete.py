"""Deleting: at once, gracefully, after finalizers, in collections."""

from __future__ import annotations

import pytest

from shoal.api.kinds import CONFIG_MAP, DEPLOYMENT, NAMESPACE, POD
from shoal.kube.client import Client
from shoal.kube.errors import Conflict, Forbidden, Invalid, NotFound
from tests.unit.apiserver.builders import config_map, pod


async def is_gone(client: Client, kind: object, name: str, namespace: str | None = "default") -> bool:
    try:
        await client.get(kind, name, namespace)  # type: ignore[arg-type]
    except NotFound:
        return True
    return False


async def test_plain_objects_go_at_once(client: Client) -> None:
    made = await client.create(CONFIG_MAP, config_map("a"), "default")
    answer = await client.delete(CONFIG_MAP, "a", "default")
    assert answer["status"] == "Success"
    assert answer["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    with pytest.raises(NotFound):
        await client.delete(CONFIG_MAP, "a", "default")


async def test_preconditions_protect_a_namesake(client: Client) -> None:
    made = await client.create(CONFIG_MAP, config_map("a"), "default")
    with pytest.raises(Conflict, match="UID in the precondition"):
        await client.delete(CONFIG_MAP, "a", "default", uid="another")
    with pytest.raises(Conflict, match="ResourceVersion in the precondition"):
        await client.delete(CONFIG_MAP, "a", "default", resource_version="1")
    await client.delete(CONFIG_MAP, "a", "default", uid=made["metadata"]["uid"])


async def test_finalizers_hold_an_object_until_the_last_is_gone(client: Client) -> None:
    await client.create(
        CONFIG_MAP, {"metadata": {"name": "a", "finalizers": ["example.com/one", "example.com/two"]}}, "default"
    )
    marked = await client.delete(CONFIG_MAP, "a", "default")
    assert marked["metadata"]["deletionTimestamp"] and marked["metadata"]["deletionGracePeriodSeconds"] == 0
    again = await client.delete(CONFIG_MAP, "a", "default")
    assert again["metadata"]["resourceVersion"] == marked["metadata"]["resourceVersion"]
    await client.patch(CONFIG_MAP, "a", "default", {"metadata": {"finalizers": ["example.com/two"]}})
    with pytest.raises(Invalid, match="no new finalizers can be added"):
        await client.patch(
            CONFIG_MAP, "a", "default", {"metadata": {"finalizers": ["example.com/two", "example.com/new"]}}
        )
    await client.patch(CONFIG_MAP, "a", "default", {"metadata": {"finalizers": None}})
    assert await is_gone(client, CONFIG_MAP, "a")


@pytest.mark.parametrize("policy, finalizers", [("Foreground", ["foregroundDeletion"]), ("Orphan", ["orphan"])])
async def test_propagation_leaves_a_finalizer_for_the_garbage_collector(
    client: Client, policy: str, finalizers: list[str]
) -> None:
    await client.create(CONFIG_MAP, config_map("a"), "default")
    marked = await client.delete(CONFIG_MAP, "a", "default", propagation=policy)  # type: ignore[arg-type]
    assert marked["metadata"]["finalizers"] == finalizers and marked["metadata"]["deletionTimestamp"]


async def test_pods_on_a_node_get_their_grace_period(client: Client) -> None:
    await client.create(POD, pod("p", nodeName="n1", terminationGracePeriodSeconds=20), "default")
    marked = await client.delete(POD, "p", "default")
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 20
    assert marked["metadata"]["deletionTimestamp"] == "2023-11-14T22:13:40Z"  # when the time will be over
    await client.patch(POD, "p", "default", {"status": {"phase": "Running"}}, subresource="status")  # still there
    await client.delete(POD, "p", "default", grace_seconds=0)  # the node agent has ended it
    assert await is_gone(client, POD, "p")


async def test_a_second_delete_only_shortens_the_wait(client: Client) -> None:
    await client.create(POD, pod("p", nodeName="n1"), "default")
    assert (await client.delete(POD, "p", "default", grace_seconds=10))["metadata"]["deletionGracePeriodSeconds"] == 10
    assert (await client.delete(POD, "p", "default", grace_seconds=60))["metadata"]["deletionGracePeriodSeconds"] == 10
    assert (await client.delete(POD, "p", "default", grace_seconds=2))["metadata"]["deletionGracePeriodSeconds"] == 2


async def test_pods_that_never_ran_go_at_once(client: Client) -> None:
    await client.create(POD, pod("p"), "default")
    assert (await client.delete(POD, "p", "default"))["kind"] == "Pod"
    assert await is_gone(client, POD, "p")


async def test_collections_go_by_selector(client: Client) -> None:
    for name, color in (("a", "red"), ("b", "blue"), ("c", "red")):
        await client.create(CONFIG_MAP, {"metadata": {"name": name, "labels": {"color": color}}}, "default")
    await client.request("DELETE", CONFIG_MAP.path("default"), query={"labelSelector": "color=red"})
    assert [one["metadata"]["name"] for one in await client.list(CONFIG_MAP, "default")] == ["b"]


async def test_namespaces_wait_for_their_content_and_take_nothing_new(client: Client) -> None:
    await client.create(NAMESPACE, {"metadata": {"name": "team"}})
    marked = await client.delete(NAMESPACE, "team")
    assert marked["status"]["phase"] == "Terminating"
    with pytest.raises(Forbidden, match="because it is being terminated") as caught:
        await client.create(CONFIG_MAP, config_map("late"), "team")
    assert caught.value.causes[0]["reason"] == "NamespaceTerminating"
    current = await client.get(NAMESPACE, "team")
    current["spec"] = {"finalizers": []}
    await client.update(NAMESPACE, current, "team", subresource="finalize")
    assert await is_gone(client, NAMESPACE, "team", None)


async def test_deleting_counts_as_a_change_of_what_is_wanted(client: Client) -> None:
    body = {
        "metadata": {"name": "d", "finalizers": ["example.com/x"]},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    }
    await client.create(DEPLOYMENT, body, "default")
    assert (await client.delete(DEPLOYMENT, "d", "default"))["metadata"]["generation"] == 2


async def test_eviction_deletes_unless_a_budget_forbids(client: Client) -> None:
    from shoal.api.kinds import POD_DISRUPTION_BUDGET
    from shoal.kube.errors import TooManyRequests

    await client.create(POD, pod("p", labels={"app": "x"}, nodeName="n1"), "default")
    await client.patch(POD, "p", "default", {"status": {"phase": "Running"}}, subresource="status")
    await client.create(
        POD_DISRUPTION_BUDGET,
        {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}},
        "default",
    )
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    with pytest.raises(TooManyRequests, match="disruption budget"):
        await client.create(POD, eviction, "default", name="p", subresource="eviction")
    await client.delete(POD_DISRUPTION_BUDGET, "b", "default")
    another = {**eviction, "deleteOptions": {"preconditions": {"uid": "another"}}}
    with pytest.raises(Conflict, match="UID in precondition: another"):
        await client.create(POD, another, "default", name="p", subresource="eviction")
    await client.create(POD, eviction, "default", name="p", subresource="eviction")
    evicted = await client.get(POD, "p", "default")
    assert evicted["metadata"]["deletionTimestamp"]
    assert [one["reason"] for one in evicted["status"]["conditions"]] == ["EvictionByEvictionAPI"]
