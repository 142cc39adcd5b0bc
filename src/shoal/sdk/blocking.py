"""The Python door without `await`: for scripts and notebooks. Each call is one of `aio`, carried out beside.

One thread of this process runs an event loop for all of them, so that they also work where a loop already runs, as in a
notebook. It ends with the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from functools import cache
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar, Unpack

from shoal.sdk import aio
from shoal.sdk.aio import GangExplanation, GangHandle, JobResult
from shoal.sdk.options import ClusterOptions, SubmitOptions, WhereOptions

T = TypeVar("T")
P = ParamSpec("P")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="shoal", daemon=True).start()
    return loop


def carried_out(work: Coroutine[Any, Any, T]) -> T:
    """Carry it out. What interrupts the caller also ends the work."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class SubmittedJob:
    """A gang that was submitted. `aio.GangHandle` without `await`."""

    def __init__(self, handle: GangHandle) -> None:
        self._handle = handle

    @property
    def name(self) -> str:
        return self._handle.name

    @property
    def namespace(self) -> str:
        return self._handle.namespace

    def __repr__(self) -> str:
        return repr(self._handle)

    def _repr_html_(self) -> str:
        return self._handle._repr_html_()

    def status(self) -> JobResult:
        return carried_out(self._handle.status())

    def wait(self, timeout: float | None = None, *, until: Literal["finished", "running"] = "finished") -> JobResult:
        """Until it has ended, or runs. Raises TimeoutError; the job goes on."""
        return carried_out(self._handle.wait(timeout, until=until))

    def logs(self, *, follow: bool = False, role: str = "") -> Iterator[str]:
        """Lines of its log; with `follow` from before its start until its end."""
        return _iterated(self._handle.logs(follow=follow, role=role))

    def why(self, *, fresh: bool = False) -> GangExplanation:
        return carried_out(self._handle.why(fresh=fresh))

    def stop(self) -> None:
        carried_out(self._handle.stop())


def _iterated(lines: AsyncIterator[T]) -> Iterator[T]:
    async def following() -> tuple[bool, T | None]:
        try:
            return True, await anext(lines)
        except StopAsyncIteration:
            return False, None

    try:
        while True:
            more, line = carried_out(following())
            if not more:
                return
            yield line  # type: ignore[misc]  # there is one where there is more
    finally:
        carried_out(lines.aclose())  # type: ignore[attr-defined]  # it is a generator


def submit(command: str | list[str], **options: Unpack[SubmitOptions]) -> SubmittedJob:
    """Submit a command as a Ray job; `options` are those of `shoal.aio.submit`."""
    return SubmittedJob(carried_out(aio.submit(command, **options)))


def attach(name: str, **options: Unpack[WhereOptions]) -> SubmittedJob:
    """A gang that is there already, as `NAME` or `KIND/NAME`; `options` are those of `shoal.aio.attach`."""
    return SubmittedJob(carried_out(aio.attach(name, **options)))


class Cluster:
    """`with shoal.Cluster(workers=2, gpus=1, queue="team-a") as cluster:`; `options` are those of `shoal.aio.cluster`.

    Entered, it runs; left, it is deleted.
    """

    def __init__(self, workers: int = 1, **options: Unpack[ClusterOptions]) -> None:
        self._managed = aio.cluster(workers, **options)

    def __enter__(self) -> SubmittedJob:
        return SubmittedJob(carried_out(self._managed.__aenter__()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return carried_out(self._managed.__aexit__(kind, error, trace))
