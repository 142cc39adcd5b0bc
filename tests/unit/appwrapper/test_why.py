"""`shoal why`: what the controller says of a gang, as far as the asker may know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli import why
from shoal.controllers.appwrapper.settings import AppWrapperSettings
from shoal.controllers.appwrapper.status import explain
from shoal.controllers.planning import words
from shoal.controllers.planning.questions import answers
from shoal.engine.model import Explanation, QuotaIncrease, Shortfall
from shoal.errors import ShoalError
from shoal.sdk import gangs
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import (
    app_wrapper,
    config_map,
    dispatched,
    needs,
    pod,
    quota,
    ray_cluster,
    set_pod,
    waits,
)
from tests.unit.appwrapper.test_rights import as_user, grant


def asks(name: str, cpu: str, namespace: str = "default", **spec: Any) -> Json:
    made = app_wrapper(name, config_map(name), needs=[needs(1, cpu=cpu)], **spec)
    made["metadata"]["namespace"] = namespace
    return made


async def ask(cluster: Cluster, name: str, namespace: str = "default", user: str = "") -> Json:
    client = as_user(cluster, user) if user else cluster.client
    return await why.explain_to(client, gangs.KINDS, name, namespace)


async def test_it_says_what_is_short_who_holds_it_and_what_would_help(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.create(kinds.APP_WRAPPER, asks("holder", "3"))
    await cluster.until(kinds.APP_WRAPPER, "holder", dispatched)
    await cluster.create(kinds.APP_WRAPPER, asks("second", "2"))
    await cluster.until(kinds.APP_WRAPPER, "second", waits)
    told = await ask(cluster, "second")
    assert (told["state"], told["position"], told["queueLength"]) == ("waiting", 1, 1)
    assert told["holders"] == told["release"] == ["AppWrapper/default/holder"]
    short = told["shortfalls"][0]
    assert (short["resource"], short["needed"], short["available"], short["missing"]) == ("cpu", "2", "1", "1")
    why._print(told)
    said = capsys.readouterr().out
    for line in ("has been waiting since", "short: 1 cpu (2 cpu needed, 1 free)", "position 1 of 1", "would start if"):
        assert line in said
    running = await ask(cluster, "holder")
    assert running["state"] == "running" and "shortfalls" not in running
    assert (await why.explain_to(cluster.client, gangs.kinds_called("aw"), "second", "default"))["position"] == 1


async def test_it_says_when_the_cluster_itself_is_too_small(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.create(kinds.APP_WRAPPER, asks("giant", "100"))
    await cluster.until(kinds.APP_WRAPPER, "giant", waits)
    told = await ask(cluster, "giant")
    assert told["clusterTooSmall"] and not told["release"]
    why._print(told)
    assert "add larger nodes, or more" in capsys.readouterr().out


async def test_it_says_how_much_more_quota_would_do(cluster: Cluster) -> None:
    await cluster.create(kinds.QUOTA_SUBTREE, quota("team", "", ("all", {"cpu": "4"}, False)))
    await cluster.create(kinds.QUOTA_SUBTREE, quota("team", "all", ("red", {"cpu": "1"}, True)))
    made = asks("wide", "3")
    made["metadata"]["labels"] = {"team": "red"}
    await cluster.create(kinds.APP_WRAPPER, made)
    await cluster.until(kinds.APP_WRAPPER, "wide", waits)
    told = await ask(cluster, "wide")
    assert told["leastIncrease"] == {"place": "team/red", "amounts": {"cpu": "2"}, "measure": "least"}


async def test_what_is_told_follows_what_changes_though_nothing_can_start(cluster: Cluster) -> None:
    """A quota that grows so that only room is short, and room that becomes free and does not suffice: both are told."""
    await cluster.create(kinds.QUOTA_SUBTREE, quota("team", "", ("default", {"cpu": "2"}, True)))
    await cluster.create(kinds.POD, pod("stranger", cpu="1"))
    await set_pod(cluster, "stranger", "Running")
    await cluster.create(kinds.APP_WRAPPER, asks("wide", "4"))
    limit = "4 cpu needed, 2 left of the hard limit of 2 at team/default"
    assert limit in (await cluster.until(kinds.APP_WRAPPER, "wide", waits))["status"]["message"]
    larger = quota("team", "", ("default", {"cpu": "9"}, True))["spec"]
    await cluster.client.patch(kinds.QUOTA_SUBTREE, "team-top", "default", {"spec": larger})
    await cluster.until(kinds.APP_WRAPPER, "wide", says("4 cpu needed, 3 free"))
    await cluster.create(kinds.POD, pod("second", cpu="2"))
    await set_pod(cluster, "second", "Running")
    await cluster.until(kinds.APP_WRAPPER, "wide", says("4 cpu needed, 1 free"))
    await cluster.client.delete(kinds.POD, "stranger", "default", grace_seconds=0)
    await cluster.until(kinds.APP_WRAPPER, "wide", says("4 cpu needed, 2 free"))


def says(words: str) -> Callable[[Json], bool]:
    return lambda wrapper: words in wrapper["status"]["message"]


async def test_a_ray_cluster_inside_an_appwrapper_is_answered_for_by_it(cluster: Cluster) -> None:
    await cluster.create(kinds.APP_WRAPPER, app_wrapper("outer", ray_cluster("inner")))
    await cluster.until(kinds.APP_WRAPPER, "outer", dispatched)
    told = await ask(cluster, "inner")
    assert (told["kind"], told["name"], told["nodes"]) == ("AppWrapper", "outer", {"node-1": 1})
    with pytest.raises(ShoalError, match="there is no gang nobody in namespace default"):
        await ask(cluster, "nobody")
    with pytest.raises(ShoalError, match="is no kind of gang"):
        gangs.kinds_called("service")


def names_everyone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "discreet", lambda text, namespace: text)
    monkeypatch.setattr(explain, "discreet", lambda text, namespace: text)
    monkeypatch.setattr(explain, "_namespace", lambda key: "red")
    monkeypatch.setattr(answers, "without_names", lambda text, names: text)
    monkeypatch.setattr(answers.Naming, "names", property(lambda self: lambda key: True))


@proven(without=names_everyone)
async def test_f128_gangs_of_other_namespaces_are_named_to_those_who_may_read_them(cluster: Cluster) -> None:
    """F128: a gang waits for what gangs of its own and of another namespace hold. Holds: its owner, who may read only
    the own namespace, learns how many others there are and never a name; who may read both is told it."""
    for name in ("red", "blue"):
        await cluster.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    asked = ("shoal.dev", "questions")
    await grant(cluster, "ann", "red", ("workload.codeflare.dev", "appwrappers"), ("", "configmaps"), asked)
    for name, namespace in (("secretive", "blue"), ("open", "red")):
        await cluster.create(kinds.APP_WRAPPER, asks(name, "2", namespace))
        await cluster.until(kinds.APP_WRAPPER, name, dispatched, namespace)
    await as_user(cluster, "ann").create(kinds.APP_WRAPPER, asks("waiting", "4", "red"), "red")
    stored = await cluster.until(kinds.APP_WRAPPER, "waiting", waits, "red")
    assert "secretive" not in str(stored) and "blue" not in str(stored)
    hers, everyones = await ask(cluster, "waiting", "red", "ann"), await ask(cluster, "waiting", "red")
    assert (hers["holders"], hers["holdersNotShown"]) == (["AppWrapper/red/open"], 1)
    assert sorted(everyones["holders"]) == ["AppWrapper/blue/secretive", "AppWrapper/red/open"]
    assert everyones["holdersNotShown"] == 0


async def test_who_asks_is_told_what_is_so_now_and_more_than_is_stored(quiet: Cluster) -> None:
    """Positions and what would help change with every arrival: they are not stored, and answered at once."""
    quiet.start(planned(quiet.client, AppWrapperSettings(trust_unstamped=True)).run())
    await quiet.create(kinds.APP_WRAPPER, asks("holder", "3"))
    await quiet.until(kinds.APP_WRAPPER, "holder", dispatched)
    for name in ("first", "second"):
        await quiet.create(kinds.APP_WRAPPER, asks(name, "2"))
        await quiet.until(kinds.APP_WRAPPER, name, waits)
    stored = explain.read((await quiet.get(kinds.APP_WRAPPER, "second"))["status"]["explanation"])
    assert stored is not None and not (stored.position or stored.holders or stored.release) and stored.shortfalls
    await quiet.client.delete(kinds.APP_WRAPPER, "first", "default")
    fresh = await why.explain_to(quiet.client, gangs.KINDS, "second", "default", fresh=True)
    assert (fresh["position"], fresh["queueLength"]) == (1, 1) and fresh["madeFrom"]["at"]
    assert (await ask(quiet, "second"))["explainedAt"] >= fresh["explainedAt"]


def test_room_in_pieces_is_told_as_pods_that_find_no_node() -> None:
    piece = Shortfall(kind="fragmentation", resource="cpu", missing=1, needed=3, available=2, message="in pieces")
    found = Explanation(message="in pieces", shortfalls=(piece,))
    (told,) = explain.told(found, "default", str, in_full=False).shortfalls
    assert (told.resource, told.needed, told.available, told.missing) == ("pods", "3", "2", "1")


def test_what_is_stored_is_bounded_and_reads_back() -> None:
    explanation = Explanation(
        message="x" * 5000,
        holders=tuple(f"AppWrapper/there/{number}" for number in range(5000)),
        least_increase=QuotaIncrease("tree/leaf", {"cpu": 1500}),
    )
    found = explain.told(explanation, "here", lambda key: f"uid-{key}", in_full=True)
    text = explain.write(found)
    assert len(text) < 2500 and explain.read(text) == found
    assert found.more_holders == 5000 - explain.MOST_NAMED
    assert explain.read("{") is None and explain.read("") is None
