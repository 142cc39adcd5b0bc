"""Wait until nothing changes any more, then judge what is stored (`tests/checker/at_rest.py`).

A violation may be something on its way: it is looked at again for a while, and only what stays is one. That while is
shorter than the rounds in which controllers look at everything again, so that a lost event is not made good by then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import NotFound
from shoal.kube.kubeconfig import load
from shoal.kube.transport import Transport
from tests.checker.at_rest import TALLY, Rules, Verdict, judge_rest
from tests.checker.rest_pods import Counting
from tests.patience import PIECE

MOMENT = 0.03
AT_ONCE = 8
STAYS = 12.0
"""Seconds for which a violation must stay: reasons may be five seconds old, and a machine slow."""

T = TypeVar("T")
Objects = Mapping[str, Iterable[Json]]


def judged_or_marked(request: Any) -> Iterator[None]:
    """Around one test: where controllers that decide were at work, something was judged at rest; or the test says why
    not, with `@pytest.mark.not_at_rest("…")`."""
    from shoal.controllers.planning import PlanningLoop
    from shoal.controllers.ray import Operator

    before = TALLY.worlds
    begun: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for kind in (PlanningLoop, Operator):
            patch.setattr(kind, "__init__", _noting(kind.__init__, begun))
        yield
    mark = request.node.get_closest_marker("not_at_rest")
    if mark is None and begun and request.node.stash.get(PASSED, False):
        assert TALLY.worlds > before, "controllers were at work, and what they left was not judged at rest"


def _noting(original: Callable[..., None], begun: list[str]) -> Callable[..., None]:
    def made(self: Any, *arguments: Any, **named: Any) -> None:
        begun.append(type(self).__name__)
        original(self, *arguments, **named)

    return made


PASSED = pytest.StashKey[bool]()
"""Set on a test whose own part has passed."""


def objects_of(server: Any) -> dict[str, list[Json]]:
    """Everything that an embedded server stores, by plural."""
    found: dict[str, list[Json]] = {}
    for collection in server.storage.collections.values():
        plural = collection.name.split(".")[0].rsplit("/", 1)[-1]
        found.setdefault(plural, []).extend(msgspec.json.decode(one.raw) for one in collection.records())
    return found


LISTED: tuple[Kind, ...] = (
    kinds.POD, kinds.NODE, kinds.NAMESPACE, kinds.JOB, kinds.LIMIT_RANGE, kinds.RUNTIME_CLASS, kinds.EVENT,
    kinds.APP_WRAPPER, kinds.APP_WRAPPER_LEGACY, kinds.QUOTA_SUBTREE, kinds.QUOTA_SUBTREE_LEGACY,
    kinds.RAY_CLUSTER, kinds.RAY_JOB, kinds.PROVISIONING_REQUEST,
    kinds.WORKLOAD, kinds.CLUSTER_QUEUE, kinds.LOCAL_QUEUE, kinds.COHORT, kinds.RESOURCE_FLAVOR, kinds.ADMISSION_CHECK,
    kinds.QUESTION,
)  # fmt: skip
"""What the judge reads, of a server that is elsewhere."""


FEW = (kinds.EVENT, kinds.NODE)
"""What is not asked for until all else stands still: there may be many, and they change for ever."""


async def stored_by(client: Client, without: tuple[Kind, ...] = ()) -> dict[str, list[Json]]:
    """The same from any server; kinds that it does not serve have no objects."""
    wanted = [kind for kind in LISTED if kind not in without]

    door = asyncio.Semaphore(AT_ONCE)

    async def listed(kind: Kind) -> list[Json]:
        async with door:
            with suppress(NotFound):
                return [{**one, "kind": kind.kind} for one in await client.list(kind)]
        return []

    found: dict[str, list[Json]] = {}
    for kind, objects in zip(wanted, await asyncio.gather(*map(listed, wanted)), strict=True):
        found.setdefault(kind.plural, []).extend(objects)
    return found


def rules_of(wrappers: Any = None, queues: Any = None, *, ray: bool = False, jobs: bool = True) -> Rules:
    """What the settings of the controllers at work mean for the judge; None: that one does not run."""
    rules = Rules(queues=queues is not None, wrappers=wrappers is not None, ray=ray, jobs=jobs)
    if wrappers is not None:
        sidecars = wrappers.ray_sidecars
        rules = replace(
            rules,
            wrapper_supply=wrappers.supply,
            policy="priority-slope" if wrappers.dynamic_priority and wrappers.policy == "priority" else wrappers.policy,
            wrapper_quota=wrappers.quota != "never",
            preemption=wrappers.preemption,
            head_hold=bool(wrappers.head_of_line_seconds),
            counting=Counting(wrappers.count_autoscaled_workers, sidecars.head, sidecars.worker),
        )
    if queues is not None:
        rules = replace(
            rules,
            supply=queues.supply,
            fair_sharing=queues.fair_sharing,
            partial_admission=queues.partial_admission,
            blocks_until_ready=queues.pods_ready is not None and queues.pods_ready.block_admission,
        )
    return replace(rules, recovery_seconds=getattr(queues, "recovery_seconds", rules.recovery_seconds))


def look(objects: Objects, rules: Rules) -> Verdict:
    """One look, without counting it."""
    return judge_rest(objects, replace(rules, now=rules.now or time.time_ns() // 1000))


def count(verdict: Verdict) -> None:
    TALLY.worlds += 1
    TALLY.judged += verdict.judged
    TALLY.undecided += verdict.undecided


def looked_at(server: Any, rules: Rules, now: int) -> list[str]:
    """One look at an embedded server that is at rest by a clock of the test's own."""
    verdict = look(objects_of(server), replace(rules, now=now))
    count(verdict)
    return verdict.found


async def hold_remote(client: Client, rules: Rules) -> None:
    """The same for a server that is elsewhere. Rest is what two looks agree on, a moment apart."""
    seen: list[dict[str, list[Json]]] = []

    async def settled() -> None:
        before: dict[str, list[Json]] = {}
        now, left = await stored_by(client, FEW), STAYS
        while left > 0 and _revisions(now) != _revisions(before):
            await asyncio.sleep(MOMENT)
            left -= MOMENT
            before, now = now, await stored_by(client, FEW)
        seen.append(now | await stored_by(client, tuple(kind for kind in LISTED if kind not in FEW)))

    async def stored() -> Objects:
        return seen.pop() if seen else await stored_by(client)

    await hold_at_rest(stored, settled, rules)


class Beside:
    """The same from where no loop runs, or one that is not to be disturbed. Its connections are kept from one look to
    the next: making them takes longer than all the rest."""

    def __init__(self, kubeconfig: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._transport = self._run(self._load(kubeconfig))

    def hold(self, rules: Rules) -> None:
        self._run(hold_remote(Client(self._transport), rules))

    def close(self) -> None:
        self._run(self._transport.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _load(self, kubeconfig: Path) -> Transport:
        return load(kubeconfig)

    def _run(self, doing: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result()


def hold_by(kubeconfig: Path, rules: Rules) -> None:
    """Once, for a cluster that is gone afterwards."""
    beside = Beside(kubeconfig)
    try:
        beside.hold(rules)
    finally:
        beside.close()


def _revisions(objects: Objects) -> frozenset[str]:
    """Without what changes for ever: nodes tell that they live, and events that something was said again."""
    kept = [found for plural, found in objects.items() if plural not in ("events", "nodes")]
    return frozenset(str(one["metadata"].get("resourceVersion")) for found in kept for one in found)


async def hold_at_rest(
    stored: Callable[[], Awaitable[Objects]], settled: Callable[[], Awaitable[None]], rules: Rules
) -> None:
    """Fail with what is not as it must be once nothing changes."""
    began = time.perf_counter()
    await settled()
    verdict = look(await stored(), rules)
    left, pause = STAYS, MOMENT
    while verdict.found and left > 0:
        await asyncio.sleep(pause)
        left -= pause
        pause = min(2 * pause, PIECE)
        verdict = look(await stored(), rules)
    TALLY.seconds += time.perf_counter() - began
    count(verdict)
    assert not verdict.found, f"{len(verdict.found)} at rest:\n" + "\n".join(verdict.found[:20])
