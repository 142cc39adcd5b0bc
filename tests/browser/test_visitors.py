"""What an ordinary user sees, and what a dashboard that means harm cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.web import PageServer, guard
from tests.browser.conftest import Look, look
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.unit.cli.test_people import bind
from tests.unit.queues.build import condition, job, local_queue, make, name_of, true
from tests.unit.queues.conftest import cluster, quiet

__all__ = ["cluster", "quiet"]


async def test_an_ordinary_user_sees_counts_not_names(browser: Browser, served: PageServer, cluster: Cluster) -> None:
    await cluster.client.create(kinds.NAMESPACE, {"metadata": {"name": "theirs"}})
    await make(cluster, {**local_queue(), "metadata": {"name": "other-queue", "namespace": "theirs"}})
    for name, cpu in (("secret-holder", "3"), ("secret-waiter", "4")):
        hidden = job(name, cpu=cpu, queue="other-queue")
        hidden["metadata"]["namespace"] = "theirs"
        (made,) = await make(cluster, hidden)
        wanted = true("Admitted") if name == "secret-holder" else lambda one: bool(condition(one, "QuotaReserved"))
        await cluster.until(kinds.WORKLOAD, name_of(made), wanted, "theirs")
    await make(cluster, job("mine", cpu="2"))
    ann = await bind(cluster, "ann", "edit", "default")
    window = await look(browser, served, ann, user="ann")
    await window.until("You may not list the gangs of all namespaces")
    await window.page.fill("#pick", "default")
    await window.page.keyboard.press("Enter")
    await window.until("mine")
    seen = await window.text()
    await window.to("/waiting?namespace=default")
    await window.until("of 2")
    await window.until("1 more gang")
    seen += await window.text()
    await window.page.click(".line a")
    await window.until("1 gang that you may not read")
    seen += await window.text()
    for view in ("/nodes", "/queues", "/timeline"):
        await window.to(f"{view}?namespace=default")
        await window.until("You may not list" if view != "/timeline" else "mine")
        seen += await window.text()
    assert "secret" not in seen
    assert window.troubles == []


HOSTILE = b"""<!doctype html><html><head></head><body><p id="said">begun</p><script>
(async () => {
  const told = [];
  try { told.push('cookie ' + document.cookie); } catch (error) { told.push('no cookie'); }
  told.push('stored ' + localStorage.getItem('shoal-key'));
  try {
    const headers = {'X-Shoal-Key': localStorage.getItem('shoal-key')};
    const answer = await fetch('/data/me', {credentials: 'include', headers});
    told.push('read ' + await answer.text());
  } catch (error) { told.push('not read'); }
  try { told.push('own ' + await (await fetch('api/version')).text()); } catch (error) { told.push('own not read'); }
  document.getElementById('said').textContent = told.join('; ') + '; done';
})();
</script></body></html>"""


class HostileHead:
    """A Ray head whose dashboard is somebody's own program; what it was asked is kept."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def connect(self, pod: Json, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head)
        body = HOSTILE if head.startswith("GET / ") else b"ray 2.60"
        kind = b"text/html" if body is HOSTILE else b"text/plain"
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\nset-cookie: shoal_page=x\r\n\r\n"
            % (kind, len(body))
        )
        writer.write(body)
        await writer.drain()
        writer.close()

    async def start(self) -> HostileHead:
        self._server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def stop(self) -> None:
        self._server.close()


@pytest.fixture
async def head() -> AsyncIterator[HostileHead]:
    started = await HostileHead().start()
    yield started
    await started.stop()


async def with_dashboard(cluster: Cluster) -> None:
    """A Ray cluster that is ready, with its head and its token."""
    template = {"spec": {"containers": [{"name": "ray-head", "image": "rayproject/ray:2.60.0"}]}}
    spec = {"rayVersion": "2.60.0", "headGroupSpec": {"rayStartParams": {}, "template": template}}
    body = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "theirs"}, "spec": spec}
    made = await cluster.create(kinds.RAY_CLUSTER, body)
    owner = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "name": "theirs",
        "uid": made["metadata"]["uid"],
        "controller": True,
    }
    labels = {"ray.io/cluster": "theirs", "ray.io/node-type": "head"}
    pod = {"metadata": {"name": "theirs-head", "labels": labels, "ownerReferences": [owner]}, **template}
    await cluster.create(kinds.POD, pod)
    await cluster.client.patch(
        kinds.POD, "theirs-head", "default", {"status": {"phase": "Running"}}, subresource="status"
    )
    ready = {"status": {"state": "ready", "head": {"podIP": "10.0.0.1"}}}
    await cluster.client.patch(kinds.RAY_CLUSTER, "theirs", "default", ready, subresource="status")


def _same_origin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guard, "FOREIGN_POLICY", "sandbox allow-scripts allow-same-origin")
    from shoal.web import ray_dashboard

    patch.setattr(ray_dashboard, "SHIM", b"")


@proven(without=_same_origin)
async def test_f326_a_dashboard_runs_without_the_visitors_login(browser: Browser, head: HostileHead) -> None:
    """F326: a tenant's Ray head serves a program of their own instead of Ray's dashboard, and an administrator opens it
    from the page. Holds: it has no origin, reads neither cookie nor key nor any answer of the page, and still works."""
    server = PageServer(connect=head.connect)
    await server.start()
    try:
        async with running(with_builtin=False) as cluster:
            await with_dashboard(cluster)
            window = await look(browser, server, cluster.client)
            opened = await dashboard(window)
            said = await opened.text("body")
            assert "own ray 2.60" in said
            assert "not read" in said and "system:admin" not in said and "stored null" in said
            assert "shoal_page" not in said
            assert not any("shoal_page" in one or "x-shoal-key" in one.lower() for one in head.asked)
            key = await window.page.evaluate("localStorage.getItem('shoal-key')")
            assert key and key not in said
    finally:
        await server.stop()


async def dashboard(window: Look) -> Look:
    """Click on it, and look at the tab that opens."""
    await window.to("/gang?kind=raycluster.ray.io&namespace=default&name=theirs")
    async with window.page.expect_popup() as popup:
        await window.page.get_by_role("button", name="Ray dashboard").click()
    opened = Look(await popup.value, window.server)
    await opened.until("done", "body")
    return opened


async def test_a_dashboard_needs_the_right_to_the_pods_and_closes_with_the_session(
    browser: Browser, head: HostileHead
) -> None:
    server = PageServer(connect=head.connect)
    await server.start()
    try:
        async with running(with_builtin=False) as cluster:
            await with_dashboard(cluster)
            viewer = await bind(cluster, "vera", "view", "default")
            window = await look(browser, server, viewer, user="vera")
            await window.to("/gang?kind=raycluster.ray.io&namespace=default&name=theirs")
            await window.page.get_by_role("button", name="Ray dashboard").click()
            await window.until("you may not create pods/portforward")
            assert head.asked == []
            other = await look(browser, server, cluster.client)
            opened = await dashboard(other)
            await other.page.click("#logout")
            await other.until("Log in", "h1")
            await opened.page.reload()
            await opened.until("this dashboard is closed", "body")
    finally:
        await server.stop()
