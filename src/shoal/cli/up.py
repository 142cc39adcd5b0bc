"""`shoal up`: a cluster on this machine, in the foreground with a status line or detached."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click
import msgspec

from shoal.api import quantity
from shoal.cli import choices
from shoal.cli.choices import flag, set_option
from shoal.cli.image import prepare_images
from shoal.cli.packages import missing_packages
from shoal.errors import ShoalError
from shoal.local import kubeconfigs, machine
from shoal.local.home import DEFAULT_NAME, DEFAULT_NODE, Home
from shoal.local.images import parse_mapping
from shoal.local.load import check_base_load
from shoal.local.nodes.sandbox import ownspace, views
from shoal.local.nodes.sandbox.ownspace import OwnSpace
from shoal.local.settings import (
    SANDBOXES,
    LocalSettings,
    Pool,
    check_names,
    parse_base_load,
    parse_node,
    parse_pool,
    read_file,
)
from shoal.local.shapes import NodeShape, RuntimeName

if TYPE_CHECKING:
    from shoal.cli.cluster import LocalCluster

STOP_GRACE = 10.0
START_PATIENCE = 60.0


def check_packages() -> None:
    """Raises ShoalError before anything is started."""
    if missing := missing_packages():
        raise ShoalError(
            f"a cluster on this machine needs {', '.join(missing)}, which the core package leaves out: "
            "pip install 'shoal-ray[local]'"
        )


@click.command(
    short_help="Start a cluster on this machine.",
    epilog="\b\nExamples:\n  shoal up                     this machine as one node, in the foreground"
    "\n  shoal up --detach --node cpu=8,memory=16Gi,nvidia.com/gpu=1,count=2"
    "\n  shoal up --detach --name try --runtime simulated --node cpu=64,memory=256Gi,count=100"
    "\n  shoal up --pool name=gpu,cpu=4,memory=16Gi,nvidia.com/gpu=1,max=4,delay=2s",
)
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="Several clusters may run side by side, by name.")
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="cpu=8,memory=16Gi[,nvidia.com/gpu=1,count=2,name=…,labels=…,taints=…]",
    help="A node, or several alike; repeat for more. Default: one node of this machine's own size.",
)
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="name=gpu,cpu=4,memory=16Gi,max=4[,min=0,delay=2s,…]",
    help="Nodes that the autoscaler may add.",
)
@click.option(
    "--base-load",
    default="",
    metavar="cpu=3050m,memory=2918400Ki[,limits.cpu=…]",
    help="Resources that system pods use from the start.",
)
@click.option(
    "--runtime",
    type=click.Choice(["process", "simulated"]),
    default=None,
    help="Run pods as real processes, or simulate them. Default: process.",
)
@click.option(
    "--sandbox",
    type=click.Choice(SANDBOXES),
    default=None,
    help="Isolation of pods: network namespaces, loopback addresses with mounts, or loopback addresses alone.",
)
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="NAME=TARGET",
    help="Run this image name with a known environment, such as ray, the directory of a Python environment (venv, uv, "
    "conda), or a requirements file, from which one is built once.",
)
@click.option(
    "--supply",
    type=click.Choice(["fit", "aggregate"]),
    default=None,
    help="Admit a gang when every pod has a node (default), or when the sums suffice, as MCAD.",
)
@click.option("--policy", default=None, help="Order of the queue: a shipped name or an import path. Default: priority.")
@click.option("--preemption", is_flag=True, default=None, help="Preempt gangs of lower priority.")
@set_option
@click.option(
    "--durability",
    type=click.Choice(["full", "normal"]),
    default=None,
    help="What survives a power loss: every acknowledged write (full, the default), or all but the last moments.",
)
@click.option("--repair", is_flag=True, help="First rebuild a database that an unclean stop left damaged.")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="The same choices from a YAML file.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the API server. Default: a free one, kept for the next start.",
)
@click.option(
    "--page-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the page. Default: a free one, kept for the next start.",
)
@click.option("--no-page", is_flag=True, help="Do not serve the page that `shoal open` shows.")
@click.option(
    "--audit-log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append every request and its answer to this file, as kube-apiserver does.",
)
@click.option("--no-kubeconfig", is_flag=True, help="Do not add this cluster to your kubeconfig.")
@click.option("--detach", is_flag=True, help="Return when the cluster is ready; `shoal down` stops it.")
def command(
    name: str,
    nodes: tuple[str, ...],
    pools: tuple[str, ...],
    base_load: str,
    runtime: RuntimeName | None,
    sandbox: str | None,
    images: tuple[str, ...],
    supply: str | None,
    policy: str | None,
    preemption: bool | None,
    chosen: tuple[str, ...],
    durability: str | None,
    repair: bool,
    config: Path | None,
    port: int,
    page_port: int,
    no_page: bool,
    audit_log: Path | None,
    no_kubeconfig: bool,
    detach: bool,
) -> None:
    """Start API server, controllers, scheduler and node agent on this machine. State of an earlier start is kept."""
    check_packages()
    with flag("--name"):
        home = Home(name)
    with flag("--config"):
        base = read_file(config) if config else LocalSettings() if nodes or pools or base_load else _remembered(home)
    settings = _settings(base, nodes, pools, base_load, runtime, sandbox, images)
    plain = {"durability": durability, "supply": supply, "policy": policy, "preemption": preemption}
    settings = msgspec.structs.replace(settings, **{name: value for name, value in plain.items() if value is not None})
    with flag("--config" if config and settings.gangs else "--set"):
        settings = msgspec.structs.replace(settings, gangs={**settings.gangs, **choices.read(chosen)})
        choices.wrapper_settings({}, settings.gangs)
    with flag("--policy" if policy or not config else "--config"):
        choices.check_policy(settings.policy)
    found = home.running()
    if found is not None:
        raise ShoalError(
            f"cluster {name} is already running (pid {found[0].pid}); stop it with: shoal down --name {name}"
        )
    _warn_if_larger(settings)
    prepare_images(settings.images)
    _warn_if_trusted(settings)
    home.create()
    if repair:
        _repair(home)
    if detach:
        _detach(home, no_kubeconfig)
        return
    page = None if no_page else page_port or home.last_port("page")
    space = _own_space(home, settings, port, page)  # before anything starts a thread
    asyncio.run(_run(home, settings, port, no_kubeconfig, space, audit_log, page, page_chosen=bool(page_port)))


def _own_space(home: Home, settings: LocalSettings, port: int, page_port: int | None) -> OwnSpace | None:
    """Namespaces of our own for a user without rights, where they are allowed and were not refused."""
    if settings.runtime == "simulated":
        return None
    chosen = machine.best_sandbox() if settings.sandbox == "auto" else settings.sandbox
    if chosen == "netns" and not machine.may_use_namespaces() and machine.may_have_own_namespaces():
        return _own_networks(home, port, page_port)
    if chosen == "mounts" and not machine.may_use_mounts() and machine.may_have_own_mounts():
        ownspace.enter_mounts(home.runtime / "pods")
    return None


def _own_networks(home: Home, port: int, page_port: int | None) -> OwnSpace:
    try:
        return ownspace.enter(home.runtime / "pods", port or home.last_port(), page_port)
    except OSError as error:
        if port:
            raise ShoalError(f"port {port} cannot be used: {error.strerror}; choose another with --port") from error
        return ownspace.enter(home.runtime / "pods", 0, page_port)


def _repair(home: Home) -> None:
    from shoal.local.apiserver.storage.repair import repair

    done = repair(home.api)
    click.echo(
        f"database rebuilt: {done.kept} objects kept, {done.unreadable} unreadable; the old file is {done.aside}",
        err=True,
    )


def _remembered(home: Home) -> LocalSettings:
    """What the last start chose: `shoal up` without a word about nodes resumes with the same ones."""
    try:
        return msgspec.convert(home.remembered().get("settings") or {}, LocalSettings)
    except msgspec.ValidationError:
        return LocalSettings()


def _settings(
    chosen: LocalSettings,
    nodes: tuple[str, ...],
    pools: tuple[str, ...],
    base_load: str,
    runtime: RuntimeName | None,
    sandbox: str | None,
    images: tuple[str, ...],
) -> LocalSettings:
    kind = runtime or chosen.runtime
    shapes = list(chosen.nodes)
    with flag("--node"):
        for text in nodes:
            shapes += parse_node(text, kind, len(shapes))
        check_names(msgspec.structs.replace(chosen, nodes=tuple(shapes)))
    with flag("--pool"):
        more = (*chosen.pools, *(parse_pool(text, kind) for text in pools))
        check_names(msgspec.structs.replace(chosen, pools=more))
    with flag("--base-load" if base_load else "--config"):
        load = parse_base_load(base_load) if base_load else chosen.base_load
        check_base_load(load, _first_node(shapes, more))
    with flag("--image"):
        mapped = {**chosen.images, **dict(parse_mapping(text) for text in images)}
    return msgspec.structs.replace(
        chosen,
        nodes=tuple(shapes),
        pools=more,
        base_load=load,
        runtime=kind,
        sandbox=sandbox or chosen.sandbox,
        images=mapped,
    )


def _first_node(shapes: list[NodeShape], pools: tuple[Pool, ...]) -> NodeShape | None:
    """The node that takes the base load; None when there is none at the start."""
    if shapes or pools:
        return min(shapes, key=lambda shape: shape.name, default=None)
    return NodeShape(name=DEFAULT_NODE, capacity=machine.capacity())


def _warn_if_larger(settings: LocalSettings) -> None:
    """Declared sizes are bookkeeping; say so when they exceed the machine."""
    real = [shape for shape in settings.nodes if shape.runtime == "process"]
    cpu = sum(quantity.amount("cpu", shape.capacity["cpu"]) for shape in real)
    memory = sum(quantity.amount("memory", shape.capacity["memory"]) for shape in real)
    if cpu > machine.cpu_count() * 1000 or memory > machine.memory_bytes():
        click.echo(
            f"warning: the nodes declare {cpu / 1000:g} cores and {memory >> 30} GiB, this machine has "
            f"{machine.cpu_count()} and {machine.memory_bytes() >> 30}; processes share what there is",
            err=True,
        )


def _warn_if_trusted(settings: LocalSettings) -> None:
    """Where nothing keeps pods from the cluster's credentials, the user must know."""
    if settings.runtime == "simulated" or views.best():
        return
    if settings.sandbox == "loopback" or machine.best_sandbox() == "loopback":
        click.echo(f"warning: {views.TRUSTED}", err=True)


async def _run(
    home: Home,
    settings: LocalSettings,
    port: int,
    no_kubeconfig: bool,
    space: OwnSpace | None = None,
    audit_log: Path | None = None,
    page_port: int | None = None,
    *,
    page_chosen: bool = False,
) -> None:
    from shoal.cli.cluster import LocalCluster, quiet_environment, spare_descriptors

    _log_to(home)
    spare_descriptors()
    quiet_environment()
    began = time.monotonic()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    cluster, started = LocalCluster(home, settings, space, audit_log, page_port), False
    try:
        started = await _started(cluster, port, stop)
        if not started:
            return
        was_shared = kubeconfigs.shared(kubeconfigs.user_file())
        added = kubeconfigs.add(home.kubeconfig, home.context) if not no_kubeconfig else None
        home.remember(kubeconfig=str(added or ""))  # `shoal down` may be typed where KUBECONFIG names another file
        home.remember(settings=msgspec.to_builtins(settings))
        home.write_running(port=cluster.port, ready=True)
        click.echo(
            f"cluster {home.name} is ready after {time.monotonic() - began:.1f} s: https://127.0.0.1:{cluster.port}"
        )
        click.echo(
            f"  kubectl --context {home.context} get nodes"
            if not no_kubeconfig
            else f"  kubectl --kubeconfig {home.kubeconfig} get nodes"
        )
        if cluster.page is not None:
            served = urlsplit(cluster.page.address).port
            if page_chosen and served != page_port:
                click.echo(f"warning: port {page_port} cannot be used for the page; another was taken", err=True)
            home.remember(page_port=served)
            click.echo(f"  shoal open{_named(home)}    the page, in your browser: {cluster.page.address}")
        if added is not None and was_shared:
            click.echo(f"  other users could read {added}; it now holds credentials, so only you may read it (0600)")
        await _status_line(cluster, stop)
        click.echo("stopping every pod …", err=True)
    finally:
        await cluster.stop(STOP_GRACE)
        if started:  # else they are those of another start, which may well be running
            home.forget_running()
            if not no_kubeconfig:
                kubeconfigs.remove(home.context)


def _named(home: Home) -> str:
    return "" if home.name == DEFAULT_NAME else f" --name {home.name}"


async def _started(cluster: LocalCluster, port: int, stop: asyncio.Event) -> bool:
    """Until it is ready; False when it is told to stop before that."""
    starting, stopping = asyncio.ensure_future(cluster.start(port)), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
        return starting.done()
    finally:
        for one in (starting, stopping):
            one.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)


async def _status_line(cluster: LocalCluster, stop: asyncio.Event) -> None:
    """One line, rewritten each second on a terminal; nothing without a terminal."""
    if not sys.stdout.isatty():
        await stop.wait()
        return
    while not stop.is_set():
        counts = cluster.counts()
        line = (
            f"nodes {counts['nodes']}  pods {counts['pods']}  running {counts['running']}  pending {counts['pending']}"
        )
        troubles = "".join(f"  ! {one}" for one in cluster.troubles())
        width = shutil.get_terminal_size().columns - 1
        click.echo(f"\r\x1b[K{f'{line}   (Ctrl-C stops){troubles}'[:width]}", nl=False)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 1.0)
    click.echo()


def _log_to(home: Home) -> None:
    logging.basicConfig(filename=home.log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _detach(home: Home, no_kubeconfig: bool) -> None:
    """Run the same command without --detach in a session of its own, and wait until it says that it is ready."""
    arguments = [one for one in sys.argv[1:] if one not in ("--detach", "--repair")]
    out = home.directory / "shoal.out"
    with out.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, "-c", "from shoal.cli.main import main; main()", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_PATIENCE
    while time.monotonic() < deadline:
        found = home.running()
        if found is not None and found[0].pid == child.pid:
            told = [line for line in out.read_text().splitlines() if not line.startswith("warning: ")]
            click.echo("\n".join(told))  # warnings were given by this process already
            return
        if child.poll() is not None:
            said = "\n".join(line for line in out.read_text().splitlines() if not line.startswith("warning: "))
            raise ShoalError(f"the cluster did not start: {said.strip().removeprefix('error: ')}")
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGTERM)
    raise ShoalError(f"the cluster was not ready after {START_PATIENCE:g} s; see {home.log}")
