"""A gang's log: which containers hold it, by role, and how it is followed from the first line to the last.

The driver's log is the submitter's: a Job of the RayJob's name, or a sidecar of the head. Pods are known by what
controls them; labels only narrow the search. A stream that breaks is taken up again at the byte where it ended. Where
the pods are gone, the leading controller is asked for what it kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.labels import BATCH_JOB_NAME, RAY_CLUSTER_NAME, RAY_NODE_TYPE, RAY_SUBMITTER
from shoal.api.meta import Json
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.errors import ApiError, KubeError, NotFound
from shoal.sdk import asking, elsewhere, following, gangs, happened
from shoal.sdk.following import GangView

ROLES = ("head", "worker", "submitter")
LOOK_AGAIN = 0.5
AFTER_THE_END = 10.0
"""Seconds for which a log may go on after its gang has ended."""
TROUBLE_PAUSE = 1.0


class LogSource(msgspec.Struct, frozen=True):
    pod: str
    container: str
    uid: str
    began: bool
    ended: bool


Write = Callable[[LogSource, bytes], None]
Tell = Callable[[GangView], None]


async def sources(client: Client, kind: Kind, obj: Json, role: str = "") -> list[LogSource]:
    """Containers that hold the log of this role, oldest pod first; empty while there are none."""
    if gangs.is_wrapper(kind) and (inside := await wrapped(client, obj)) is not None:
        return await sources(client, *inside, role)
    match kind.kind:
        case "RayJob":
            return await _of_ray_job(client, obj, role)
        case "RayCluster":
            if role == "submitter":
                raise ShoalError("a RayCluster has no submitter; choose --role head or worker")
            return await _of_cluster(client, obj["metadata"]["name"], obj, role or "head")
        case "Job":
            return await _of_job(client, obj["metadata"]["name"], obj)
        case "Pod":
            return [_source(obj)]
    pods = (await happened.made_by(client, obj)).get(kinds.POD, [])
    return [_source(pod) for pod in sorted(pods, key=_age)]


async def read(client: Client, kind: Kind, obj: Json, write: Write, *, role: str = "", previous: bool = False) -> bool:
    """What there is now, or what was kept of pods that are gone. `previous`: of the container before the last restart,
    or of the pod before this one. False: there is none yet."""
    at = await elsewhere.reading(client, kind, obj)
    found = [one for one in await sources(at.client, at.kind, at.obj, role) if one.began]
    if previous and found and not at.cluster:
        return await _previous(client, kind, obj, found, write, role)
    chosen = [] if previous else found if role == "worker" else found[-1:]
    for source in chosen:
        await _stream(at.client, obj["metadata"]["namespace"], source, write, follow=False)
    return bool(chosen) or await read_kept(client, kind, obj, write, role=role, previous=previous)


async def read_kept(
    client: Client, kind: Kind, obj: Json, write: Write, *, role: str = "", previous: bool = False
) -> bool:
    """What the controller kept of this gang; False where there is nothing, or it tells nothing."""
    metadata = obj["metadata"]
    choice = {"kind": kind.kind, "name": metadata["name"], "uid": metadata["uid"], "role": role, "previous": previous}
    try:
        found = await asking.kept_logs(client, metadata["namespace"], choice)
    except asking.NoAnswer:
        return False
    return _write_kept(found, write)


async def read_gone(
    client: Client, words: tuple[str, ...], name: str, namespace: str, write: Write, *, role: str, previous: bool
) -> bool:
    """Of a gang that is not there any more: of the one of this name that ended last. `words`: kinds that it may be of;
    empty for any. Raises NoAnswer."""
    for word in words or ("",):
        choice = {"kind": word, "name": name, "role": role, "previous": previous}
        if found := await asking.kept_logs(client, namespace, choice):
            return _write_kept(found, write)
    return False


def _write_kept(found: list[Json], write: Write) -> bool:
    for one in found:
        source = LogSource(str(one.get("pod")), str(one.get("container")), str(one.get("pod")), True, True)
        if one.get("cut"):
            write(source, f"… {one['cut']} bytes before this were not kept\n".encode())
        write(source, str(one.get("text") or "").encode())
    return bool(found)


async def follow(client: Client, kind: Kind, obj: Json, tell: Tell, write: Write, *, role: str = "") -> GangView:
    """Wait for the gang as long as it takes, and pass its log on to the end. Returns the gang as it was last seen.

    `tell` gets every change of state or reason; a gang that is started again goes on with its new pods.
    """
    seen: list[GangView] = []
    changed, ended = asyncio.Event(), asyncio.Event()

    async def watch() -> None:
        try:
            async for view in following.follow(client, kind, obj):
                seen.append(view)
                tell(view)
                changed.set()
        finally:
            ended.set()
            changed.set()

    watching = asyncio.ensure_future(watch())
    done: dict[tuple[str, str], asyncio.Task[None]] = {}
    namespace = obj["metadata"]["namespace"]
    try:
        while True:
            over = ended.is_set()
            changed.clear()
            current = seen[-1].obj if seen else obj
            reader, found = await _now(client, kind, current, role)
            for source in found:
                key = (source.uid, source.container)
                if source.began and key not in done:
                    done[key] = asyncio.ensure_future(_stream(reader, namespace, source, write, follow=True))
            if over:
                break
            try:
                async with asyncio.timeout(LOOK_AGAIN):
                    await changed.wait()
            except TimeoutError:
                pass
        if done:
            await asyncio.wait(done.values(), timeout=AFTER_THE_END)
        await watching
        for task in done.values():
            if task.done():
                task.result()
        if not done and not seen[-1].gone:
            await read_kept(client, kind, seen[-1].obj, write, role=role)
        return seen[-1]
    finally:
        for task in (watching, *done.values()):
            task.cancel()
        await asyncio.gather(watching, *done.values(), return_exceptions=True)


async def _now(client: Client, kind: Kind, obj: Json, role: str) -> tuple[Client, list[LogSource]]:
    """Through which client, and what."""
    try:
        at = await elsewhere.reading(client, kind, obj)
        return at.client, await sources(at.client, at.kind, at.obj, role)
    except ApiError:
        raise
    except KubeError:
        return client, []  # the server does not answer; the next look may be luckier


async def _stream(client: Client, namespace: str, source: LogSource, write: Write, *, follow: bool) -> None:
    """All of one container's log, each byte once."""
    written = 0
    while True:
        skip = written
        try:
            chunks = client.logs(source.pod, namespace, container=source.container, follow=follow)
            async with aclosing(chunks) as stream:  # type: ignore[type-var]
                async for chunk in stream:
                    fresh = chunk[skip:]
                    skip = max(0, skip - len(chunk))
                    if fresh:
                        written += len(fresh)
                        write(source, fresh)
            return
        except NotFound:
            return  # the pod is gone, and its log with it
        except ApiError:
            raise
        except KubeError:
            if not follow:
                raise
            await asyncio.sleep(TROUBLE_PAUSE)


async def _previous(client: Client, kind: Kind, obj: Json, found: list[LogSource], write: Write, role: str) -> bool:
    namespace, last = obj["metadata"]["namespace"], found[-1]
    try:
        async for chunk in client.logs(last.pod, namespace, container=last.container, previous=True):
            write(last, chunk)
        return True
    except ApiError:
        if len(found) < 2 and await _pod_before(client, kind, obj, last, write, role):
            return True
        if len(found) < 2:
            raise ShoalError(f"pod {last.pod} has not been restarted, and there was no other before it") from None
    await _stream(client, namespace, found[-2], write, follow=False)
    return True


async def _pod_before(client: Client, kind: Kind, obj: Json, last: LogSource, write: Write, role: str) -> bool:
    """What the controller kept of the pod before this one; the newest that it kept may be this one's own."""
    choice = {"kind": kind.kind, "name": obj["metadata"]["name"], "uid": obj["metadata"]["uid"], "role": role}
    for previous in (False, True):
        try:
            kept = await asking.kept_logs(client, obj["metadata"]["namespace"], {**choice, "previous": previous})
        except asking.NoAnswer:
            return False
        if others := [one for one in kept if one.get("pod") != last.pod]:
            return _write_kept(others, write)
    return False


# --- where the log is


async def _of_ray_job(client: Client, job: Json, role: str) -> list[LogSource]:
    mode = str((job.get("spec") or {}).get("submissionMode") or "K8sJobMode")
    cluster = str((job.get("status") or {}).get("rayClusterName") or "")
    if role in ("head", "worker"):
        return await _of_cluster(client, cluster, job, role) if cluster else []
    if mode == "K8sJobMode":
        return await _of_job(client, job["metadata"]["name"], job)
    if mode != "SidecarMode":
        raise ShoalError(f"{mode} has no submitter: the driver's log is in Ray's dashboard; try --role head")
    if not cluster:
        return []
    heads = await _pods(client, job, f"{RAY_CLUSTER_NAME}={cluster},{RAY_NODE_TYPE}=head", "RayCluster", cluster)
    return [_source(pod, RAY_SUBMITTER) for pod in heads]


async def _of_cluster(client: Client, name: str, beside: Json, role: str) -> list[LogSource]:
    selector = f"{RAY_CLUSTER_NAME}={name},{RAY_NODE_TYPE}={role}"
    return [_source(pod) for pod in await _pods(client, beside, selector, "RayCluster", name)]


async def _of_job(client: Client, name: str, beside: Json) -> list[LogSource]:
    return [_source(pod) for pod in await _pods(client, beside, f"{BATCH_JOB_NAME}={name}", "Job", name)]


async def _pods(client: Client, beside: Json, selector: str, kind: str, name: str) -> list[Json]:
    """Pods that this owner controls, oldest first."""
    found = await client.list(kinds.POD, beside["metadata"]["namespace"], label_selector=selector)
    own = [pod for pod in found if (owner := gangs.owner(pod)) and (owner["kind"], owner["name"]) == (kind, name)]
    return sorted(own, key=_age)


def _age(pod: Json) -> tuple[str, str]:
    return pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]


async def wrapped(client: Client, wrapper: Json) -> tuple[Kind, Json] | None:
    """What runs inside an AppWrapper: its Ray job, Ray cluster or Job."""
    for kind in (kinds.RAY_JOB, kinds.RAY_CLUSTER, kinds.JOB):
        try:
            found = await client.list(kind, wrapper["metadata"]["namespace"])
        except NotFound:
            continue
        uid = wrapper["metadata"]["uid"]
        own = [one for one in found if any(ref["uid"] == uid for ref in one["metadata"].get("ownerReferences") or ())]
        if own:
            return kind, min(own, key=lambda one: one["metadata"]["name"])
    return None


def _source(pod: Json, container: str = "") -> LogSource:
    name = container or pod["spec"]["containers"][0]["name"]
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    state: Json = next((one.get("state") or {} for one in statuses if one.get("name") == name), {})
    ended = "terminated" in state
    return LogSource(pod["metadata"]["name"], name, pod["metadata"]["uid"], ended or "running" in state, ended)
