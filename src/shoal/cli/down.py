"""`shoal down`: stop a cluster and leave nothing of it running, whether its process still lives or not."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import time
from pathlib import Path

import click

from shoal.errors import ShoalError
from shoal.local import kubeconfigs
from shoal.local.home import DEFAULT_NAME, Home
from shoal.local.leftovers import remove_all
from shoal.local.nodes.runtime.identity import ProcessIdentity, hold
from shoal.local.nodes.runtime.ownership import memory_directory

PATIENCE = 60.0


@click.command(
    short_help="Stop a cluster and everything that it runs.",
    epilog="\b\nExamples:\n  shoal down\n  shoal down --name try",
)
@click.option("--name", default=DEFAULT_NAME, show_default=True)
@click.option("--purge", is_flag=True, help="Also delete its state: objects, logs, volumes.")
def command(name: str, purge: bool) -> None:
    """Stop the cluster, its pods and their processes. Its objects stay for the next `shoal up` unless --purge."""
    home = Home(name)
    if not home.exists():
        raise ShoalError(f"there is no cluster {name} on this machine")
    found = home.running() or _starting(home)
    if found is not None:
        descriptor = hold(found[0])
        if descriptor is not None:
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            gone, _, _ = select.select([descriptor], [], [], PATIENCE)
            os.close(descriptor)
            if not gone:
                raise ShoalError(f"pid {found[0].pid} did not stop within {PATIENCE:g} s; see {home.log}")
    asyncio.run(remove_all(home))  # what a killed process left behind
    if added := home.remembered().get("kubeconfig"):
        kubeconfigs.remove(home.context, Path(str(added)))
    home.forget_running()
    if purge:
        shutil.rmtree(memory_directory(home.identity), ignore_errors=True)
        shutil.rmtree(home.directory)
    click.echo(f"cluster {name} is down" + (", its state deleted" if purge else ""))


def _starting(home: Home) -> tuple[ProcessIdentity, dict[str, object]] | None:
    """A process that has taken the state and is not ready yet: it is waited for, else it would start what we end."""
    from shoal.local.apiserver.storage.lock import StateBusy, StateLock  # brings the whole server along

    until = time.monotonic() + PATIENCE
    while (found := home.running()) is None:
        try:
            if home.api.is_dir():
                lock = StateLock(home.api)
                lock.take()
                lock.release()
            return None
        except StateBusy as busy:
            if time.monotonic() > until:
                raise ShoalError(f"cluster {home.name} neither starts nor stops: {busy}") from None
        time.sleep(0.1)
    return found
