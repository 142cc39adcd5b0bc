"""`shoal session NAME`: the dashboard and the client port of a gang's Ray cluster, at addresses of this machine."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from shoal.api import kinds
from shoal.cli import show, telling
from shoal.cli.reach import cluster_options, gang_argument, namespace_option, reach
from shoal.errors import ShoalError
from shoal.sdk import elsewhere, following, session
from shoal.sdk.connecting import ClusterChoice
from shoal.sdk.session import RaySession


@click.command(
    epilog="\b\nExamples:\n  shoal session lab\n  shoal session rayjob/train -n team-a"
    "\n  shoal session lab -- python explore.py"
)
@gang_argument
@click.argument("words", metavar="[-- COMMAND]", nargs=-1, type=click.UNPROCESSED)
@namespace_option
@cluster_options
def command(
    gang: str, words: tuple[str, ...], namespace: str, kubeconfig: Path | None, context: str | None, name: str | None
) -> None:
    """Open a Ray cluster's dashboard and client port on this machine, logged in with its token, until Ctrl-C.

    A command after -- runs with RAY_ADDRESS and the token in its environment, and its exit code is returned. A gang
    that waits is waited for. kubectl forwards the ports, through the hub where the gang runs in another cluster.
    """
    raise SystemExit(
        telling.run(_session(gang, words, namespace, (kubeconfig, context, name)), lambda: "session ended")
    )


async def _session(gang: str, words: tuple[str, ...], namespace: str, where: tuple[Any, ...]) -> int:
    kubeconfig, context, name = where
    choice = ClusterChoice(kubeconfig=kubeconfig, context=context, name=name)
    async with reach(*where) as client:
        kind, obj = await telling.gang(client, gang, namespace)
        async for view in following.follow(client, kind, obj):
            obj = view.obj
            if view.gone or view.outcome.has_ended:
                raise ShoalError(f"{kind.kind} {view.name} has ended ({view.state}); its Ray cluster is gone or going")
            if view.outcome.stage == "running":
                break
            telling.change(view)
        at = await elsewhere.reading(client, kind, obj)
        cluster = await session.ray_cluster(at.client, at.kind, at.obj)
        async with session.opened(at.client, choice, cluster, at.path) as found:
            if words:
                return await _run(words, found)
            _tell(found)
            followed = (kind, obj) if at.cluster else (kinds.RAY_CLUSTER, cluster)  # other clusters are not watched
            async for view in following.follow(client, *followed):
                if view.gone or (at.cluster and view.outcome.stage != "running"):
                    break
    click.echo("the Ray cluster is gone", err=True)
    return 0


def _tell(found: RaySession) -> None:
    click.echo(show.harmless(f"RayCluster {found.cluster}"))
    click.echo(f"dashboard:   {found.dashboard}")
    click.echo(f"Ray client:  {found.address}")
    if found.token_file:
        click.echo(f"its token:   export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={found.token_file}")
    click.echo("Ctrl-C ends the session; the Ray cluster goes on")


async def _run(words: tuple[str, ...], found: RaySession) -> int:
    try:
        running = await asyncio.create_subprocess_exec(*words, env={**os.environ, **found.environment()})
    except OSError as error:
        raise ShoalError(f"{words[0]} cannot be run: {error.strerror}") from None
    return await running.wait()
