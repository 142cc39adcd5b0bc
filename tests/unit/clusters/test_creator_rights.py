"""No right is lent across clusters: what the creator of an AppWrapper may not create at the hub goes to no member."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli import cluster as composition
from shoal.controllers.multicluster import ClusterSettings
from shoal.controllers.multicluster.rights import CreatorRights
from shoal.kube.errors import Forbidden
from tests.faults import proven
from tests.unit.appwrapper.test_rights import RBAC, WRAPPERS, as_user, grant
from tests.unit.clusters.build import MANAGED, QUICK, Town, condition, is_on, our_check, town
from tests.unit.queues.build import QUEUE, job, name_of, pods_of

JOBS = ("batch", "jobs")
WIDGET = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "loot"}, "spec": {}}
WIDGETS = "widgets.example.com/Widget"


def asks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def allowed(self: CreatorRights, *asked: Any) -> str:
        return ""

    monkeypatch.setattr(CreatorRights, "refusal", allowed)
    monkeypatch.setattr("tests.cluster.PATIENCE", 2.0)


def wrapper(name: str, *wrapped: Json) -> Json:
    inner = job(f"{name}-inner", 2)
    del inner["metadata"]["labels"]
    inner["spec"].pop("suspend")
    components = [{"template": one} for one in (inner, *wrapped)]
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": name, "namespace": "default", "labels": {QUEUE: "user-queue"}},
        "spec": {"suspend": True, "managedBy": MANAGED, "components": components},
    }


async def submit(t: Town, body: Json) -> str:
    """As bob, who is no administrator. The name of its Workload."""
    made = await as_user(t.hub, "bob").create(kinds.APP_WRAPPER_V1BETA2, body, "default")
    return name_of(made, "AppWrapper", "workload.codeflare.dev")


async def rejected(t: Town, workload: str) -> str:
    """With which words it was switched off; nothing of it may be anywhere."""
    found = await t.hub.until(kinds.WORKLOAD, workload, lambda one: (one["spec"] or {}).get("active") is False)
    assert await t.where(kinds.APP_WRAPPER_V1BETA2, "gang") == []
    return str(condition(found, "Evicted").get("message")) + str(our_check(found).get("message"))


async def set_quota(t: Town, member: str, cpu: str) -> None:
    queue = await t.members[member].get(kinds.CLUSTER_QUEUE, "cluster-queue")
    for one in queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]:
        if one["name"] == "cpu":
            one["nominalQuota"] = cpu
    change = {"spec": {"resourceGroups": queue["spec"]["resourceGroups"]}}
    await t.members[member].client.patch(kinds.CLUSTER_QUEUE, "cluster-queue", "", change)


@proven(without=asks_no_more)
async def test_f222_a_right_that_was_revoked_stops_what_waits_at_the_hub() -> None:
    """F222: a user submits an AppWrapper at a hub and loses the right to create what it wraps while it waits.
    Holds: it goes to no member, and the missing right is named; with the right back it may be tried again."""
    async with town("a") as t:
        await grant(t.hub, "bob", "default", WRAPPERS, JOBS)
        name = await submit(t, wrapper("gang"))
        await t.hub.until(kinds.WORKLOAD, name, lambda one: bool(our_check(one)))
        role = await t.hub.get(kinds.ROLE, "bob")
        await t.hub.client.delete(kinds.ROLE, "bob", "default")
        t.start_hub()
        await t.connected()
        said = await rejected(t, name)
        assert "User bob is not authorized to create jobs.batch in default" in said
        kept = {"metadata": {"name": "bob", "namespace": "default"}, "rules": role["rules"]}
        await t.hub.create(kinds.ROLE, {"apiVersion": f"{RBAC}/v1", "kind": "Role", **kept})
        await t.hub.client.patch(kinds.WORKLOAD, name, "default", {"spec": {"active": True}})
        await t.hub.until(kinds.WORKLOAD, name, is_on("a"))
        await pods_of(t.members["a"], "gang-inner", 2)


@proven(without=asks_no_more)
async def test_f222_a_right_that_was_revoked_stops_what_waits_in_a_member() -> None:
    """F222: a user submits an AppWrapper at a hub and loses the right to create what it wraps while a member has no
    room for it. Holds: it is asked for again directly before the release, and nothing is created there."""
    async with town("a") as t:
        await grant(t.hub, "bob", "default", WRAPPERS, JOBS)
        await set_quota(t, "a", "0")
        t.start_hub()
        await t.connected()
        name = await submit(t, wrapper("gang"))
        await t.members["a"].until(kinds.WORKLOAD, name, lambda one: bool(condition(one, "QuotaReserved")))
        await t.hub.client.delete(kinds.ROLE, "bob", "default")
        await set_quota(t, "a", "8")
        assert "User bob is not authorized to create jobs.batch in default" in await rejected(t, name)
        assert await t.members["a"].names(kinds.JOB) == []


@proven(without=asks_no_more)
async def test_f223_a_kind_that_the_hub_does_not_serve_needs_a_listing_and_the_right() -> None:
    """F223: an AppWrapper wraps a kind that only members serve, so no API server of the hub ever judged its creation.
    Holds: it is sent only where an administrator has listed the kind and its creator holds the right at the hub."""
    async with town("a") as t:
        await grant(t.hub, "bob", "default", WRAPPERS, JOBS)
        t.start_hub()
        await t.connected()
        said = await rejected(t, await submit(t, wrapper("gang", WIDGET)))
        assert "the hub serves no Widget in example.com/v1" in said and "clusters.unserved_kinds" in said
        await t.stop_hub()
        await t.hub.client.delete(kinds.APP_WRAPPER_V1BETA2, "gang", "default")
        await t.hub.until_gone(kinds.APP_WRAPPER_V1BETA2, "gang")
        t.start_hub(msgspec.structs.replace(QUICK, unserved_kinds=(WIDGETS,)))
        said = await rejected(t, await submit(t, wrapper("gang", WIDGET)))
        assert "User bob is not authorized to create widgets.example.com in default" in said
        rights = {"verbs": ["create"], "apiGroups": ["example.com"], "resources": ["widgets"]}
        role = await t.hub.get(kinds.ROLE, "bob")
        await t.hub.client.patch(kinds.ROLE, "bob", "default", {"rules": [*role["rules"], rights]})
        name = await submit(t, wrapper("allowed", WIDGET))
        await t.members["a"].until(kinds.APP_WRAPPER_V1BETA2, "allowed", lambda one: True)
        await t.hub.until(kinds.WORKLOAD, name, is_on("a"))


async def test_the_right_for_an_unserved_kind_is_asked_at_admission_too() -> None:
    async with town("a", deciding=False) as t:
        await grant(t.hub, "bob", "default", WRAPPERS, JOBS)
        t.hub.server.admission.judges.update(composition.judges(t.hub.client, unserved=(WIDGETS,)))
        with pytest.raises(Forbidden, match="not authorized to create widgets"):
            await submit(t, wrapper("gang", WIDGET))


@proven(without=asks_no_more)
async def test_f224_what_depends_on_its_creator_is_never_sent() -> None:
    """F224: a hub that creates wrapped objects as their users lets AppWrappers wrap roles; a member would create them
    with the rights of the hub's credential. Holds: such an AppWrapper goes to no member."""
    async with town("a") as t:
        t.start_hub()
        await t.connected()
        rules = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
        loot = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": "loot"}, "rules": rules}
        made = await t.hub.create(kinds.APP_WRAPPER_V1BETA2, wrapper("gang", loot))
        said = await rejected(t, name_of(made, "AppWrapper", "workload.codeflare.dev"))
        assert "Role in rbac.authorization.k8s.io cannot be wrapped" in said


def test_a_listing_that_names_no_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'widgets' is not PLURAL"):
        ClusterSettings(unserved_kinds=("widgets",))
