"""The desk where questions are answered: read, look, answer once, remove after a minute.

Runs inside the loop that owns the engine, so only in the leader. A fresh answer is made after every cache holds what
was stored before the question came. Finding out what would help may take long in a large cluster, so explanations get a
share of the controller's time and are kept until something changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from shoal.api import kinds
from shoal.api.codec import typed
from shoal.api.kind import Key
from shoal.api.meta import Json
from shoal.api.questions import (
    CONSUMERS,
    HISTORY,
    LOGS,
    QUESTIONS,
    WOULD_START,
    HistoryWindow,
    LogChoice,
    MadeFrom,
    QuestionSpec,
    QuestionStatus,
    QuotaConsumers,
    StartEstimate,
    Target,
)
from shoal.api.times import micro_text, parse_time
from shoal.controllers.planning.creators import Creator
from shoal.controllers.planning.decision_log import DecisionLog
from shoal.controllers.planning.history.asked import past
from shoal.controllers.planning.history.kept_logs import NoLogs, kept_logs
from shoal.controllers.planning.history.lengths import estimate
from shoal.controllers.planning.history.log_keeper import LogKeeper
from shoal.controllers.planning.history.recorder import GangHistory
from shoal.controllers.planning.history.store import HistoryTrouble
from shoal.controllers.planning.naming import plain_key
from shoal.controllers.planning.questions import answers, drafts
from shoal.controllers.planning.questions.readers import Readers, asker_of
from shoal.controllers.planning.questions.subject import QuestionSubject
from shoal.controllers.planning.stamps import Stamps
from shoal.controllers.planning.words import holder, printable
from shoal.engine import Engine
from shoal.engine.explain import DraftTrial
from shoal.engine.kueue import Places
from shoal.engine.model import Explanation, Gang
from shoal.errors import BadInput
from shoal.kube.cache import Cache, Change
from shoal.kube.clock import Clock
from shoal.kube.errors import Conflict, KubeError, NotFound
from shoal.kube.runtime import Controller
from shoal.kube.writes import Writes
from shoal.remembered import Remembered

log = logging.getLogger(__name__)

KEPT = 60.0
"""Seconds for which a question stays: after its answer, or unanswered after it was first seen."""
LOG_KEPT = 5.0
"""A log is for the asker, and others may read questions: its answer goes soon."""
SHARE_OF_TIME = 0.1
"""How much of the controller's time may go into explanations that were asked for."""
LONGEST_REST = 2.0
MOST_TOLD = 1_000
"""Gangs whose explanation is kept for as long as nothing changes."""
PATIENCE = 10.0
"""Seconds for which a fresh answer waits for the caches; after that it is given, and does not call itself fresh."""
FIRST_LOOK = 3.0
"""Seconds for which a gang that was just created may stay unseen before that is the answer."""
LOOK_AGAIN = 0.2
SECOND = 1_000_000
NO_ESTIMATE = ("bad-fact", "held", "backing-off", "obtaining", "starting")
"""Gangs that wait for something else than the end of others."""
QUOTAS = (kinds.QUOTA_SUBTREE, kinds.QUOTA_SUBTREE_LEGACY)


class PlanningView(Protocol):
    """What the loop that owns the engine gives the desk."""

    @property
    def engine(self) -> Engine: ...

    @property
    def decision_log(self) -> DecisionLog: ...

    @property
    def stamps(self) -> Stamps: ...

    @property
    def history(self) -> GangHistory | None:
        """What gangs did; None where that is not kept."""

    @property
    def logs(self) -> LogKeeper | None:
        """Logs of gangs whose pods are gone; None where they are not kept."""

    @property
    def turn(self) -> int:
        """Counts what the engine was told."""

    def replan_now(self) -> int:
        """Plan if anything changed since the last plan; returns the number of the plan."""

    def watched(self) -> list[Cache[Any]]:
        """Everything that a decision depends on."""

    def known_as(self, key: str) -> str: ...

    def consumers(self, group: str, kind: str, key: Key) -> Mapping[str, Sequence[str]] | None: ...

    async def subject(self, group: str, kind: str, key: Key) -> QuestionSubject | None: ...

    def draft(self, manifest: Json) -> Gang | None:
        """The gang that an object would be that is not stored."""


class CachedAnswer(msgspec.Struct, frozen=True):
    at: tuple[int, int]
    explanation: Explanation | None
    places: Places | None
    others: tuple[str, ...]


class Desk:
    def __init__(self, writes: Writes, clock: Clock, planning: PlanningView) -> None:
        client = writes.client
        self._planning = planning
        self._clock = clock
        self._readers = Readers(client, lambda: [cache.kind for cache in planning.watched()])
        self._writer = writes.writer("questions")
        self.cache: Cache[Json] = Cache(client, kinds.QUESTION, clock=clock, report=lambda trouble: None)
        self._queue: Controller[Key] = Controller("questions", self.reconcile, workers=4, clock=clock)
        self._first_seen: dict[str, float] = {}
        self._told: Remembered[str, CachedAnswer] = Remembered(MOST_TOLD)
        self._rest_until = 0.0
        self._looking = asyncio.Lock()
        self._looked = (float("-inf"), 0)
        """When the last complete look at the server began: by the monotonic clock, and as a moment."""

    async def run(self) -> None:
        """Answer until cancelled. Where the kind is not installed, or may not be read, nothing comes."""
        self.cache.subscribe(self._changed)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.cache.run())
            tasks.create_task(self._queue.run())

    def _changed(self, change: Change) -> None:
        if change.new is None:
            self._first_seen.pop(change.old["metadata"]["uid"], None)
        else:
            self._first_seen.setdefault(change.new["metadata"]["uid"], self._clock.monotonic())
            self._queue.enqueue(change.key)

    async def reconcile(self, key: Key) -> float | None:
        """Answer, and later remove, one question. Returns seconds until the next look."""
        question = self.cache.get(key)
        if question is None:
            return None
        left = self._left(question)
        if left <= 0:
            await self._writer.delete(kinds.QUESTION, question)
            return None
        if _answered_at(question):
            return left
        wait = self._rest_until - self._clock.monotonic()
        if wait > 0:
            return wait
        try:
            status = await self._answer(question)
            if status is None:
                return LOOK_AGAIN
            change = {"status": msgspec.to_builtins(status)}
            stored = await self._writer.patch(kinds.QUESTION, question, change, subresource="status")
        except (NotFound, Conflict):
            return LOOK_AGAIN  # removed or changed meanwhile: the watch tells
        self.cache.note_write(stored)
        return self._left(stored)

    def _left(self, question: Json) -> float:
        answered = _answered_at(question)
        if answered:
            kept = LOG_KEPT if (question.get("spec") or {}).get("question") == LOGS else KEPT
            return kept - (self._clock.now() - parse_time(answered)) / SECOND
        since = self._first_seen.get(question["metadata"]["uid"], self._clock.monotonic())
        return KEPT - (self._clock.monotonic() - since)

    # --- one answer

    async def _answer(self, question: Json) -> QuestionStatus | None:
        """None: it is too early to answer."""
        metadata, asker = question["metadata"], asker_of(question, self._planning.stamps)
        try:
            spec = typed(question.get("spec") or {}, QuestionSpec)
        except msgspec.ValidationError as error:
            return self._refusal("UnknownQuestion", str(error))
        if spec.question not in QUESTIONS:
            return self._refusal("UnknownQuestion", f"this controller does not answer {spec.question!r}")
        if spec.question == WOULD_START:
            return await self._would_start(question, spec, asker)
        if spec.question == HISTORY:
            return await self._past(metadata["namespace"], spec.history or HistoryWindow(), asker)
        if spec.question == LOGS:
            return await self._kept_logs(metadata["namespace"], spec.logs or LogChoice(), asker)
        if spec.target is None:
            return self._refusal("UnknownQuestion", "spec.target is missing: it names the gang that is asked about")
        made_at = await self._caught_up() if spec.fresh else 0
        plan = self._planning.replan_now()
        target, namespace = spec.target, metadata["namespace"]
        if spec.question == CONSUMERS:
            return await self._consumers(asker, target, namespace, MadeFrom(plan=plan, at=_moment(made_at)))
        subject = await self._planning.subject(target.group, target.kind, Key(namespace, target.name))
        young = self._clock.monotonic() - self._first_seen.get(metadata["uid"], 0.0) < FIRST_LOOK
        if young and (subject is None or subject.reason == "NotSeen"):
            return None
        if subject is None or not await self._may_know(asker, target.kind, namespace, subject):
            return self._refusal("NotFound", f"there is no {target.kind} {target.name} in namespace {namespace}")
        told = self._explained(subject, plan)
        made_from = MadeFrom(plan=plan, at=_moment(made_at))
        naming = await self._naming(asker, namespace, subject, told)
        found = answers.answer(subject, told.explanation, told.places, told.others, naming, made_from)
        soon = await self._estimate(subject.gang, subject, told, asker, namespace) if subject.gang else None
        known = self._planning.engine.gang(subject.gang) if soon is not None and soon.at else None
        if soon is not None and soon.at and known is not None:
            self._planning.decision_log.promised(known.uid, parse_time(soon.at))
        return msgspec.structs.replace(found, answered_at=micro_text(self._clock.now()), estimate=soon)

    async def _consumers(
        self, asker: Creator | None, target: Target, namespace: str, made_from: MadeFrom
    ) -> QuestionStatus:
        """Gangs at the nodes of a quota, by name as far as the asker may read them."""
        found = self._planning.consumers(target.group, target.kind, Key(namespace, target.name))
        kind = next((one for one in QUOTAS if one.kind == target.kind and target.group in ("", one.group)), None)
        if kind is None or found is None or not (asker is None or await self._readers.may_read(asker, kind, namespace)):
            return self._refusal("NotFound", f"there is no quota {target.kind} {target.name} in namespace {namespace}")
        keys = {plain_key(self._planning.known_as(key)) for gangs in found.values() for key in gangs}
        readable = await self._readers.readable(asker, namespace, keys)
        nodes = []
        for node, gangs in found.items():
            named = [name for key in gangs if (name := plain_key(self._planning.known_as(key))) in readable]
            shown = named[: answers.MOST_NAMED]
            hidden, more = len(gangs) - len(named), len(named) - len(shown)
            nodes.append(QuotaConsumers(node=node, gangs=tuple(map(printable, shown)), hidden=hidden, more=more))
        return QuestionStatus(
            answered_at=micro_text(self._clock.now()),
            made_from=made_from,
            reason="Quota",
            message=f"{len(keys)} gangs are charged here",
            consumers=tuple(nodes),
            named_by="Namespace" if asker is None else "Rights",
        )

    async def _past(self, namespace: str, window: HistoryWindow, asker: Creator | None) -> QuestionStatus:
        if self._planning.history is None:
            return self._refusal("UnknownQuestion", "this controller keeps no history; start it with --history")
        try:
            found = await past(self._planning.history, self._readers, window, asker, namespace)
        except (HistoryTrouble, BadInput) as error:
            return self._refusal("UnknownQuestion", str(error))
        by = "Namespace" if asker is None else "Rights"
        return QuestionStatus(answered_at=micro_text(self._clock.now()), reason="Finished", history=found, named_by=by)

    async def _kept_logs(self, namespace: str, choice: LogChoice, asker: Creator | None) -> QuestionStatus:
        if self._planning.logs is None:
            return self._refusal("UnknownQuestion", "this controller keeps no logs")
        try:
            found = await kept_logs(self._planning.logs, self._readers, choice, asker, namespace)
        except (NoLogs, HistoryTrouble) as error:
            return self._refusal("UnknownQuestion", str(error))
        at = micro_text(self._clock.now())
        return QuestionStatus(answered_at=at, reason="Finished", logs=found or None, named_by="Rights")

    async def _would_start(self, question: Json, spec: QuestionSpec, asker: Creator | None) -> QuestionStatus:
        """A manifest is tried out in a copy of the engine; nothing is stored or decided."""
        namespace = question["metadata"]["namespace"]
        try:
            manifest = drafts.manifest_of(question, spec, micro_text(self._clock.now()))
            made_at = await self._caught_up() if spec.fresh else 0
            plan = self._planning.replan_now()
            gang = self._planning.draft(manifest)
        except (BadInput, msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError) as error:
            return self._refusal("Misconfigured", f"the manifest cannot be read: {error}", "Never")
        if gang is None:
            kind = str(manifest.get("kind"))[:80]
            return self._refusal("UnknownQuestion", f"no queue and no plan of this controller would hold this {kind}")
        if gang.problem:
            return self._refusal("Misconfigured", gang.problem, "Never")
        names = [one.name for one in gang.pod_sets]
        if spec.largest and spec.largest not in names:
            return self._refusal("UnknownQuestion", f"spec.largest is none of the pod sets {', '.join(names)}")
        engine, now, began = self._planning.engine, self._clock.now(), self._clock.monotonic()
        trial = engine.trial(gang, now)
        largest = engine.largest(gang, spec.largest, drafts.MOST_PODS, now) if spec.largest else None
        self._rest_after(began)
        return await self._tried(gang, trial, largest, asker, namespace, MadeFrom(plan=plan, at=_moment(made_at)))

    async def _tried(
        self,
        gang: Gang,
        trial: DraftTrial,
        largest: int | None,
        asker: Creator | None,
        namespace: str,
        made_from: MadeFrom,
    ) -> QuestionStatus:
        subject = drafts.subject_of(gang, trial)
        told = CachedAnswer((0, 0), trial.explanation, trial.places, ())
        naming = await self._naming(asker, namespace, subject, told)
        found = answers.answer(subject, trial.explanation, trial.places, (), naming, made_from)
        waits = trial.verdict == "waits"
        soon = await self._estimate(gang, subject, told, asker, namespace) if waits else None
        at, verdict = micro_text(self._clock.now()), trial.verdict.capitalize()
        return msgspec.structs.replace(found, answered_at=at, verdict=verdict, largest=largest, uid="", estimate=soon)

    async def _estimate(
        self,
        gang: Gang | str,
        subject: QuestionSubject,
        told: CachedAnswer,
        asker: Creator | None,
        namespace: str,
    ) -> StartEstimate | None:
        """When it would start; None for a gang that waits for something else than others' ends."""
        if subject.settled or told.explanation is None or told.explanation.reason in NO_ESTIMATE:
            return None
        if any(one.kind == "clusters" for one in told.explanation.shortfalls):
            return StartEstimate(basis="Unknown", message="unknown because only other clusters may run it")
        history, engine = self._planning.history, self._planning.engine
        if history is None:
            return StartEstimate(basis="Unknown", message="unknown because this controller keeps no history")
        try:
            lengths = await history.lengths()
        except HistoryTrouble as error:
            return StartEstimate(basis="Unknown", message=f"unknown because {error}")
        began = self._clock.monotonic()
        found = engine.forecast(gang, self._clock.now(), lengths)
        self._rest_after(began)
        naming = await self._naming(asker, namespace, subject, told, found.endless if found is not None else ())
        return estimate(found, naming.words)

    def _rest_after(self, began: float) -> None:
        """What an answer cost is rested for, so that questions get their share of the controller's time and no more."""
        ended = self._clock.monotonic()
        self._rest_until = ended + min(LONGEST_REST, (ended - began) * (1 / SHARE_OF_TIME - 1))

    def _refusal(self, reason: str, message: str, verdict: str = "") -> QuestionStatus:
        return QuestionStatus(
            answered_at=micro_text(self._clock.now()), reason=reason, message=printable(message, answers.LONGEST),
            verdict=verdict,
        )  # fmt: skip

    async def _may_know(self, asker: Creator | None, kind: str, namespace: str, subject: QuestionSubject) -> bool:
        if asker is None:
            return True
        return bool(await self._readers.readable(asker, "", [f"{kind}/{namespace}/{subject.uid}"]))

    def _explained(self, subject: QuestionSubject, plan: int) -> CachedAnswer:
        engine, now = self._planning.engine, (self._planning.turn, plan)
        if not subject.gang:
            return CachedAnswer(now, None, None, ())
        known = self._told.get(subject.gang)
        if known is not None and known.at == now:
            return known
        began = self._clock.monotonic()
        explanation = None if subject.settled else engine.explain(subject.gang, self._clock.now())
        others = engine.strangers(subject.gang, explanation) if explanation is not None else ()
        told = CachedAnswer(now, explanation, engine.places(subject.gang), others[: answers.MOST_LOOKED_AT])
        self._told.remember(subject.gang, told)
        self._rest_after(began)
        return told

    async def _naming(
        self,
        asker: Creator | None,
        namespace: str,
        subject: QuestionSubject,
        told: CachedAnswer,
        more: Sequence[str] = (),
    ) -> answers.Naming:
        known_as = self._planning.known_as
        named = [*answers.keys_of(subject, told.explanation, told.others), *more[: answers.MOST_LOOKED_AT]]
        keys = [plain_key(known_as(key)) for key in named]
        readable = await self._readers.readable(asker, namespace, keys)
        by = "Namespace" if asker is None else "Rights"
        return answers.Naming(known_as=known_as, names=readable.__contains__, by=by, printable=printable, called=holder)

    # --- freshness

    async def _caught_up(self) -> int:
        """Until every cache holds what was stored before this call. Returns the moment up to which all is known, or 0
        where the server did not answer in time. One look serves all questions that came before it began."""
        came = self._clock.monotonic()
        try:
            async with asyncio.timeout(PATIENCE), self._looking:
                if self._looked[0] <= came:
                    began, at = self._clock.monotonic(), self._clock.now()
                    caches = [cache for cache in self._planning.watched() if cache.synced.is_set()]
                    await asyncio.gather(*(cache.catch_up() for cache in caches))
                    self._looked = (began, at)
        except (TimeoutError, KubeError) as error:
            log.warning("a question is answered from what is known: %s", error or "the server did not answer in time")
            return 0
        return self._looked[1]


def _moment(at: int) -> str | None:
    return micro_text(at) if at else None


def _answered_at(question: Json) -> str:
    return str((question.get("status") or {}).get("answeredAt") or "")
