"""What may be told about one gang: what is stored of it, and the leading controller's answer where it waits.

Shared by `shoal why` and the Python door. Asks with the caller's rights, and works nothing out. Without an answer the
caller gets what is stored: there, gangs of other namespaces are by UID only; they are named to those who may read them.
"""

from __future__ import annotations

from typing import Any

from shoal.api import kinds, ray_gang
from shoal.api.kind import Kind
from shoal.api.labels import KUEUE_ELASTIC_JOB
from shoal.api.meta import Json
from shoal.api.objects import annotation
from shoal.api.times import micro_text
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.discovery import Discovery
from shoal.kube.errors import Forbidden, NotFound
from shoal.sdk import asking, gangs, queued
from shoal.sdk.last_words import last_words
from shoal.sdk.standing import how_it_ended, runs_since, words

_STATES = {"Pending": "waiting", "Suspended": "waiting"}
RUNNING = ("Running", "ready")
_COUNTS = {"running": "running", "pending": "pending", "Succeeded": "succeeded", "failed": "failed"}


async def searched_kinds(client: Client, word: str, namespace: str, *, all_kinds: bool = False) -> tuple[Kind, ...]:
    """The kinds that the word means; those that the commands do not know by heart are asked for. `all_kinds`: also
    those that are no gangs by themselves and can wait, such as pods and bare Workloads."""
    waiting = gangs.WAITING if all_kinds else ()
    try:
        if word:
            return gangs.kinds_called(word, waiting)
    except ShoalError:
        pass
    others = await queued.other_kinds(client, await queued.workloads(client, namespace))
    if word.lower() in (kinds.POD.kind.lower(), kinds.POD.plural) and kinds.POD not in others:
        others = (*others, kinds.POD)  # one of a group that is not whole yet
    if word:
        return gangs.kinds_called(word, (*others, *waiting))
    return tuple(dict.fromkeys((*gangs.KINDS, *gangs.QUEUED, *others, *waiting)))


async def explain_to(
    client: Client, searched: tuple[Kind, ...], name: str, namespace: str, *, fresh: bool = False
) -> dict[str, Any]:
    """What the client's user may learn about this gang; of something inside an AppWrapper, about the AppWrapper."""
    kind, obj = await find(client, searched, name, namespace)
    kind, obj = await _asked_about(client, kind, obj)
    stored, waits = await _stored(client, kind, obj)
    workload = await _workload_of(client, kind, obj)
    ended = how_it_ended(kind, obj, workload)
    stored |= ended
    if not (ended or waits or gangs.is_wrapper(kind) or stored["state"] == "incomplete"):
        stored["since"] = runs_since(kind, obj, workload) or stored["since"]
    unwell = not ended and gangs.has_failed_pods(obj)
    if unwell:
        failing = "pods of it failed; after a grace period it is started again, or fails for good"
        stored["message"] = stored.get("message") or failing
    failed = unwell or gangs.has_failed(kind, obj)
    if (ended or waits or failed) and (lines := await last_words(client, kind, obj, bool(ended))):
        stored["lastLines"] = lines
    if not waits:
        return await _with_wishes(client, kind, obj, stored, fresh) if is_elastic(obj) else stored
    try:
        answer = await asking.ask(client, kind, obj["metadata"]["name"], namespace, fresh=fresh)
    except asking.NoAnswer as error:
        return {**stored, "notAnswered": str(error)}
    return {**stored, **_answered(answer)}


async def _asked_about(client: Client, kind: Kind, obj: Json) -> tuple[Kind, Json]:
    """Of something inside an AppWrapper, the AppWrapper; of a job's Workload, the job, where it may be read; of a
    RayService, its next cluster where that has not started."""
    if kind == kinds.RAY_SERVICE and (cluster := await _next_cluster(client, obj)) is not None:
        return kinds.RAY_CLUSTER, cluster
    holder = gangs.owner(obj)
    if holder is None or gangs.is_wrapper(kind):
        return kind, obj
    namespace = obj["metadata"]["namespace"]
    if holder["kind"] == "AppWrapper":
        return await find(client, gangs.WRAPPERS, holder["name"], namespace)
    if kind != kinds.WORKLOAD:
        return kind, obj
    try:
        above = await Discovery(client).kind_of(str(holder["apiVersion"]), str(holder["kind"]))
        found = await client.get(above, holder["name"], namespace) if above is not None else None
    except (Forbidden, NotFound):
        return kind, obj
    return (above, found) if above is not None and found is not None else (kind, obj)


async def _next_cluster(client: Client, service: Json) -> Json | None:
    """The cluster that a RayService asks for, while a queue or the want of room holds it back."""
    name = ((service.get("status") or {}).get("pendingServiceStatus") or {}).get("rayClusterName")
    try:
        found: Json | None = (
            await client.get(kinds.RAY_CLUSTER, name, service["metadata"]["namespace"]) if name else None
        )
    except (Forbidden, NotFound):
        return None
    if found is None or not (ray_gang.why_waiting(found) or (queued.queue_of(found) and found["spec"].get("suspend"))):
        return None
    return found


async def _workload_of(client: Client, kind: Kind, obj: Json) -> Json | None:
    if kind == kinds.WORKLOAD or not queued.queue_of(obj):
        return None
    found = await queued.workloads(client, obj["metadata"]["namespace"])
    return queued.by_owner(found).get(obj["metadata"]["uid"])


async def _stored(client: Client, kind: Kind, obj: Json) -> tuple[dict[str, Any], bool]:
    """What the object itself says, and whether there is more to ask: why it does not run."""
    if kind == kinds.WORKLOAD:
        return _bare(kind, obj)
    held = await queued.describe(client, obj) if queued.queue_of(obj) else None
    if held is not None and "state" in held:
        return {**_named(kind, obj), "since": _since(obj), **held}, held["state"] != "incomplete"
    if held is not None or not gangs.is_wrapper(kind):
        waits = held is None and not gangs.ended_at(kind, obj) and gangs.state_of(kind, obj)[0] not in RUNNING
        return {**_plain(kind, obj), **(held or {})}, waits
    from shoal.api.appwrapper import AppWrapper
    from shoal.api.codec import typed
    from shoal.controllers.appwrapper.status import explain

    found, cluster = await _wrapper(client, kind, obj), queued.given_cluster(obj)
    return {**found, **({"cluster": cluster} if cluster else {})}, explain.is_waiting(typed(obj, AppWrapper))


def is_elastic(obj: Json) -> bool:
    return bool(queued.queue_of(obj)) and annotation(obj, KUEUE_ELASTIC_JOB) == "true"


async def _with_wishes(client: Client, kind: Kind, obj: Json, stored: dict[str, Any], fresh: bool) -> dict[str, Any]:
    """An elastic job that runs: the controller knows what it has and wants beyond its admission, and what is short."""
    try:
        metadata = obj["metadata"]
        answer = await asking.ask(client, kind, metadata["name"], metadata["namespace"], fresh=fresh)
    except asking.NoAnswer:
        return stored
    return {**stored, "message": answer["message"]} if answer.get("message") else stored


def _answered(answer: Json) -> dict[str, Any]:
    """The controller's answer, in the words of this command."""
    told: dict[str, Any] = {
        "reason": answer.get("reason", ""),
        "message": answer.get("message", ""),
        "position": answer.get("position", 0),
        "queueLength": answer.get("queueLength", 0),
        "shortfalls": answer.get("shortfalls") or [],
        "holders": answer.get("holders") or [],
        "holdersNotShown": answer.get("holdersHidden", 0),
        "moreHolders": answer.get("moreHolders", 0),
        "release": answer.get("release") or [],
        "releaseNotShown": answer.get("releaseHidden", 0),
        "moreRelease": answer.get("moreRelease", 0),
        "releaseMeasure": answer.get("releaseMeasure", ""),
        "leastIncrease": answer.get("leastIncrease"),
        "newNodes": answer.get("newNodes"),
        "together": answer.get("together"),
        "startsByItself": answer.get("startsByItself", False),
        "clusterTooSmall": answer.get("clusterTooSmall", False),
        "namedBy": answer.get("namedBy", ""),
        "explainedAt": answer["answeredAt"],
        "madeFrom": answer.get("madeFrom") or {},
    }
    for name in ("clusterQueue", "localQueue", "localPosition", "localQueueLength", "pendingPods", "estimate"):
        if answer.get(name):
            told[name] = answer[name]
    return told


async def find(client: Client, searched: tuple[Kind, ...], name: str, namespace: str) -> tuple[Kind, Json]:
    refusals: list[Forbidden] = []
    for kind in searched:
        try:
            return kind, await client.get(kind, name, namespace)
        except NotFound:
            continue
        except Forbidden as error:
            refusals.append(error)
    if len(refusals) == len(searched):
        raise ShoalError(f"{refusals[0]}; ask for that right, or name another namespace with -n") from refusals[0]
    what = searched[0].kind if len({kind.kind for kind in searched}) == 1 else "gang"
    raise ShoalError(f"there is no {what} {name} in namespace {namespace}; `shoal get -A` lists all gangs")


def _bare(kind: Kind, workload: Json) -> tuple[dict[str, Any], bool]:
    """A Workload that no job owns, or whose job may not be read."""
    state, message = gangs.state_of(kind, workload)
    queue = str((workload.get("spec") or {}).get("queueName") or "")
    found = {"since": gangs.ended_at(kind, workload) or _since(workload), "queue": queue}
    found |= {"message": message, "storedAt": queued.stored_at(workload)}
    waits = queued.told(workload) is not None and state != "Incomplete"
    return {**_named(kind, workload), "state": words(state), **found}, waits


def _plain(kind: Kind, obj: Json) -> dict[str, Any]:
    """A gang that no AppWrapper holds: what its own controller says."""
    state, reason = gangs.state_of(kind, obj)
    since = gangs.ended_at(kind, obj) or _since(obj)
    stands = "waiting for room" if ray_gang.why_waiting(obj) else words(state)
    return {**_named(kind, obj), "state": stands, "since": since, "message": reason}


async def _wrapper(client: Client, kind: Kind, obj: Json) -> dict[str, Any]:
    from shoal.api.appwrapper import AppWrapper
    from shoal.api.codec import typed
    from shoal.controllers.appwrapper.status import explain

    wrapper: AppWrapper = typed(obj, AppWrapper)
    names = await _names(client) if explain.unnamed(wrapper) else {}
    status = obj.get("status") or {}
    state = status.get("state") or status.get("phase") or "Pending"
    if status.get("canrun") and state == "Pending":
        state = "starting"
    pods = {told: status[name] for name, told in _COUNTS.items() if status.get(name)}
    found = {**_named(kind, obj), "state": _STATES.get(state) or words(state), "since": _since(obj), "pods": pods}
    found |= explain.described(wrapper, names)
    if not found.get("message") and state == "Running":
        found["message"] = gangs.state_of(kind, obj)[1]
    if not status:
        found["message"] = "no controller has looked at it yet; is one running? (shoal up, or shoal controller)"
    elif (obj.get("spec") or {}).get("suspend"):
        found["state"] = words(state)
        found["message"] = "spec.suspend is true; it starts when that is cleared"
    if "resumeAt" in found:
        found["resumeAt"] = micro_text(found["resumeAt"])
    return found


async def _names(client: Client) -> dict[str, str]:
    """Every gang that the asker may read, by UID: the server decides which those are. A Workload goes by its job."""
    import msgspec

    from shoal.api.meta import Object

    found: dict[str, str] = {}
    for kind in (*gangs.WRAPPERS, kinds.WORKLOAD):
        continue_ = ""
        try:
            while True:
                page = await client.list_raw(kind, limit=1000, continue_=continue_, metadata_only=True)
                for item in page.items or ():
                    metadata = msgspec.json.decode(item, type=Object).metadata
                    owner = next((one for one in metadata.owner_references or () if one.controller), None)
                    if kind != kinds.WORKLOAD:
                        found[metadata.uid] = f"{kind.kind}/{metadata.namespace}/{metadata.name}"
                    elif owner is not None:
                        found[metadata.uid] = f"{owner.kind}/{metadata.namespace}/{owner.name}"
                continue_ = page.metadata.continue_
                if not continue_:
                    break
        except (Forbidden, NotFound):
            continue
    return found


def _named(kind: Kind, obj: Json) -> dict[str, Any]:
    metadata = obj["metadata"]
    return {"kind": kind.kind, "namespace": metadata["namespace"], "name": metadata["name"]}


def _since(obj: Json) -> str:
    """When it came to be in its present state: entered the queue, or the newest turn of its conditions."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    status = obj.get("status") or {}
    if status.get("state") == "Pending" and not status.get("canrun"):
        conditions = [one for one in conditions if one.get("type") == "Queueing"]
    times = [one.get("lastTransitionMicroTime") or one.get("lastTransitionTime") or "" for one in conditions]
    return str(max([time for time in times if time], default=obj["metadata"]["creationTimestamp"]))
