"""From `shoal open` to Ray's own dashboard: a real Ray cluster on this machine, seen through the page."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from playwright.async_api import Browser

from shoal.cli.cluster import LocalCluster
from shoal.local.home import Home
from shoal.local.nodes.agent import NodeShape
from shoal.local.settings import LocalSettings
from tests.browser.conftest import Look
from tests.e2e.conftest import Whole

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
SHOAL = str(Path(sys.executable).with_name("shoal"))


async def opened(home: Home) -> str:
    """What `shoal open` prints."""
    command = (SHOAL, "open", "--kubeconfig", str(home.kubeconfig), "--no-browser")
    running = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
    said, trouble = await running.communicate()
    assert running.returncode == 0, trouble.decode()
    return said.decode().strip()


async def test_shoal_open_leads_to_the_log_and_to_rays_own_dashboard(browser: Browser, tmp_path: Path) -> None:
    home = Home("page", tmp_path)
    home.create()
    shape = NodeShape(name="node-0", capacity={"cpu": "4", "memory": "8Gi", "pods": "20"})
    cluster = LocalCluster(home, LocalSettings(nodes=(shape,)), page_port=0)
    await cluster.start()
    try:
        assert cluster.page is not None
        whole = Whole(cluster)
        await whole.ray_cluster("real", workers=0)
        context = await browser.new_context()
        window = Look(await context.new_page(), cluster.page)
        await window.to(await opened(home))
        await window.page.get_by_role("link", name="real", exact=True).click()
        await window.until("Ray dashboard")
        await whole.ready("real", 1)
        await window.until("ready", ".head")
        await window.until("Ray runtime started", ".log")
        async with window.page.expect_popup() as popup:
            await window.page.get_by_role("button", name="Ray dashboard").click()
        dashboard = Look(await popup.value, cluster.page)
        await dashboard.until("Cluster utilization", "body")
        await dashboard.page.get_by_role("link", name="Cluster", exact=True).click()
        await dashboard.until("ALIVE", "body")  # its own requests reach its own server, with the token
        assert window.troubles == []
    finally:
        await cluster.stop(2.0)
