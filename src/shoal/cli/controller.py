"""`shoal controller`: Shoal's controllers against any Kubernetes cluster, one leader at a time.

The composition root for real clusters, as `up` is for one machine. Standbys keep nothing but the lease in view; a
leader that cannot renew stops writing before its lease ends, and everything it started ends with its term.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal import __version__
from shoal.cli import agents, choices
from shoal.cli.choices import flag, set_option
from shoal.cli.event_loop import run_gathering
from shoal.cli.parts import PARTS, Part, chosen_parts, lead_with, parts_named
from shoal.cli.reach import reach
from shoal.cli.readiness import Readiness
from shoal.kube import logs, tracing
from shoal.kube.client import Client
from shoal.kube.health import HealthServer, request_samples
from shoal.kube.http import HttpTransport
from shoal.kube.rate import RequestRate
from shoal.kube.scraping import ScrapeReview
from shoal.kube.writes import Writes

if TYPE_CHECKING:
    from shoal.cli.visibility import Visibility
    from shoal.controllers.appwrapper import AppWrapperSettings
    from shoal.controllers.multicluster import ClusterSettings, HubPlaces
    from shoal.controllers.queues import QueueSettings
    from shoal.controllers.ray import RaySettings
    from shoal.kube.logs import LogFormat
    from shoal.web import PageServer

log = logging.getLogger("shoal")


@click.command(
    epilog="\b\nExamples:\n  shoal controller --kubeconfig ~/.kube/config\n  shoal controller --only appwrapper"
)
@click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="Default: as kubectl, or the pod's service account."
)
@click.option("--context", help="A context of that kubeconfig.")
@click.option(
    "--only",
    default=",".join(PARTS),
    show_default=True,
    metavar="PART,…",
    help="Which controllers to run; leave out ray where KubeRay runs, and queues where Kueue runs. "
    "Add clusters to give queued gangs to other clusters.",
)
@click.option(
    "--supply",
    type=click.Choice(["fit", "aggregate"]),
    default="fit",
    show_default=True,
    help="Admit when every pod has a node, or when the cluster-wide sums suffice (MCAD).",
)
@click.option("--policy", default="priority", show_default=True, help="Order of the queue; a name or an import path.")
@click.option("--preemption", is_flag=True, help="Preempt gangs of lower priority.")
@click.option(
    "--quota",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Apply quota trees: as soon as one exists, always, or never.",
)
@click.option(
    "--trust-unstamped",
    is_flag=True,
    help="Dispatch AppWrappers whose creator no admission recorded, with Shoal's own rights.",
)
@click.option(
    "--history",
    default="memory",
    show_default=True,
    envvar="SHOAL_HISTORY",
    metavar="memory|none|sqlite:///PATH|postgresql://…",
    help="Where waits and runs are kept for `shoal history`. An address with a password belongs into SHOAL_HISTORY.",
)
@click.option(
    "--keep-logs/--no-keep-logs",
    default=True,
    show_default=True,
    help="Keep the end of gangs' logs in the history, for `shoal logs` after their pods are gone.",
)
@click.option(
    "--notify-allow",
    multiple=True,
    metavar="URL",
    help="Notices may go to addresses below this one; repeat for more. SHOAL_NOTIFY_KEY signs them.",
)
@click.option(
    "--dispatcher",
    envvar="DISPATCHER_MODE",
    is_flag=False,
    flag_value="true",
    metavar="[true|false]",
    default="false",
    callback=lambda context, option, value: str(value).lower() == "true",
    help="As MCAD: give AppWrappers of v1beta1 to the clusters of --agentconfigs. Environment: DISPATCHER_MODE.",
)
@click.option(
    "--agentconfigs",
    envvar="DISPATCHER_AGENT_CONFIGS",
    default="",
    metavar="FILE:MODE,…",
    help="Kubeconfigs of those clusters, each with uncordon or cordon. Environment: DISPATCHER_AGENT_CONFIGS.",
)
@set_option
@choices.kueue_config_option
@click.option("--webhooks", is_flag=True, help="Answer admission webhooks, as `shoal install` sets them up.")
@click.option(
    "--webhook-url",
    default="",
    callback=choices.webhook_address,
    help="URL at which the API server calls this process. Default: through the Service.",
)
@click.option(
    "--webhook-secret",
    default="",
    help="Secret with tls.crt and tls.key that another controller, such as cert-manager, keeps. Default: the leader "
    "makes and renews one, and tells the API server.",
)
@click.option(
    "--visibility",
    is_flag=True,
    help="Answer Kueue's visibility API (positions in queues) and, with the part clusters, requests about what runs in "
    "members, as `shoal install --visibility` sets it up; needs --webhooks.",
)
@click.option(
    "--watch-namespace",
    "watched",
    callback=choices.namespaces,
    help="Look after these namespaces alone, comma-separated. Nodes and pods are read everywhere: they take room.",
)
@click.option(
    "--health-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Serve /healthz, /readyz and /metrics on this port.",
)
@click.option(
    "--open-metrics",
    is_flag=True,
    help="Serve /metrics without a token. Default: to users that may get the path /metrics.",
)
@click.option(
    "--kube-api-qps",
    type=click.FloatRange(min=0),
    default=0,
    help="Requests a second that the leader sends to the API server. Default: no limit but 64 writes at a time.",
)
@click.option(
    "--kube-api-burst",
    type=click.IntRange(min=0),
    default=0,
    help="Requests that it sends at once after a rest. Default: twice --kube-api-qps.",
)
@click.option(
    "--traces",
    envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
    default="",
    metavar="URL",
    help="Send OpenTelemetry traces to this collector, by OTLP over HTTP. Environment: OTEL_EXPORTER_OTLP_ENDPOINT; "
    "OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE and OTEL_TRACES_SAMPLER count, too.",
)
@click.option(
    "--page-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Serve the page on this port: of loopback, for kubectl port-forward, unless --page-url is given.",
)
@click.option(
    "--page-url",
    default="",
    callback=choices.page_address,
    help="https://HOST at which a proxy that ends TLS serves the page; it then listens on all addresses.",
)
@click.option(
    "--namespace",
    default="shoal-system",
    show_default=True,
    callback=choices.dns_label,
    help="Namespace of the leader election lease.",
)
@click.option(
    "--lease-duration",
    type=click.FloatRange(5, 600),
    default=15,
    show_default=True,
    metavar="SECONDS",
    help="Another replica leads after so long without a renewal; longer where the API server is very busy at times.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines for people, or one JSON object a line with the object's key and the id of the decision.",
)
@click.option("-v", "--verbose", is_flag=True)
def command(
    kubeconfig: Path | None,
    context: str | None,
    only: str,
    supply: str,
    policy: str,
    preemption: bool,
    quota: str,
    trust_unstamped: bool,
    history: str,
    keep_logs: bool,
    notify_allow: tuple[str, ...],
    dispatcher: bool,
    agentconfigs: str,
    chosen: tuple[str, ...],
    kueue_config: Path | None,
    webhooks: bool,
    webhook_url: str,
    webhook_secret: str,
    visibility: bool,
    watched: tuple[str, ...],
    health_port: int,
    open_metrics: bool,
    kube_api_qps: float,
    kube_api_burst: int,
    traces: str,
    page_port: int,
    page_url: str,
    namespace: str,
    lease_duration: float,
    log_format: LogFormat,
    verbose: bool,
) -> None:
    """Run Shoal's controllers until stopped."""
    logs.configure(log_format, verbose=verbose)
    if traces:
        with flag("--traces"):
            click.get_current_context().call_on_close(tracing.configure(traces, __version__))
    with flag("--only"):
        names = chosen_parts(only)
    from shoal.controllers.planning.history.notices import from_environment
    from shoal.controllers.planning.history.store import HistoryStore

    options = {"supply": supply, "policy": policy, "preemption": preemption, "quota": quota}
    rights = {"trust_unstamped": trust_unstamped, "stamps": "webhook", "record_namespace": namespace}
    with flag("--kueue-config"):
        of_kueue = choices.of_kueue(kueue_config)
    with flag("--set"):
        settings = {**of_kueue.settings, **choices.read(chosen)}
        wrappers = choices.wrapper_settings({**options, **rights}, settings)
    with flag("--policy" if wrappers.policy == policy else "--set"):
        choices.check_policy(wrappers.policy)
    with flag("--history"):
        store = HistoryStore(history, keep_logs=keep_logs) if history != "none" else None
    with flag("--notify-allow"):
        notices = from_environment(os.environ, notify_allow)
    if not kube_api_qps:
        kube_api_qps, kube_api_burst = of_kueue.qps, kube_api_burst or of_kueue.burst
    webhooks = webhooks or bool(webhook_url)
    if visibility and (not webhooks or "queues" not in names):
        raise click.UsageError("--visibility needs --webhooks and the controller queues")
    health = HealthServer()
    of_ray = choices.ray_settings(os.environ, settings)
    readiness = Readiness(health)
    in_queues = choices.queue_settings({}, settings)
    with flag("--set"):
        choices.use_job_kinds(in_queues)
        choices.use_frameworks(in_queues)
        trusted = wrappers.trust_unstamped
        hub = choices.cluster_settings(
            {"namespace": namespace, "trust_unstamped": trusted, "stamps": "webhook"}, settings
        )
    members = agents_of(dispatcher, agentconfigs, hub)
    if dispatcher:
        from msgspec import structs

        names = (*names, "clusters") if "clusters" not in names else names
        hub = structs.replace(hub, app_wrappers=hub.app_wrappers or agents.CONFIG)
    places = places_of(hub) if "clusters" in names else None
    visible = _aggregated("" if webhook_url else os.environ.get("POD_IP", ""), places) if visibility else None
    parts = parts_named(names, wrappers, in_queues, of_ray, health, readiness, store, places, notices, visible)
    with flag("--watch-namespace"):
        choices.check_limits(watched, names)
    if "appwrapper" in names or "queues" in names:
        from shoal.controllers.multicluster import HubLeases

        parts["hub leases"] = lambda writes: HubLeases(writes.client, namespace, writes=writes).run()
    if "clusters" in names:
        from shoal.controllers.multicluster import ClusterController

        async def run_clusters(writes: Writes) -> None:
            await agents.register(writes.client, members, namespace)
            await ClusterController(writes.client, hub, writes=writes, places=places).run()

        parts["clusters"] = run_clusters
    run_gathering(
        _run(
            kubeconfig,
            context,
            namespace,
            lease_duration,
            parts,
            webhooks,
            webhook_url,
            webhook_secret,
            watched,
            wrappers,
            hub.unserved_kinds,
            in_queues,
            of_ray,
            health,
            health_port,
            readiness,
            open_metrics,
            RequestRate(kube_api_qps, kube_api_burst or round(2 * kube_api_qps)) if kube_api_qps else None,
            page_port,
            page_url,
            visible,
        ),
    )


def agents_of(dispatcher: bool, configs: str, hub: ClusterSettings) -> tuple[agents.AgentConfig, ...]:
    """The clusters that MCAD's options name; without one a dispatcher could send nothing anywhere."""
    with flag("--agentconfigs"):
        found = agents.read(configs) if dispatcher else ()
    if dispatcher and not found and not hub.app_wrappers:
        raise click.UsageError("--dispatcher needs --agentconfigs, or --set clusters.app_wrappers=MULTIKUEUECONFIG")
    return found


def places_of(hub: ClusterSettings) -> HubPlaces:
    """Where gangs go that other clusters may run."""
    from shoal.controllers.multicluster import HubPlaces

    return HubPlaces(hub)


def _aggregated(address: str, places: HubPlaces | None) -> Visibility:
    """Positions in queues and, at a hub, what runs in other clusters."""
    from shoal.cli.member_access import MemberAccess
    from shoal.cli.visibility import Visibility

    return Visibility(address, MemberAccess(places) if places is not None else None)


async def _run(
    kubeconfig: Path | None,
    context: str | None,
    namespace: str,
    lease_duration: float,
    parts: dict[str, Part],
    webhooks: bool,
    webhook_url: str,
    webhook_secret: str,
    watched: tuple[str, ...],
    wrappers: AppWrapperSettings,
    unserved: tuple[str, ...],
    in_queues: QueueSettings,
    of_ray: RaySettings,
    health: HealthServer,
    health_port: int,
    readiness: Readiness,
    open_metrics: bool,
    rate: RequestRate | None,
    page_port: int,
    page_url: str,
    visible: Visibility | None,
) -> None:
    """Without a `webhook_url` the API server calls the webhooks through the Service."""
    from shoal.kube.lease import Leadership, LeaseSettings

    identity = f"{os.uname().nodename}_{os.getpid()}"

    @asynccontextmanager
    async def nearby() -> AsyncIterator[Client]:
        async with reach(kubeconfig, context, None) as client:
            yield Client(client.transport, manager="shoal")

    async with reach(kubeconfig, context, None) as client:
        client = Client(client.transport, manager="shoal", namespaces=watched)
        requests = client.transport.requests if isinstance(client.transport, HttpTransport) else {}
        health.add_metrics(lambda: request_samples(requests))
        health.review = None if open_metrics else ScrapeReview(client)
        lease = LeaseSettings(duration=lease_duration)
        leadership = Leadership(client, "shoal-controller", namespace, identity, settings=lease, nearby=nearby)
        readiness.stands_by(leadership)
        admission = None
        if webhooks:
            from shoal.cli.admission import WebhookReplica, certificate_hosts

            admission = WebhookReplica(
                client,
                namespace,
                certificate_hosts(webhook_url),
                of_ray,
                as_creator=wrappers.create_as_creator,
                supply=wrappers.supply,
                unserved=unserved,
                health=health,
                in_queues=in_queues,
                secret=webhook_secret,
                visible=visible,
            )
            keep = admission.keep
            if not webhook_secret:
                parts = {"webhook certificate": lambda writes: keep(writes.client), **parts}
            health.require("webhook", admission.trouble)
            if visible is not None:
                shown = visible
                parts = {"visibility": lambda writes: shown.announce(writes, namespace), **parts}

        async def everything() -> None:
            try:
                async with asyncio.TaskGroup() as tasks:
                    if admission is not None:
                        tasks.create_task(admission.run(*_listening(webhook_url)))
                    tasks.create_task(lead_with(parts, leadership, rate))
            finally:
                counts = sorted(requests.items(), key=lambda one: -one[1])
                asked = ", ".join(f"{count} {verb} {resource}" for (verb, resource), count in counts)
                log.info("requests to the API server: %s", asked or "none")

        if health_port:
            await health.start("0.0.0.0", health_port)
        page = await _page(page_port, page_url, kubeconfig, context) if page_port else None
        try:
            await _until_stopped(everything())
        finally:
            await health.stop()
            if page is not None:
                await page.stop()


async def _page(port: int, url: str, kubeconfig: Path | None, context: str | None) -> PageServer:
    """The page, in every replica: it asks the API server with each visitor's own token and leads nothing."""
    from shoal.cli.page import by_token
    from shoal.kube.kubeconfig import load_with_token
    from shoal.web import PageServer, PageSettings

    visitors = by_token(lambda token: load_with_token(token, kubeconfig, context))
    page = PageServer(PageSettings(url=url), by_token=visitors)
    await page.start("0.0.0.0" if url else "127.0.0.1", port)
    log.info("the page is served on port %s; open it with: shoal open --url %s", port, page.address)
    return page


def _listening(webhook_url: str) -> tuple[str, int]:
    """All addresses for calls through the Service; for a URL, its port, and its host where that is this machine's."""
    from urllib.parse import urlsplit

    from shoal.cli.admission import PORT

    if not webhook_url:
        return "0.0.0.0", PORT
    parts = urlsplit(webhook_url)
    local = parts.hostname in ("127.0.0.1", "localhost", "::1")
    return (parts.hostname or "127.0.0.1") if local else "0.0.0.0", parts.port or 443


async def _until_stopped(running: Awaitable[None]) -> None:
    """SIGTERM and SIGINT end it in order: writes first, then the lease is given back."""
    task = asyncio.ensure_future(running)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        log.info("stopped")
