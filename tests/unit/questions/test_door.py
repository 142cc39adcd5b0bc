"""The door: who asks, what they may know, how fresh an answer is, and that a question does not stay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shoal.api import kinds
from shoal.api.gang import CREATED_BY
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.cli import why
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.planning.questions import desk, readers
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, Invalid
from shoal.kube.transport import Request, Response, Stream, Transport
from shoal.sdk import asking, gangs
from tests.cluster import Cluster
from tests.faults import proven
from tests.planning import planned
from tests.unit.appwrapper.build import app_wrapper, config_map, dispatched, needs, waits
from tests.unit.appwrapper.test_rights import as_user, grant

TRUSTING = AppWrapperSettings(trust_unstamped=True)
WRAPPERS = ("workload.codeflare.dev", "appwrappers")
QUESTIONS = ("shoal.dev", "questions")


def asks(name: str, cpu: str, namespace: str = "default") -> Json:
    made = app_wrapper(name, config_map(name), needs=[needs(1, cpu=cpu)])
    made["metadata"]["namespace"] = namespace
    return made


def question(name: str, about: str, namespace: str = "default", **spec: Any) -> Json:
    return {
        "apiVersion": "shoal.dev/v1alpha1",
        "kind": "Question",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"target": {"kind": "AppWrapper", "name": about}, **spec},
    }


def answered(obj: Json) -> bool:
    return bool((obj.get("status") or {}).get("answeredAt"))


async def two_namespaces(cluster: Cluster) -> None:
    """`secret` of blue holds most of the node, `waiting` of red waits for it; ann has rights in red alone."""
    for name in ("red", "blue"):
        await cluster.create(kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    await grant(cluster, "ann", "red", WRAPPERS, QUESTIONS, ("", "configmaps"))
    await cluster.create(kinds.APP_WRAPPER, asks("secret", "15", "blue"))
    await cluster.until(kinds.APP_WRAPPER, "secret", dispatched, "blue")
    await cluster.create(kinds.APP_WRAPPER, asks("waiting", "4", "red"))
    await cluster.until(kinds.APP_WRAPPER, "waiting", waits, "red")


def believes_everyone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def all_of_them(self: Any, asker: Any, namespace: str, keys: Any) -> frozenset[str]:
        return frozenset(keys)

    monkeypatch.setattr(readers.Readers, "readable", all_of_them)


@proven(without=believes_everyone)
async def test_f167_a_question_names_only_what_its_asker_may_read(quiet: Cluster) -> None:
    """F167: a user asks about a gang that waits for one of another namespace, and claims in the question to be somebody
    else. Holds: the server records who really asks; names that this user may not read become counts, everywhere in the
    answer, and who may read them is told."""
    quiet.start(planned(quiet.client, TRUSTING).run())
    await two_namespaces(quiet)
    forged = question("forged", "waiting", "red")
    forged["metadata"]["annotations"] = {CREATED_BY: '{"user":"admin","groups":["system:masters"]}'}
    await as_user(quiet, "ann").create(kinds.QUESTION, forged, "red")
    hers = await quiet.until(kinds.QUESTION, "forged", answered, "red")
    assert "blue" not in str(hers["status"]) and "secret" not in str(hers["status"])
    assert (hers["status"]["holdersHidden"], hers["status"]["namedBy"]) == (1, "Rights")
    assert hers["status"]["releaseHidden"] == 1
    await quiet.client.create(kinds.QUESTION, question("open", "waiting", "red"), "red")
    everyones = (await quiet.until(kinds.QUESTION, "open", answered, "red"))["status"]
    assert everyones["holders"] == everyones["release"] == ["AppWrapper/blue/secret"]


async def test_where_no_admission_records_the_asker_only_its_own_namespace_is_named(quiet: Cluster) -> None:
    settings = AppWrapperSettings(trust_unstamped=True, stamps="webhook")
    quiet.start(planned(quiet.client, settings).run())
    await two_namespaces(quiet)
    told = await why.explain_to(quiet.client, gangs.KINDS, "waiting", "red")
    assert (told["holders"], told["holdersNotShown"], told["namedBy"]) == ([], 1, "Namespace")
    assert "secret" not in str(told)


async def test_a_record_of_the_asker_counts_only_under_a_webhook_that_is_older_and_must_answer() -> None:
    def configuration(revision: str, policy: str, name: str = readers.STAMPING) -> Json:
        return {"metadata": {"resourceVersion": revision}, "webhooks": [{"name": name, "failurePolicy": policy}]}

    class Stamps:
        cache: Any = None

    asked = question("one", "gang")
    asked["metadata"] |= {"resourceVersion": "20", "annotations": {CREATED_BY: '{"user":"ann"}'}}
    found = []
    for stored in (None, [], [configuration("10", "Fail")], [configuration("30", "Fail")],
                   [configuration("10", "Ignore")], [configuration("10", "Fail", "stamp.shoal.dev")]):  # fmt: skip
        Stamps.cache = None if stored is None else type("Held", (), {"list": lambda self, stored=stored: stored})()
        found.append(readers.asker_of(asked, Stamps()) is not None)  # type: ignore[arg-type]
    assert found == [True, False, True, False, False, False]


async def test_who_may_not_read_the_gang_learns_nothing_of_it(quiet: Cluster) -> None:
    quiet.start(planned(quiet.client, TRUSTING).run())
    await two_namespaces(quiet)
    await grant(quiet, "bob", "blue", QUESTIONS)
    await as_user(quiet, "bob").create(kinds.QUESTION, question("nosy", "secret", "blue"), "blue")
    told = (await quiet.until(kinds.QUESTION, "nosy", answered, "blue"))["status"]
    assert (told["reason"], told.get("state")) == ("NotFound", None)
    with pytest.raises(Forbidden):
        await as_user(quiet, "bob").create(kinds.QUESTION, question("nosier", "waiting", "red"), "red")


class Late:
    """A transport whose watches of one kind say nothing until `gate` is set."""

    def __init__(self, inner: Transport, plural: str) -> None:
        self._inner = inner
        self._plural = plural
        self.gate = asyncio.Event()
        self.gate.set()

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        return await self._inner.send(request, timeout=timeout)

    @asynccontextmanager
    async def stream(self, request: Request, *, idle_timeout: float | None = None) -> AsyncIterator[Stream]:
        async with self._inner.stream(request, idle_timeout=idle_timeout) as stream:
            yield _LateStream(stream, self.gate) if request.path.endswith(f"/{self._plural}") else stream  # type: ignore[misc]

    async def close(self) -> None:
        await self._inner.close()


class _LateStream:
    def __init__(self, inner: Stream, gate: asyncio.Event) -> None:
        self._inner, self._gate = inner, gate
        self.status, self.headers = inner.status, inner.headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            await self._gate.wait()
            yield chunk

    async def read(self) -> bytes:
        return await self._inner.read()


def compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Cache[Any]) -> None:
        return None

    monkeypatch.setattr(Cache, "catch_up", nothing)


@proven(without=compares_nothing)
async def test_f168_a_fresh_answer_knows_all_that_was_stored_before_the_question(quiet: Cluster) -> None:
    """F168: a node comes, its event is late, and somebody asks for a fresh answer. Holds: the answer counts the node,
    and names the moment up to which it knows everything; one that is not fresh names none."""
    late = Late(quiet.server.transport(), "nodes")
    quiet.start(planned(Client(late), TRUSTING).run())
    await quiet.create(kinds.APP_WRAPPER, asks("giant", "40"))
    await quiet.until(kinds.APP_WRAPPER, "giant", waits)
    late.gate.clear()
    await quiet.add_node("node-2", cpu="8", memory="8Gi")
    old = await why.explain_to(quiet.client, gangs.KINDS, "giant", "default")
    assert old["shortfalls"][0]["available"] == "16" and "at" not in old["madeFrom"]
    fresh = await why.explain_to(quiet.client, gangs.KINDS, "giant", "default", fresh=True)
    assert fresh["shortfalls"][0]["available"] == "24" and fresh["madeFrom"]["at"] <= fresh["explainedAt"]
    late.gate.set()


def answers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "_answered_at", lambda question: "")
    monkeypatch.setattr("tests.cluster.PATIENCE", 3.0)


@proven(without=answers_again)
async def test_f170_a_question_outlives_its_controller_is_answered_once_and_removed(
    quiet: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F170: the controller ends before it answers, another ends after it answered. Holds: the next one answers what is
    open, leaves what is answered as it is, and removes both when their time is over."""
    await quiet.create(kinds.APP_WRAPPER, asks("giant", "40"))
    await quiet.create(kinds.QUESTION, question("early", "giant"))
    first = quiet.start(planned(quiet.client, TRUSTING).run())
    before = await quiet.until(kinds.QUESTION, "early", answered)
    first.cancel()
    await asyncio.wait({first})
    await quiet.create(kinds.QUESTION, question("late", "giant"))
    quiet.start(planned(quiet.client, TRUSTING).run())
    late = await quiet.until(kinds.QUESTION, "late", answered)
    assert late["status"]["reason"] == "Room" and late["status"]["clusterTooSmall"]
    assert (await quiet.get(kinds.QUESTION, "early"))["status"] == before["status"]
    monkeypatch.setattr(desk, "KEPT", 0.2)
    quiet.start(planned(quiet.client, TRUSTING).run())
    for name in ("early", "late"):
        await quiet.until_gone(kinds.QUESTION, name)


async def test_without_an_answer_the_stored_reason_is_told_with_its_age(
    quiet: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No right to ask, an older controller that does not answer, a cluster without the kind: none of them is fatal."""
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 0.1)
    running = quiet.start(planned(quiet.client, TRUSTING).run())
    await quiet.create(kinds.APP_WRAPPER, asks("giant", "40"))
    await quiet.until(kinds.APP_WRAPPER, "giant", waits)
    running.cancel()
    await asyncio.wait({running})
    silent = await why.explain_to(quiet.client, gangs.KINDS, "giant", "default")
    assert silent["notAnswered"] == "no controller answered in time" and "40 cpu needed, 16 free" in silent["message"]
    why._print(silent)
    said = capsys.readouterr()
    assert "this is what is stored, written" in said.err and "ago: no controller answered" in said.err
    await grant(quiet, "ann", "default", WRAPPERS)
    refused = await why.explain_to(as_user(quiet, "ann"), gangs.KINDS, "giant", "default")
    assert "you may not create questions.shoal.dev" in refused["notAnswered"]
    await quiet.client.delete(kinds.CRD, "questions.shoal.dev")
    await quiet.until_gone(kinds.CRD, "questions.shoal.dev")
    missing = await why.explain_to(quiet.client, gangs.KINDS, "giant", "default")
    assert "does not have the kind Question" in missing["notAnswered"] and missing["shortfalls"]


async def test_with_create_and_get_alone_the_answer_is_read(quiet: Cluster) -> None:
    quiet.start(planned(quiet.client, TRUSTING).run())
    await quiet.create(kinds.APP_WRAPPER, asks("giant", "40"))
    await quiet.until(kinds.APP_WRAPPER, "giant", waits)
    await grant(quiet, "ann", "default", WRAPPERS, QUESTIONS)
    role = await quiet.get(kinds.ROLE, "ann")
    role["rules"][1]["verbs"] = ["create", "get"]
    await quiet.client.patch(kinds.ROLE, "ann", "default", {"rules": role["rules"]})
    told = await why.explain_to(as_user(quiet, "ann"), gangs.KINDS, "giant", "default")
    assert told["reason"] == "Room" and "notAnswered" not in told


async def test_what_cannot_be_asked_is_refused_or_answered_so(quiet: Cluster) -> None:
    quiet.start(planned(quiet.client, TRUSTING).run())
    with pytest.raises(Invalid):
        await quiet.create(kinds.QUESTION, question("odd", "giant", question="Whither"))
    await quiet.create(kinds.QUESTION, question("fixed", "nobody"))
    with pytest.raises(Invalid, match="immutable"):
        change = {"spec": {"target": {"kind": "AppWrapper", "name": "other"}}}
        await quiet.client.patch(kinds.QUESTION, "fixed", "default", change)
    told = (await quiet.until(kinds.QUESTION, "fixed", answered))["status"]
    assert (told["reason"], told["message"]) == ("NotFound", "there is no AppWrapper nobody in namespace default")


async def test_one_look_at_the_server_serves_all_who_asked_before_it(quiet: Cluster) -> None:
    controller = planned(quiet.client, TRUSTING)
    quiet.start(controller.run())
    await quiet.create(kinds.APP_WRAPPER, asks("giant", "40"))
    await quiet.until(kinds.APP_WRAPPER, "giant", waits)
    looks = 0
    original = controller.loop.caches.nodes.catch_up

    async def counted() -> None:
        nonlocal looks
        looks += 1
        await original()

    controller.loop.caches.nodes.catch_up = counted  # type: ignore[method-assign]
    made = [question(f"asked-{number}", "giant", fresh=True) for number in range(12)]
    await asyncio.gather(*(quiet.create(kinds.QUESTION, one) for one in made))
    for one in made:
        await quiet.until(kinds.QUESTION, one["metadata"]["name"], answered)
    assert 0 < looks < 12
    assert controller.loop.desk.cache.get(Key("default", "asked-0")) is not None
