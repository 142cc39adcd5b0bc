"""`shoal why NAME`: why a gang runs or waits, and what would help.

Runs the very engine that decides, on the objects that the asker may read, so the answer never shows more than their
rights do. Who may not read nodes and pods of the whole cluster gets what the controller wrote on the gang itself.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.cli import show
from shoal.cli.reach import cluster_options, output_option, reach
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.clock import SystemClock
from shoal.kube.errors import Forbidden, NotFound


@click.command(epilog="\b\nExamples:\n  shoal why train\n  shoal why appwrapper/train -n team-a -o json")
@click.argument("gang")
@click.option("-n", "--namespace", default="default", show_default=True)
@output_option
@cluster_options
def command(
    gang: str, namespace: str, output: str, kubeconfig: Path | None, context: str | None, name: str | None
) -> None:
    """Say why the AppWrapper GANG runs or waits."""
    wanted = gang.rpartition("/")[2]
    told = asyncio.run(_explain(wanted, namespace, (kubeconfig, context, name)))
    if output == "table":
        _print(told)
    else:
        show.document(told, output)


async def _explain(name: str, namespace: str, where: tuple[Any, ...]) -> dict[str, Any]:
    async with reach(*where) as client:
        kind, obj = await _found(client, name, namespace)
        told = _stored(kind, obj)
        if told["state"] == "waiting":
            told.update(await _judged(client, obj))
        return told


async def _found(client: Client, name: str, namespace: str) -> tuple[Kind, Json]:
    for kind in (kinds.APP_WRAPPER, kinds.APP_WRAPPER_LEGACY):
        try:
            return kind, await client.get(kind, name, namespace)
        except NotFound:
            continue
    raise ShoalError(f"there is no AppWrapper {name} in namespace {namespace}; `shoal get -A` lists all gangs")


def _stored(kind: Kind, obj: Json) -> dict[str, Any]:
    """What the object itself tells."""
    status = obj.get("status") or {}
    state = status.get("state") or status.get("phase") or "Pending"
    names = {"Pending": "waiting", "Running": "running", "RunningHoldCompletion": "running"}
    conditions = status.get("conditions") or []
    last = conditions[-1] if conditions else {}
    since = (
        last.get("lastTransitionMicroTime") or last.get("lastTransitionTime") or obj["metadata"]["creationTimestamp"]
    )
    return {
        "gang": f"{kind.kind}/{obj['metadata']['namespace']}/{obj['metadata']['name']}",
        "state": names.get(state, state.lower()),
        "since": since,
        "message": status.get("message") or last.get("message") or "",
        "pods": {
            name: status.get(name, 0) for name in ("pending", "running", "Succeeded", "failed") if status.get(name)
        },
    }


async def _judged(client: Client, obj: Json) -> dict[str, Any]:
    """The engine's own explanation, from what the asker may read."""
    import msgspec

    from shoal.controllers.appwrapper.survey import survey

    try:
        engine, key = await survey(client, obj, SystemClock().now())
    except Forbidden as error:
        return {"limited": f"from the gang's own status only: {error.message}"}
    explanation = engine.explain(key, SystemClock().now())
    return {} if explanation is None else msgspec.to_builtins(explanation)


def _print(told: dict[str, Any]) -> None:
    now = SystemClock().now()
    click.echo(f"{show.harmless(told['gang'])} is {told['state']} since {show.age(parse_time(told['since']), now)}")
    if told.get("message"):
        click.echo(f"  {show.harmless(str(told['message']))}")
    if told.get("position"):
        click.echo(f"  position {told['position']} of {told['queue_length']} in its queue")
    for shortfall in told.get("shortfalls") or ():
        click.echo(f"  short: {show.harmless(shortfall.get('message') or _short(shortfall))}")
    for label, names in (("held by", told.get("holders")), ("would start if these ended", told.get("release"))):
        if names:
            click.echo(f"  {label}: {show.harmless(', '.join(names))}")
    increase = told.get("least_increase")
    if increase:
        amounts = ", ".join(_amount(name, value) for name, value in increase["amounts"].items())
        click.echo(f"  would start with more quota at {show.harmless(increase['place'])}: {amounts}")
    if told.get("limited"):
        click.echo(f"  ({show.harmless(told['limited'])})")


def _short(shortfall: dict[str, Any]) -> str:
    place = f" at {shortfall['place']}" if shortfall.get("place") else ""
    return f"{_amount(shortfall.get('resource', ''), shortfall.get('missing', 0))}{place} ({shortfall['kind']})"


def _amount(resource: str, value: int) -> str:
    from shoal.api.quantity import show as quantity

    return f"{quantity(resource, value)} {resource}"
