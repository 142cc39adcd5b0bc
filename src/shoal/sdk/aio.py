"""The Python door, asynchronous: submit a command, wait for it, read its log, ask why it waits, stop it.

`import shoal` offers the same without `await` (`blocking`). Every call opens its own connection with the user's own
rights and closes it, so that a job handle can be kept for days. Nothing here needs Ray.
"""

from __future__ import annotations

import asyncio
import html
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.errors import BadInput, ShoalError
from shoal.kube.client import Client
from shoal.kube.errors import NotFound
from shoal.sdk import acts, explaining, following, logs, packing, shapes, submitting
from shoal.sdk.connecting import ClusterChoice, connected, default_namespace
from shoal.sdk.display import table
from shoal.sdk.following import GangView
from shoal.sdk.logs import Write
from shoal.sdk.outcomes import Stage
from shoal.sdk.shapes import ClusterShape, JobShape, PodShape

MANAGER = "shoal-sdk"


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a gang fares. `stage` is for programs, `state` and `reason` are as `shoal get` shows them."""

    stage: Stage
    state: str
    reason: str = ""
    exit_code: int | None = None
    deleted: bool = False

    @property
    def succeeded(self) -> bool:
        return self.stage == "succeeded"

    @property
    def ended(self) -> bool:
        return self.deleted or self.stage in ("succeeded", "failed")

    def _repr_html_(self) -> str:
        code = "" if self.exit_code is None else str(self.exit_code)
        return table(f"{self.state}", [("stage", self.stage), ("exit code", code), ("reason", self.reason)])


class GangExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a gang runs or waits, as the controller answered or stored it. `details` has everything."""

    state: str
    message: str = ""
    reason: str = ""
    position: int = 0
    queue_length: int = 0
    details: dict[str, Any] = {}

    def __str__(self) -> str:
        place = f" (position {self.position} of {self.queue_length})" if self.position else ""
        return f"{self.state}{place}: {self.message}" if self.message else f"{self.state}{place}"

    def _repr_html_(self) -> str:
        place = f"{self.position} of {self.queue_length}" if self.position else ""
        estimate = self.details.get("estimate") or {}
        start = " ".join(filter(None, (str(estimate.get("at") or ""), str(estimate.get("message") or ""))))
        held = ", ".join(self.details.get("holders") or ())
        return table(
            self.state,
            [("why", self.message), ("position", place), ("starts from about", start), ("held by", held)],
        )


class GangHandle:
    """A gang that is there. It is followed by its UID: another of the same name is not taken for it."""

    def __init__(self, kind: Kind, obj: Json, choice: ClusterChoice) -> None:
        self._kind = kind
        self._obj = obj
        self._choice = choice

    @property
    def name(self) -> str:
        return str(self._obj["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self._obj["metadata"]["namespace"])

    def __repr__(self) -> str:
        return f"<{self._kind.kind} {self.namespace}/{self.name}>"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(self._kind.kind)} {html.escape(self.namespace)}/{html.escape(self.name)}</code>"

    async def status(self) -> JobResult:
        async with connected(self._choice, MANAGER) as client:
            try:
                found = await client.get(self._kind, self.name, self.namespace)
            except NotFound:
                found = None
            if found is None or found["metadata"]["uid"] != self._obj["metadata"]["uid"]:
                return JobResult(stage="failed", state="Deleted", deleted=True)
            return _result(await following.look(client, self._kind, found))

    async def wait(
        self, timeout: float | None = None, *, until: Literal["finished", "running"] = "finished"
    ) -> JobResult:
        """Until it has ended, or runs. Raises TimeoutError; the gang goes on."""
        async with asyncio.timeout(timeout), connected(self._choice, MANAGER) as client:
            async for view in following.follow(client, self._kind, self._obj):
                last = _result(view)
                if until == "running" and view.outcome.stage == "running":
                    break
        return last

    async def _read(self, client: Client, write: Write, role: str) -> None:
        """Of a gang that is gone, what was kept."""
        try:
            found = await client.get(self._kind, self.name, self.namespace)
        except NotFound:
            found = None
        if found is None or found["metadata"]["uid"] != self._obj["metadata"]["uid"]:
            await logs.read_kept(client, self._kind, self._obj, write, role=role)
        else:
            await logs.read(client, self._kind, found, write, role=role)

    async def logs(self, *, follow: bool = False, role: str = "") -> AsyncIterator[str]:
        """Lines of the driver's log, or that of a role; with `follow` from before its start until its end."""
        lines: asyncio.Queue[str | None] = asyncio.Queue()
        rest: dict[str, bytes] = {}

        def write(source: logs.LogSource, chunk: bytes) -> None:
            *whole, rest[source.uid] = (rest.get(source.uid, b"") + chunk).split(b"\n")
            for line in whole:
                lines.put_nowait(line.decode(errors="replace"))

        async def read() -> None:
            try:
                async with connected(self._choice, MANAGER) as client:
                    if follow:
                        await logs.follow(client, self._kind, self._obj, lambda view: None, write, role=role)
                    else:
                        await self._read(client, write, role)
            finally:
                for left in filter(None, rest.values()):
                    lines.put_nowait(left.decode(errors="replace"))
                lines.put_nowait(None)

        reading = asyncio.ensure_future(read())
        try:
            while (line := await lines.get()) is not None:
                yield line
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def why(self, *, fresh: bool = False) -> GangExplanation:
        async with connected(self._choice, MANAGER) as client:
            told = await explaining.explain_to(client, (self._kind,), self.name, self.namespace, fresh=fresh)
        return GangExplanation(
            state=str(told.get("state", "")), message=str(told.get("message") or ""),
            reason=str(told.get("reason") or ""), position=int(told.get("position") or 0),
            queue_length=int(told.get("queueLength") or 0), details=told,
        )  # fmt: skip

    async def stop(self) -> None:
        """End it for good. One that is gone already is no error."""
        async with connected(self._choice, MANAGER) as client:
            try:
                await acts.stop(client, self._kind, self._obj)
            except NotFound:
                pass


def _result(view: GangView) -> JobResult:
    return JobResult(
        stage=view.outcome.stage, state="Deleted" if view.gone else view.state, reason=view.reason,
        exit_code=view.outcome.exit_code, deleted=view.gone,
    )  # fmt: skip


async def submit(
    command: str | Sequence[str],
    *,
    queue: str = "",
    workers: int = 1,
    cpus: str | int | float = 1,
    memory: str = "2Gi",
    gpus: int = 0,
    head_cpus: str | int | float = 1,
    head_memory: str = "2Gi",
    working_dir: str | Path | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    image: str = "",
    ray_version: str = "",
    priority: str = "",
    name: str = "",
    namespace: str = "",
    labels: Mapping[str, str] | None = None,
    time_limit: int = 0,
    notify: str = "",
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    cluster_name: str | None = None,
) -> GangHandle:
    """Submit a command as a Ray job with a Ray cluster of its own, as `shoal submit -- COMMAND` does.

    `cpus`, `memory` and `gpus` are of each worker. A folder given as `working_dir` is packed and travels with the job.
    `cluster_name` means a cluster of this machine (`shoal up --name`), else the kubeconfig decides, also on the
    namespace where none is given. Raises BadInput for what cannot work as written, such as a queue that does not exist,
    before anything is created.
    """
    environment = dict(runtime_env or {})
    directory: Path | None = None
    if working_dir is not None and "://" in str(working_dir):
        environment["working_dir"] = str(working_dir)
    elif working_dir is not None:
        directory = Path(working_dir)
    shape = JobShape(
        entrypoint=command if isinstance(command, str) else shapes.entrypoint_of(command),
        cluster=_shape(workers, cpus, memory, gpus, head_cpus, head_memory, image, ray_version, env),
        name=name, queue=queue, priority=priority, labels=dict(labels or {}), runtime_env=environment,
        deadline_seconds=time_limit, notify=notify,
    )  # fmt: skip
    choice = _choice(kubeconfig, context, cluster_name)
    namespace = namespace or default_namespace(choice)
    job = shapes.ray_job(shape, namespace)
    archive = packing.pack(directory) if directory is not None else b""
    async with connected(choice, MANAGER) as client:
        if archive:
            made = await submitting.create_with_code(client, job, archive)
        else:
            made = await submitting.create(client, kinds.RAY_JOB, job, namespace)
    return GangHandle(kinds.RAY_JOB, made, choice)


async def attach(
    name: str,
    *,
    namespace: str = "",
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    cluster_name: str | None = None,
) -> GangHandle:
    """A gang that is there already, as `NAME` or `KIND/NAME`."""
    choice = _choice(kubeconfig, context, cluster_name)
    namespace = namespace or default_namespace(choice)
    word, _, wanted = name.rpartition("/")
    async with connected(choice, MANAGER) as client:
        searched = await explaining.searched_kinds(client, word, namespace, all_kinds=True)
        kind, obj = await explaining.find(client, searched, wanted, namespace)
    return GangHandle(kind, obj, choice)


@asynccontextmanager
async def cluster(
    workers: int = 1,
    *,
    cpus: str | int | float = 1,
    memory: str = "2Gi",
    gpus: int = 0,
    head_cpus: str | int | float = 1,
    head_memory: str = "2Gi",
    env: Mapping[str, str] | None = None,
    image: str = "",
    ray_version: str = "",
    queue: str = "",
    priority: str = "",
    name: str = "",
    namespace: str = "",
    timeout: float | None = None,
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    cluster_name: str | None = None,
) -> AsyncIterator[GangHandle]:
    """A Ray cluster for as long as the block lasts; inside, it runs. It is deleted at the end, whatever happened."""
    shape = _shape(workers, cpus, memory, gpus, head_cpus, head_memory, image, ray_version, env)
    choice = _choice(kubeconfig, context, cluster_name)
    namespace = namespace or default_namespace(choice)
    body = shapes.ray_cluster(shape, name or shapes.renamed("cluster"), namespace, queue=queue, priority=priority)
    async with connected(choice, MANAGER) as client:
        made = await submitting.create(client, kinds.RAY_CLUSTER, body, namespace)
    handle = GangHandle(kinds.RAY_CLUSTER, made, choice)
    try:
        result = await handle.wait(timeout, until="running")
        if result.stage != "running":
            raise ShoalError(f"the Ray cluster {handle.name} did not start: {result.state} {result.reason}")
        yield handle
    finally:
        await handle.stop()


def _shape(
    workers: int, cpus: str | int | float, memory: str, gpus: int, head_cpus: str | int | float, head_memory: str,
    image: str, ray_version: str, env: Mapping[str, str] | None,
) -> ClusterShape:  # fmt: skip
    if gpus < 0:
        raise BadInput(f"gpus={gpus} must be 0 or more")
    return ClusterShape(
        workers=workers, worker=PodShape(cpu=str(cpus), memory=memory, gpu=str(gpus)),
        head=PodShape(cpu=str(head_cpus), memory=head_memory), image=image, ray_version=ray_version,
        environment=dict(env or {}),
    )  # fmt: skip


def _choice(kubeconfig: str | Path | None, context: str | None, name: str | None) -> ClusterChoice:
    path = Path(kubeconfig) if kubeconfig is not None else None
    return ClusterChoice(kubeconfig=path, context=context, name=name)
