"""Asks dashboards about running jobs, beside the reconcilers: one dead dashboard delays no other job.

A reconcile says what to follow and reads the latest answer; the poller asks at most once a second per job, more rarely
when nothing changes or nothing answers, and wakes the job when it learned something new. It never writes to the API
server and decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from shoal.api.kind import Key
from shoal.controllers.ray.job.dashboard import TERMINAL, Dashboard, DashboardError, DashboardTarget, JobInfo
from shoal.kube.clock import Clock

FASTEST = 1.0
STEADY = 3.0
SLOWEST = 15.0
NEWS = 2
"""Answers that must fail in a row before a dashboard that has answered counts as one that does not."""
_AT_ONCE = 32


class JobObservation(msgspec.Struct, frozen=True):
    """One answer: a job, `missing`, or an error. `number` counts the answers about one job, from 1."""

    number: int
    info: JobInfo | None = None
    missing: bool = False
    error: str = ""


class _Followed(msgspec.Struct):
    target: DashboardTarget
    task: asyncio.Task[None] | None = None
    latest: JobObservation | None = None
    submitted: bool = False
    failures: int = 0
    polls: int = 0


class Poller:
    def __init__(self, dashboard: Dashboard, clock: Clock, wake: Callable[[Key], None]) -> None:
        self._dashboard, self._clock, self._wake = dashboard, clock, wake
        self._followed: dict[Key, _Followed] = {}
        self._stops: dict[tuple[Key, str], asyncio.Task[None]] = {}
        self._running = False
        self._slots = asyncio.Semaphore(_AT_ONCE)

    # --- for reconciles

    def follow(self, key: Key, target: DashboardTarget) -> None:
        """Ask about this job from now on. Calling it again with the same target changes nothing."""
        held = self._followed.get(key)
        if held is not None and _same_place(held.target, target):
            held.target = target
            return
        self.forget(key)
        self._followed[key] = fresh = _Followed(target)
        if self._running:
            fresh.task = asyncio.get_running_loop().create_task(self._ask_for_ever(key, fresh))

    def forget(self, key: Key) -> None:
        held = self._followed.pop(key, None)
        if held is not None and held.task is not None:
            held.task.cancel()

    def latest(self, key: Key) -> JobObservation | None:
        held = self._followed.get(key)
        return held.latest if held else None

    def stop_job(self, key: Key, target: DashboardTarget) -> bool:
        """Ask Ray to stop the job, once per submission. True when that has been answered or has failed."""
        task = self._stops.get((key, target.submission_id))
        if task is None:
            task = asyncio.get_running_loop().create_task(self._stop(key, target))
            self._stops[key, target.submission_id] = task
        return task.done()

    def forget_stops(self, key: Key) -> None:
        for held in [held for held in self._stops if held[0] == key]:
            self._stops.pop(held).cancel()

    # --- running

    async def run(self) -> None:
        """Until cancelled."""
        self._running = True
        for key, held in self._followed.items():
            held.task = asyncio.get_running_loop().create_task(self._ask_for_ever(key, held))
        try:
            await asyncio.Event().wait()
        finally:
            self._running = False
            for held in self._followed.values():
                if held.task is not None:
                    held.task.cancel()
            for task in self._stops.values():
                task.cancel()
            await self._dashboard.close()

    async def poll_once(self) -> None:
        """Ask about every followed job once; for tests that hold time still."""
        for key, held in [*self._followed.items()]:
            await self._ask(key, held)

    async def _ask_for_ever(self, key: Key, held: _Followed) -> None:
        while True:
            async with self._slots:
                await self._ask(key, held)
            if held.failures:
                pause = min(SLOWEST, FASTEST * 2.0 ** min(held.failures, 8))
            else:
                ended = held.latest is not None and held.latest.info is not None and held.latest.info.status in TERMINAL
                pause = STEADY if held.polls > 10 or ended else FASTEST
            await self._clock.sleep(pause)

    async def _ask(self, key: Key, held: _Followed) -> None:
        before = held.latest
        held.polls += 1
        try:
            info = await self._dashboard.job(held.target)
            if info is None and held.target.body and not held.submitted:
                await self._dashboard.submit(held.target)
                held.submitted = True
            now = JobObservation(held.polls, info=info, missing=info is None)
            held.failures = 0
        except DashboardError as error:
            held.failures += 1
            if held.failures < NEWS and before is not None and not before.error:
                return  # a busy head loses an answer now and then
            now = JobObservation(held.polls, error=str(error))
        held.latest = now
        if before is None or _content(before) != _content(now) or now.error:
            self._wake(key)

    async def _stop(self, key: Key, target: DashboardTarget) -> None:
        try:
            await self._dashboard.stop(target)
        except DashboardError:
            pass  # the job goes with its cluster; asking first was a courtesy
        self._wake(key)


def _same_place(one: DashboardTarget, other: DashboardTarget) -> bool:
    return (one.address, one.submission_id) == (other.address, other.submission_id)


def _content(observation: JobObservation) -> tuple[JobInfo | None, bool, bool]:
    return observation.info, observation.missing, bool(observation.error)
