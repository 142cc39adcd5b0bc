"""`shoal why NAME`: why a gang runs or waits, and what would help.

Prints what the controller said: it judges, and leaves its explanation on the gang. Gangs of other namespaces are in
there by UID only; they are named to those who may read them, and counted for all others.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.times import micro_text, parse_time, seconds_text
from shoal.cli import gangs, queued, show
from shoal.cli.reach import cluster_options, output_option, reach
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import Forbidden, NotFound

_STATES = {"Pending": "waiting", "Suspended": "waiting", "RunningHoldCompletion": "running until its pods end"}
ANSWER_SECONDS = 5.0
_COUNTS = {"running": "running", "pending": "pending", "Succeeded": "succeeded", "failed": "failed"}


@click.command(
    epilog="\b\nExamples:\n  shoal why train --fresh\n  shoal why aw/train -n team-a -o json\n  shoal why rayjob/tune"
)
@click.argument("gang", metavar="[KIND/]NAME")
@click.option("-n", "--namespace", default="default", show_default=True)
@click.option("--fresh", is_flag=True, help="Have the controller look again now; takes the right to patch the gang.")
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
    """Say why a gang runs or waits: what is short, by how much and where, who holds it, what would help.

    This is what the controller said last, at most some seconds old unless very many wait; --fresh asks it again.
    """
    word, _, wanted = gang.rpartition("/")
    searched = gangs.kinds_called(word) if word else (*gangs.KINDS, *gangs.QUEUED)
    told = asyncio.run(_explain(searched, wanted, namespace, fresh, (kubeconfig, context, name)))
    if output == "table":
        _print(told)
    else:
        show.document(told, output)


async def _explain(
    searched: tuple[Kind, ...], name: str, namespace: str, fresh: bool, where: tuple[Any, ...]
) -> dict[str, Any]:
    async with reach(*where) as client:
        return await explain_to(client, searched, name, namespace, fresh=fresh)


async def explain_to(
    client: Client, searched: tuple[Kind, ...], name: str, namespace: str, *, fresh: bool = False
) -> dict[str, Any]:
    """What the client's user may learn about this gang; of something inside an AppWrapper, about the AppWrapper."""
    kind, obj = await _found(client, searched, name, namespace)
    holder = gangs.owner(obj)
    if holder is not None and holder["kind"] == "AppWrapper" and not gangs.is_wrapper(kind):
        kind, obj = await _found(client, gangs.WRAPPERS, holder["name"], namespace)
    held = await queued.describe(client, obj) if queued.queue_of(obj) else None
    if held is not None and "state" in held:
        return {**_named(kind, obj), "since": _since(obj), **held}
    if held is not None or not gangs.is_wrapper(kind):
        return {**_plain(kind, obj), **(held or {})}
    return await _wrapper(client, kind, await _asked(client, kind, obj) if fresh else obj)


async def _asked(client: Client, kind: Kind, obj: Json) -> Json:
    """The AppWrapper once the controller has answered; as it was where no answer comes in time."""
    import secrets

    import msgspec

    from shoal.api.appwrapper import AppWrapper
    from shoal.api.codec import typed
    from shoal.api.gang import ASKED
    from shoal.controllers.appwrapper import explain

    before = typed(obj, AppWrapper)
    if not explain.is_waiting(before) or not before.status.explanation:
        return obj
    name, namespace, question = obj["metadata"]["name"], obj["metadata"]["namespace"], secrets.token_hex(8)
    sent: Json = await client.patch(kind, name, namespace, {"metadata": {"annotations": {ASKED: question}}})
    watch = client.watch(
        kind,
        namespace,
        field_selector=f"metadata.name={name}",
        resource_version=sent["metadata"]["resourceVersion"],
    )
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            async for event in watch:
                if event.type == "MODIFIED":
                    seen: Json = msgspec.json.decode(event.object)
                    wrapper = typed(seen, AppWrapper)
                    told = explain.read(wrapper.status.explanation)
                    if not explain.is_waiting(wrapper) or (told is not None and told.asked == question):
                        return seen
    except TimeoutError:
        click.echo("the controller did not answer in time; this is what it said last", err=True)
    return sent


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
    state, reason = gangs.told(kind, obj)
    return {**_named(kind, obj), "state": state.lower(), "since": _since(obj), "message": reason}


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
        _say("  planned on " + ", ".join(f"{node} (pods: {count})" for node, count in told["nodes"].items()))
    if told.get("quota"):
        _say("  quota from " + ", ".join(f"{tree}/{node}" for tree, node in told["quota"].items()))
    if told.get("message") and not told.get("shortfalls"):
        _say(f"  {told['message']}")
    for shortfall in told.get("shortfalls") or ():
        _say(f"  short: {_short(shortfall)}")
    if told.get("position"):
        said = f", as of {show.age(parse_time(told['explainedAt']), now)} ago" if told.get("explainedAt") else ""
        _say(f"  position {told['position']} of {told['queueLength']}{said}")
    _say_gangs("held by", told.get("holders"), told.get("holdersNotShown", 0))
    _say_gangs("would start if these ended:", told.get("release"), told.get("releaseNotShown", 0))
    increase = told.get("leastIncrease")
    if increase:
        amounts = ", ".join(f"{value} {name}" for name, value in increase["amounts"].items())
        if increase["place"] == "nodes":
            _say(f"  would start with one more node that has free: {amounts}")
        else:
            _say(f"  would start with more quota at {increase['place']}: {amounts}")
    if told.get("clusterTooSmall"):
        _say("  would not start even if everything else ended: the nodes do not suffice; add larger ones, or more")
    if told.get("resumeAt") and parse_time(told["resumeAt"]) > now:
        seconds = (parse_time(told["resumeAt"]) - now) // 1_000_000
        said = f"{told['setbacks']} starts came to nothing" if told["setbacks"] else "its last start came to nothing"
        _say(f"  {said}; tried again in {seconds} s")


def _say_gangs(label: str, names: list[str] | None, hidden: int) -> None:
    if not names and not hidden:
        return
    more = f"{hidden} {'more ' if names else ''}gang{'s' if hidden > 1 else ''} that you may not read"
    _say(f"  {label} " + " and ".join([*filter(None, [", ".join(names or [])]), *([more] if hidden else [])]))


def _say(text: str, *, bold: bool = False) -> None:
    """Styles are for terminals only; click drops them elsewhere."""
    click.echo(click.style(show.harmless(text), bold=bold) if bold else show.harmless(text))


def _short(shortfall: dict[str, Any]) -> str:
    text = str(shortfall.get("message") or shortfall["kind"])
    if shortfall.get("resource"):
        text = f"{shortfall['missing']} {shortfall['resource']} ({text})"
    place = shortfall.get("place")
    return f"{text} at {place}" if place and place not in text else text
