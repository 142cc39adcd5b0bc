"""The page with 500 gangs and 200 nodes: quick, live, readable for all, and the pictures of the documentation.

A bound on time is held by the best of a few tries: what the page itself takes is in each of them, what other work on
the machine adds is not.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import Browser

from shoal.api import kinds
from shoal.web import PageServer, files, guard
from shoal.web.sessions import Visitor
from tests.browser.conftest import Look, look
from tests.browser.scene import GANGS, NODES, Scene
from tests.cluster import Cluster, running
from tests.faults import proven

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
LARGEST_PICTURE = 150 << 10
SLOWEST = 1.0
"""Seconds until a visitor can use a view, and until a change is seen."""
TRIES = 10
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


async def best(measure: Callable[[], Awaitable[float]]) -> float:
    """Seconds of the quickest try; the first that is quick enough is the last."""
    found = [await measure()]
    while min(found) > SLOWEST and len(found) < TRIES:
        found.append(await measure())
    return min(found)


RESPONDS = """() => new Promise((done) => { const chip = document.querySelector('button.chip.failed');
  chip.addEventListener('click', () => requestAnimationFrame(() => requestAnimationFrame(
    () => done(performance.now() / 1000)))); chip.click(); })"""
"""When the page, since it was asked for, has rows and answers a click with another picture."""


async def test_500_gangs_and_200_nodes_can_be_used_within_a_second(
    browser: Browser, served: PageServer, cluster: Cluster
) -> None:
    window = await look(browser, served, cluster.client)

    async def gangs() -> float:
        await window.to("/")
        await rows(window, "tbody tr", GANGS)
        assert await window.page.locator("tbody tr").count() == GANGS
        return float(await window.page.evaluate(RESPONDS))

    async def nodes() -> float:
        await window.to("/nodes")
        await rows(window, "button.node", NODES)
        return float(await window.page.evaluate("performance.getEntriesByName('shoal-updated')[0].startTime / 1000"))

    shown, mapped = await best(gangs), await best(nodes)
    print(f"\n{GANGS} gangs after {shown:.2f} s, {NODES} nodes after {mapped:.2f} s")
    assert max(shown, mapped) <= SLOWEST
    assert window.troubles == []


async def test_a_first_visit_costs_less_than_a_second_of_one_core(
    browser: Browser, served: PageServer, cluster: Cluster
) -> None:
    """A new login, for which nothing was read yet: the API server, the server of the page and the browser work in turn,
    so what they compute is what a visitor waits for where a core is free."""
    context = await browser.new_context()
    page = await context.new_page()
    counting = await context.new_cdp_session(page)
    await counting.send("Performance.enable", {"timeDomain": "threadTicks"})
    began, before = time.monotonic(), time.process_time()
    window = Look(page, served)
    await window.to(served.invite(Visitor(user="system:admin", client=cluster.client)))
    await rows(window, "tbody tr", GANGS)
    waited, server = time.monotonic() - began, time.process_time() - before
    metrics = (await counting.send("Performance.getMetrics"))["metrics"]
    drawn = float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))
    print(f"\nfirst visit: {waited:.2f} s, of which {server:.2f} s of CPU in the servers and {drawn:.2f} s in the page")
    assert 0 < server + drawn <= SLOWEST


SEEN = """(name) => { window.seen = null; new MutationObserver(() => {
     if (document.body.innerText.includes(name)) window.seen ??= Date.now();
   }).observe(document.body, {subtree: true, childList: true, characterData: true}); return Date.now(); }"""


async def test_a_change_among_500_gangs_is_seen_within_a_second(
    browser: Browser, served: PageServer, cluster: Cluster
) -> None:
    window = await look(browser, served, cluster.client)
    await rows(window, "tbody tr", GANGS)
    names = (f"made-just-now-{number}" for number in range(TRIES))

    async def change() -> float:
        name = next(names)
        began = await window.page.evaluate(SEEN, name)
        job = {"metadata": {"name": name}, "spec": {"entrypoint": "true", "rayClusterSpec": _SPEC}}
        await cluster.create(kinds.RAY_JOB, {"apiVersion": "ray.io/v1", "kind": "RayJob", **job})
        await window.page.wait_for_function("() => window.seen")
        return float(await window.page.evaluate("window.seen") - began) / 1000

    changed = await best(change)
    print(f"\na change is seen after {changed:.2f} s")
    assert changed <= SLOWEST
    assert window.troubles == []


_SPEC = {
    "headGroupSpec": {
        "rayStartParams": {},
        "template": {"spec": {"containers": [{"name": "ray-head", "image": "rayproject/ray:2.60.0"}]}},
    }
}


FAILED_OF_RECSYS = """() => [...document.querySelectorAll("tbody tr")]
  .filter((row) => row.querySelector(".badge.failed") && row.innerText.includes("recsys"))
  .map((row) => row.dataset.id)"""
"""What the filters have to leave, read from the table before they are set."""


async def until_shown(window: Look, ids: list[str]) -> None:
    """Until the table has these rows and no other: an address changes a frame before the table does."""
    await window.page.wait_for_function(
        "(ids) => [...document.querySelectorAll('tbody tr')].map((row) => row.dataset.id).join() === ids.join()",
        arg=ids,
    )


async def test_filters_and_state_are_in_the_address(browser: Browser, served: PageServer, cluster: Cluster) -> None:
    window = await look(browser, served, cluster.client)
    await rows(window, "tbody tr", GANGS)
    ids = await window.page.evaluate(FAILED_OF_RECSYS)
    assert 0 < len(ids) < GANGS
    await window.page.click("button.chip.failed")
    await window.page.fill("#q", "recsys")
    await until_shown(window, ids)
    address = window.page.url
    assert "q=recsys" in address and "stage=failed" in address
    await window.to("/queues")
    await window.until("Cohort research")
    await window.to(address)
    await until_shown(window, ids)
    assert await window.page.get_attribute("button.chip.failed", "aria-pressed") == "true"
    first = window.page.locator("tbody tr a").first
    name = await first.inner_text()
    await first.focus()
    await window.page.keyboard.press("Enter")  # no mouse needed
    await window.until(name, "h1")
    await window.until("exit code 1", ".head")
    await window.page.go_back()
    await until_shown(window, ids)
    assert window.page.url == address


ATTACK = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
LINKS = ("javascript:document.title='taken'", "data:text/html,<script>1</script>", "JaVaScRiPt:1", "vbscript:1", "//[")


def _as_html(patch: pytest.MonkeyPatch) -> None:
    """Text becomes elements, links lead anywhere, and no policy stands behind it."""
    real = files.contents()
    data, kind, tag = real["dom.js"]
    told = data.replace(
        b"  made.append(",
        b"  if (children.some((one) => typeof one === 'string'))"
        b" { made.innerHTML = children.flat().join(''); return made; }\n  made.append(",
    ).replace(b"['http:', 'https:'].includes", b"['http:', 'https:', 'javascript:'].concat")
    patch.setattr(files, "contents", lambda: {**real, "dom.js": (told, kind, tag)})
    patch.setattr(guard, "HEADERS", {})


@proven(without=_as_html)
async def test_f125_what_users_wrote_stays_text(browser: Browser, served: PageServer, cluster: Cluster) -> None:
    """F125: messages, annotations, events, pods and logs of a gang carry elements, scripts and links that run code.
    Holds: they are shown as text, a link is http or https, and the page's policy allows no script but its own."""
    window = await look(browser, served, cluster.client)
    spec = {"entrypoint": ATTACK, "rayClusterSpec": _SPEC}
    named = {"name": "odd", "annotations": {"note": ATTACK}}
    made = await cluster.create(
        kinds.RAY_JOB, {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": named, "spec": spec}
    )
    failed = {"status": {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "message": f"{ATTACK}\n{ATTACK}"}}
    await cluster.client.patch(kinds.RAY_JOB, "odd", "default", failed, subresource="status")
    about = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "odd", "uid": made["metadata"]["uid"]}
    event = {"metadata": {"name": "odd.1"}, "involvedObject": {**about, "namespace": "default"}}
    await cluster.create(kinds.EVENT, {**event, "reason": "Odd", "message": f"event {ATTACK}", "type": "Warning"})
    pod = {"metadata": {"name": "odd-pod", "ownerReferences": [{**about, "controller": True}]}}
    await cluster.create(kinds.POD, {**pod, "spec": {"containers": [{"name": "c", "image": "busybox"}]}})
    await window.to("/?q=odd")
    await window.until("<img src=x")
    await window.page.route("**/data/log?*", lambda route: route.fulfill(body=f"log {ATTACK}\n"))
    await window.page.click("tbody a")
    for said in ("<script>", f"event {ATTACK}", f"log {ATTACK}"):
        await window.until(said)
    assert "taken" not in await window.page.title()
    assert await window.page.locator("main img, main script").count() == 0
    kept = """async (links) => { const { h } = await import('/static/dom.js');
              return links.map((one) => h('a', {href: one}).href); }"""
    assert await window.page.evaluate(kept, list(LINKS)) == [""] * len(LINKS)
    assert await window.page.evaluate(kept, ["https://ray.io/"]) == ["https://ray.io/"]
    answer = await window.page.request.get(served.address)
    assert "script-src 'self'" in answer.headers["content-security-policy"]
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


async def test_a_phone_shows_every_view_and_hours_that_can_be_read(
    browser: Browser, served: PageServer, small: Cluster
) -> None:
    window = await look(browser, served, small.client, width=390, height=844)
    await window.to("/timeline")
    await ready(window, "timeline")
    boxes = await window.page.evaluate(
        "[...document.querySelectorAll('.axis span')].filter((one) => one.offsetWidth).map((one) => {"
        " const box = one.getBoundingClientRect(); return [box.left, box.right]; })"
    )
    assert len(boxes) >= 3
    assert all(left > right for (_, right), (left, _) in pairwise(boxes)), boxes
    links = await window.page.evaluate(
        "[...document.querySelectorAll('nav a')].map((one) => one.getBoundingClientRect().right)"
    )
    assert len(links) == 5 and max(links) <= 390


async def test_a_reason_is_short_in_the_table_and_whole_on_a_pointer(
    browser: Browser, served: PageServer, small: Cluster
) -> None:
    window = await look(browser, served, small.client)
    await window.to("/?stage=waiting")
    await rows(window, "td.reason", 1)
    cell = window.page.locator("td.reason").first
    assert (await cell.inner_text()).endswith("nvidia.com/gpu more needed in flavor h100")
    assert "insufficient unused quota for nvidia.com/gpu" in str(await cell.get_attribute("title"))


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
