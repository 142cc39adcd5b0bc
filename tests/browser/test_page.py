"""The page with 500 gangs and 200 nodes: quick, live, readable for all, and the pictures of the documentation.

Times are measured and printed; the bounds that are held are generous, for machines that others load.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import Browser

from shoal.api import kinds
from shoal.web import PageServer
from tests.browser.conftest import Look, look
from tests.browser.scene import GANGS, NODES, Scene
from tests.cluster import Cluster, running

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
LARGEST_PICTURE = 150 << 10
SLOWEST = 10.0
"""Seconds: what takes one on a quiet machine."""
VIEWS = {
    "overview": "/",
    "waiting": "/waiting?namespace=vision",
    "nodes": "/nodes",
    "queues": "/queues",
    "timeline": "/timeline",
}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running(with_builtin=False) as started:
        await Scene(started.server).build()
        yield started


@pytest.fixture
async def small() -> AsyncIterator[Cluster]:
    """Every kind of row; axe-core looks at each element many times."""
    async with running(with_builtin=False) as started:
        await Scene(started.server, nodes=10, gangs=24).build()
        yield started


async def rows(window: Look, selector: str, at_least: int) -> None:
    await window.page.wait_for_function(
        "([selector, n]) => document.querySelectorAll(selector).length >= n", arg=[selector, at_least]
    )


async def test_500_gangs_and_200_nodes_are_there_soon_and_a_change_is_seen_soon(
    browser: Browser, served: PageServer, cluster: Cluster
) -> None:
    window = await look(browser, served, cluster.client)
    await rows(window, "tbody tr", GANGS)
    await window.to("/")  # the board lives; a reload is what a visitor waits for
    await rows(window, "tbody tr", GANGS)
    shown = await window.page.evaluate("performance.getEntriesByName('shoal-updated')[0].startTime / 1000")
    await window.page.fill("#q", "train-001 ")
    await rows(window, "tbody tr", 1)
    await window.page.evaluate(
        """() => { window.seen = null; new MutationObserver(() => {
             if (document.body.innerText.includes('made-just-now')) window.seen ??= Date.now();
           }).observe(document.body, {subtree: true, childList: true, characterData: true}); }"""
    )
    await window.page.fill("#q", "")
    began = await window.page.evaluate("Date.now()")
    job = {"metadata": {"name": "made-just-now"}, "spec": {"entrypoint": "true", "rayClusterSpec": _SPEC}}
    await cluster.create(kinds.RAY_JOB, {"apiVersion": "ray.io/v1", "kind": "RayJob", **job})
    await window.page.wait_for_function("() => window.seen")
    changed = (await window.page.evaluate("window.seen") - began) / 1000
    await window.to("/nodes")
    await rows(window, "button.node", NODES)
    nodes = await window.page.evaluate("performance.getEntriesByName('shoal-updated')[0].startTime / 1000")
    print(f"\n{GANGS} gangs after {shown:.2f} s, {NODES} nodes after {nodes:.2f} s, a change after {changed:.2f} s")
    assert shown < SLOWEST and nodes < SLOWEST and changed < SLOWEST
    assert window.troubles == []


_SPEC = {
    "headGroupSpec": {
        "rayStartParams": {},
        "template": {"spec": {"containers": [{"name": "ray-head", "image": "rayproject/ray:2.60.0"}]}},
    }
}


async def test_filters_and_state_are_in_the_address(browser: Browser, served: PageServer, cluster: Cluster) -> None:
    window = await look(browser, served, cluster.client)
    await rows(window, "tbody tr", GANGS)
    await window.page.click("button.chip.failed")
    await window.page.fill("#q", "recsys")
    await window.page.wait_for_function(
        "location.search.includes('q=recsys') && location.search.includes('stage=failed')"
    )
    address = window.page.url
    found = await window.page.locator("tbody tr").count()
    assert 0 < found < GANGS
    await window.to("/queues")
    await window.until("Cohort research")
    await window.to(address)
    await rows(window, "tbody tr", found)
    assert await window.page.locator("tbody tr").count() == found
    assert await window.page.get_attribute("button.chip.failed", "aria-pressed") == "true"
    first = window.page.locator("tbody tr a").first
    name = await first.inner_text()
    await first.focus()
    await window.page.keyboard.press("Enter")  # no mouse needed
    await window.until(name, "h1")
    await window.until("exit code 1", ".head")
    await window.page.go_back()
    await rows(window, "tbody tr", found)
    assert window.page.url == address


async def test_what_users_wrote_stays_text(browser: Browser, served: PageServer, cluster: Cluster) -> None:
    window = await look(browser, served, cluster.client)
    attack = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    spec = {"entrypoint": attack, "rayClusterSpec": _SPEC}
    job = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "odd"}, "spec": spec}
    await cluster.create(kinds.RAY_JOB, job)
    failed = {"status": {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "message": attack}}
    await cluster.client.patch(kinds.RAY_JOB, "odd", "default", failed, subresource="status")
    await window.to("/?q=odd")
    await window.until("<img src=x")
    await window.page.click("tbody a")
    await window.until("<script>")
    assert "taken" not in await window.page.title()
    assert await window.page.locator("main img, main script").count() == 0
    assert window.troubles == []


@pytest.mark.parametrize("dark, width", [(False, 1280), (True, 390)], ids=["light", "dark phone"])
async def test_axe_finds_nothing_serious(
    browser: Browser, served: PageServer, small: Cluster, dark: bool, width: int
) -> None:
    window = await look(browser, served, small.client, dark=dark, width=width)
    found = []
    for name, path in {**VIEWS, "chosen node": "/nodes?node=h100-002", "gang": await gang_path(window)}.items():
        await window.to(path)
        await ready(window, name)
        found += [f"{name}: {one}" for one in await serious(window)]
        wide = await window.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{name} is {wide} pixels wider than the window"
    await window.page.click("#logout")
    await window.until("Log in", "h1")
    found += [f"login: {one}" for one in await serious(window)]
    assert found == []


async def gang_path(window: Look) -> str:
    await window.to("/?stage=running")
    await rows(window, "tbody tr a", 3)
    return str(await window.page.locator("tbody tr a").first.get_attribute("href"))


async def ready(window: Look, name: str) -> None:
    await window.page.wait_for_function("() => document.querySelector('#link').innerText === 'live'")
    wanted = {
        "overview": "tbody tr",
        "waiting": ".line li",
        "queues": ".queue",
        "timeline": ".gantt li",
        "gang": "#pods",
    }
    await rows(window, wanted.get(name, "button.node"), 1)


async def serious(window: Look) -> list[str]:
    """What axe-core calls serious or critical. It is run from outside the page's policy, as a reader's own tool is."""
    await window.page.evaluate(AXE_SCRIPT)
    told = await window.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:200]}"
        for one in told["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:3]
    ]


async def test_the_pictures_of_the_documentation(browser: Browser, served: PageServer, cluster: Cluster) -> None:
    """Taken again with PICTURES=1; else only that each can be, is there, and small."""
    cluster.start(Scene(cluster.server).answer(cluster.client))
    window = await look(browser, served, cluster.client, width=1120, height=640)
    for name, path in {**VIEWS, "gang": await gang_path(window)}.items():
        await window.to(path)
        await ready(window, name)
        if name == "waiting":
            await window.until("position 4 of")
        file = PICTURES / f"page-{name}.png"
        taken = await window.page.screenshot(animations="disabled")
        assert taken.startswith(b"\x89PNG")
        if os.environ.get("PICTURES"):
            file.write_bytes(taken)
        assert file.stat().st_size < LARGEST_PICTURE, f"{file} is too large for a page of text"
