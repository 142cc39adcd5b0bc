"""`shoal why NAME`: why a gang runs or waits, and what would help.

Asks the controller and prints its answer; works nothing out. Without an answer it prints what is stored on the gang:
there, gangs of other namespaces are by UID only; they are named to those who may read them, and counted for all others.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.times import micro_text, parse_time, seconds_text
from shoal.cli import asking, gangs, queued, show
from shoal.cli.reach import cluster_options, output_option, reach
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import Forbidden, NotFound

_STATES = {"Pending": "waiting", "Suspended": "waiting", "RunningHoldCompletion": "running until its pods end"}
RUNNING = ("Running", "ready")
_COUNTS = {"running": "running", "pending": "pending", "Succeeded": "succeeded", "failed": "failed"}


@click.command(
    epilog="\b\nExamples:\n  shoal why train --fresh\n  shoal why aw/train -n team-a -o json\n  shoal why rayjob/tune"
)
@click.argument("gang", metavar="[KIND/]NAME")
@click.option("-n", "--namespace", default="default", show_default=True)
@click.option(
    "--fresh", is_flag=True, help="Answer only after the controller has seen everything stored before this question."
)
@output_option
@cluster_options
def command(
    gang: str,
    namespace: str,
    fresh: bool,
    output: str,
    kubeconfig: Path | None,
    context: str | None,
    name: str | None,
) -> None:
    """Say why a gang runs or waits: what is short, by how much and where, which gangs hold it, what would help.

    The leading controller is asked (a Question, which it removes after a minute). Where it does not answer, or you may
    not create one, this is what was stored last, and says how old that is.
    """
    word, _, wanted = gang.rpartition("/")
    told = asyncio.run(_explain(word, wanted, namespace, fresh, (kubeconfig, context, name)))
    if output == "table":
        _print(told)
    else:
        show.document(told, output)


async def _explain(word: str, name: str, namespace: str, fresh: bool, where: tuple[Any, ...]) -> dict[str, Any]:
    async with reach(*where) as client:
        searched = await _searched(client, word, namespace)
        return await explain_to(client, searched, name, namespace, fresh=fresh)


async def _searched(client: Client, word: str, namespace: str) -> tuple[Kind, ...]:
    """The kinds that the word means; those that the commands do not know by heart are asked for."""
    try:
        if word:
            return gangs.kinds_called(word)
    except ShoalError:
        pass
    others = await queued.other_kinds(client, await queued.workloads(client, namespace))
    return gangs.kinds_called(word, others) if word else (*gangs.KINDS, *gangs.QUEUED, *others)


async def explain_to(
    client: Client, searched: tuple[Kind, ...], name: str, namespace: str, *, fresh: bool = False
) -> dict[str, Any]:
    """What the client's user may learn about this gang; of something inside an AppWrapper, about the AppWrapper."""
    kind, obj = await _found(client, searched, name, namespace)
    holder = gangs.owner(obj)
    if holder is not None and holder["kind"] == "AppWrapper" and not gangs.is_wrapper(kind):
        kind, obj = await _found(client, gangs.WRAPPERS, holder["name"], namespace)
    stored, waits = await _stored(client, kind, obj)
    if not waits:
        return stored
    try:
        answer = await asking.ask(client, kind, obj["metadata"]["name"], namespace, fresh=fresh)
    except asking.NoAnswer as error:
        return {**stored, "notAnswered": str(error)}
    return {**stored, **_answered(answer)}


async def _stored(client: Client, kind: Kind, obj: Json) -> tuple[dict[str, Any], bool]:
    """What the object itself says, and whether there is more to ask: why it does not run."""
    held = await queued.describe(client, obj) if queued.queue_of(obj) else None
    if held is not None and "state" in held:
        return {**_named(kind, obj), "since": _since(obj), **held}, held["state"] != "incomplete"
    if held is not None or not gangs.is_wrapper(kind):
        waits = held is None and not gangs.ended_at(kind, obj) and gangs.state_of(kind, obj)[0] not in RUNNING
        return {**_plain(kind, obj), **(held or {})}, waits
    from shoal.api.appwrapper import AppWrapper
    from shoal.api.codec import typed
    from shoal.controllers.appwrapper import explain

    return await _wrapper(client, kind, obj), explain.is_waiting(typed(obj, AppWrapper))


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
    for name in ("clusterQueue", "localQueue", "localPosition", "localQueueLength", "pendingPods"):
        if answer.get(name):
            told[name] = answer[name]
    return told


async def _found(client: Client, searched: tuple[Kind, ...], name: str, namespace: str) -> tuple[Kind, Json]:
    for kind in searched:
        try:
            return kind, await client.get(kind, name, namespace)
        except NotFound:
            continue
    what = searched[0].kind if len({kind.kind for kind in searched}) == 1 else "gang"
    raise ShoalError(f"there is no {what} {name} in namespace {namespace}; `shoal get -A` lists all gangs")


def _plain(kind: Kind, obj: Json) -> dict[str, Any]:
    """A gang that no AppWrapper holds: what its own controller says."""
    state, reason = gangs.state_of(kind, obj)
    since = gangs.ended_at(kind, obj) or _since(obj)
    return {**_named(kind, obj), "state": state.lower(), "since": since, "message": reason}


async def _wrapper(client: Client, kind: Kind, obj: Json) -> dict[str, Any]:
    from shoal.api.appwrapper import AppWrapper
    from shoal.api.codec import typed
    from shoal.controllers.appwrapper import explain

    wrapper: AppWrapper = typed(obj, AppWrapper)
    names = await _names(client) if explain.unnamed(wrapper) else {}
    status = obj.get("status") or {}
    state = status.get("state") or status.get("phase") or "Pending"
    if status.get("canrun") and state == "Pending":
        state = "admitted, being started"
    pods = {told: status[name] for name, told in _COUNTS.items() if status.get(name)}
    found = {**_named(kind, obj), "state": _STATES.get(state, state.lower()), "since": _since(obj), "pods": pods}
    found |= explain.described(wrapper, names)
    if not found.get("message") and state == "Running":
        found["message"] = gangs.state_of(kind, obj)[1]
    if not status:
        found["message"] = "no controller has looked at it yet; is one running? (shoal up, or shoal controller)"
    elif (obj.get("spec") or {}).get("suspend"):
        found["state"] = state.lower()
        found["message"] = "spec.suspend is true; it starts when that is cleared"
    if "resumeAt" in found:
        found["resumeAt"] = micro_text(found["resumeAt"])
    return found


async def _names(client: Client) -> dict[str, str]:
    """Every gang that the asker may read, by UID: the server decides which those are. A Workload goes by its job."""
    import msgspec

    from shoal.api import kinds
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


def _print(told: dict[str, Any]) -> None:
    now = SystemClock().now()
    name = f"{told['kind']} {told['namespace']}/{told['name']}"
    since = parse_time(told["since"])
    _say(f"{name} is {told['state']} since {seconds_text(since)} ({show.age(since, now)} ago)", bold=True)
    if told.get("cluster"):
        _say(f"  in cluster {told['cluster']}")
    if told.get("pods"):
        _say("  pods: " + ", ".join(f"{count} {what}" for what, count in told["pods"].items()))
    if told.get("nodes"):
        nodes = (f"{node} (pods: {count})" for node, count in told["nodes"].items())
        _say("  planned at admission on " + ", ".join(nodes))
    if told.get("quota"):
        _say("  quota from " + ", ".join(f"{tree}/{node}" for tree, node in told["quota"].items()))
    if told.get("message") and not told.get("shortfalls") and not told.get("pendingPods"):
        _say(f"  {told['message']}")
    for shortfall in told.get("shortfalls") or ():
        _say(f"  short: {_short(shortfall)}")
    for pod in told.get("pendingPods") or ():
        _say(f"  pod {pod['name']}: {pod['message']}")
    if told.get("position"):
        _say(f"  {_position(told)}{_as_of(told, now)}")
    unreadable = "that you may not read" if told.get("namedBy") != "Namespace" else "of other namespaces"
    _say_gangs("held by", told, "holders", "holdersNotShown", "moreHolders", unreadable)
    _say_gangs("would start if these ended:", told, "release", "releaseNotShown", "moreRelease", unreadable)
    for line in _helps(told):
        _say(f"  {line}")
    if told.get("clusterTooSmall"):
        _say("  cannot start even on an empty cluster: its nodes are too small or too few; add larger nodes, or more")
    if told.get("resumeAt") and parse_time(told["resumeAt"]) > now:
        seconds = (parse_time(told["resumeAt"]) - now) // 1_000_000
        said = f"{told['setbacks']} starts failed" if told["setbacks"] else "the last start failed"
        _say(f"  {said}; tried again in {seconds} s")
    if told.get("notAnswered"):
        stored = told.get("explainedAt") or told.get("storedAt")
        age = f", written {show.age(parse_time(stored), now)} ago" if stored else ""
        click.echo(show.harmless(f"this is what is stored{age}: {told['notAnswered']}"), err=True)


def _helps(told: dict[str, Any]) -> list[str]:
    """What would let it start, one line each: at one place, by new nodes, or by several things together."""
    found = []
    increase, nodes, together = told.get("leastIncrease"), told.get("newNodes"), told.get("together")
    if increase and increase["place"] != "nodes":
        found.append(f"would start with {_quota(increase)}")
    elif increase and not nodes:
        found.append(f"would start with one more node that has free: {_amounts(increase)}")
    if nodes:
        found.append(f"would start with {_new_nodes(nodes)}")
    if together:
        parts = [_quota(one) for one in together.get("quotas") or ()]
        parts += [_new_nodes(together["nodes"])] if together.get("nodes") else []
        found.append(f"would start with {' and '.join(parts)}")
    if told.get("startsByItself"):
        found.append("starts by itself: all that it waits for is on its way")
    return found


def _quota(increase: dict[str, Any]) -> str:
    return f"more quota at {increase['place']}: {_amounts(increase)}"


def _new_nodes(nodes: dict[str, Any]) -> str:
    labels = ", ".join(f"{name}={value}" for name, value in (nodes.get("labels") or {}).items())
    count = nodes.get("count", 1)
    many = "one more node that has" if count == 1 else f"{count} more nodes that each have"
    return f"{many} free: {_amounts(nodes)}" + (f" (labels {labels})" if labels else "")


def _amounts(increase: dict[str, Any]) -> str:
    return ", ".join(f"{value} {name}" for name, value in (increase.get("amounts") or {}).items())


def _position(told: dict[str, Any]) -> str:
    where = f" in ClusterQueue {told['clusterQueue']}" if told.get("clusterQueue") else ""
    text = f"position {told['position']} of {told['queueLength']}{where}"
    if told.get("localPosition") and (told.get("localQueue") or told["localQueueLength"] != told["queueLength"]):
        mine = f"LocalQueue {told['localQueue']}" if told.get("localQueue") else "this namespace"
        text += f", {told['localPosition']} of {told['localQueueLength']} in {mine}"
    return text


def _as_of(told: dict[str, Any], now: int) -> str:
    """How old a stored position is; an answer is of this moment."""
    if "reason" in told or not told.get("explainedAt"):
        return ""
    return f", as of {show.age(parse_time(told['explainedAt']), now)} ago"


def _say_gangs(label: str, told: dict[str, Any], listed: str, hidden: str, more: str, unreadable: str) -> None:
    names, unnamed, further = told.get(listed) or [], told.get(hidden) or 0, told.get(more) or 0
    parts = [", ".join(names)] if names else []
    if unnamed:
        parts.append(f"{unnamed} {'more ' if names else ''}gang{'s' if unnamed > 1 else ''} {unreadable}")
    if further:
        parts.append(f"{further} more")
    if parts:
        _say(f"  {label} " + " and ".join(parts))


def _say(text: str, *, bold: bool = False) -> None:
    """Styles are for terminals only; click drops them elsewhere."""
    click.echo(click.style(show.harmless(text), bold=bold) if bold else show.harmless(text))


def _short(shortfall: dict[str, Any]) -> str:
    text = str(shortfall.get("message") or shortfall["kind"])
    if not shortfall.get("message") and shortfall.get("needed"):
        text = f"{shortfall['needed']} needed, {shortfall.get('available') or 0} unused"
    if shortfall.get("resource"):
        text = f"{shortfall['missing']} {shortfall['resource']} ({text})"
    place = shortfall.get("place")
    return f"{text} at {place}" if place and place not in text else text
