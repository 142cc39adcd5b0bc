"""`shoal open`: the page in a browser, logged in as the user of the chosen context.

A cluster of `shoal up` and a controller with `--page-port` serve the page themselves; for any other cluster this
process serves it, with the user's own credentials. The login goes round as a code that works once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import webbrowser
from pathlib import Path
from urllib.parse import quote

import click
import msgspec

from shoal.cli import choices
from shoal.cli.reach import cluster_options, reach
from shoal.errors import ShoalError
from shoal.kube.client import Client, refusal
from shoal.kube.errors import ApiError
from shoal.kube.http import HttpTransport
from shoal.kube.transport import Request

LOGIN_SECONDS = 30.0


@click.command(
    name="open",
    epilog="\b\nExamples:\n  shoal open\n  shoal open --namespace team-a --no-browser"
    "\n  shoal open --url https://shoal.example   the page of a controller, with your own token",
)
@click.option("-n", "--namespace", default="", help="Show this namespace first. Default: all that you may list.")
@click.option("--url", default="", callback=choices.page_address, help="Address of a page that a controller serves.")
@click.option("--no-browser", is_flag=True, help="Only print the address, which logs in once within two minutes.")
@cluster_options
def command(
    namespace: str, url: str, no_browser: bool, kubeconfig: Path | None, context: str | None, name: str | None
) -> None:
    """Open the page: overview, nodes, queues, what waits and why, the last day, and each gang with its log.

    You see there what your own rights let you read. Without a page that the cluster serves, this command serves it on
    this machine until it is interrupted.
    """
    asyncio.run(_open(namespace, url, no_browser, (kubeconfig, context, name)))


async def _open(namespace: str, url: str, no_browser: bool, where: tuple[Path | None, str | None, str | None]) -> None:
    async with reach(*where) as client:
        if url:
            where_first = f"&namespace={quote(namespace, safe='')}" if namespace else ""
            _show(await _at_controller(client, url) + where_first, no_browser)
            return
        address = await _at_cluster(client, namespace)
        if address:
            _show(address, no_browser)
            return
        await _here(client, namespace, no_browser)


async def _at_cluster(client: Client, namespace: str) -> str:
    """The address that the embedded API server gives its users; empty for any other server."""
    from shoal.cli.page import LOGIN_PATH

    try:
        answer = await client.request("POST", LOGIN_PATH, query={"namespace": namespace} if namespace else {})
        return str(msgspec.json.decode(answer.body)["address"])
    except ApiError as error:
        if error.code in (403, 404, 405):
            return ""
        raise
    except (msgspec.MsgspecError, KeyError):
        return ""


async def _at_controller(client: Client, url: str) -> str:
    token = await client.transport.bearer() if isinstance(client.transport, HttpTransport) else ""
    if not token:
        raise ShoalError(
            "your kubeconfig has no token to log in with, only a certificate; without --url the page is served here"
        )
    page = HttpTransport(url)
    try:
        request = Request(method="POST", path="/login/token", headers={"authorization": f"Bearer {token}"})
        answer = await page.send(request, timeout=LOGIN_SECONDS)
    finally:
        await page.close()
    if answer.status >= 300:
        try:
            words = str(msgspec.json.decode(answer.body)["error"])
        except (msgspec.MsgspecError, KeyError, TypeError):
            words = str(refusal(answer.status, answer.headers, answer.body))
        raise ShoalError(f"{url} does not log you in: {words}")
    return str(msgspec.json.decode(answer.body)["address"])


async def _here(client: Client, namespace: str, no_browser: bool) -> None:
    from shoal.cli.page import user_of
    from shoal.web import PageServer
    from shoal.web.sessions import Visitor

    page = PageServer()
    await page.start()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        _show(page.invite(Visitor(user=await user_of(client), client=client, namespace=namespace)), no_browser)
        click.echo("the page is served until you press Ctrl-C", err=True)
        await stop.wait()
    finally:
        await page.stop()


def _show(address: str, no_browser: bool) -> None:
    click.echo(address)
    if not no_browser and _has_browser():
        webbrowser.open(_letter(address).as_uri())


def _has_browser() -> bool:
    return sys.platform == "darwin" or any(os.environ.get(one) for one in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def _letter(address: str) -> Path:
    """A file of the user's own that leads to the address: arguments of a browser can be read by all of the machine."""
    from shoal.local.home import default_root

    directory = default_root()
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / ".open.html"
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        target = msgspec.json.encode(address).decode()
        file.write(f'<!doctype html><meta charset="utf-8"><script>location.replace({target})</script>')
    return path
