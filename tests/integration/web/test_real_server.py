"""The page on a real API server: served by a controller to a user's own token, and by `shoal open` itself."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from shoal.api.crds import load_crds
from tests.controlplane.plane import ControlPlane, await_kinds, free_ports
from tests.integration.questions.test_real_server import kubeconfig_of
from tests.integration.test_install import SHOAL, until
from tests.patience import PATIENCE, patiently
from tests.unit.web.visiting import VisitingTab

ANN = "system:serviceaccount:red:ann"


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`shoal …`, until the block ends; it must then have ended in order."""
    started = await asyncio.create_subprocess_exec(SHOAL, *arguments, stdout=-1, stderr=-1, env=dict(os.environ))
    try:
        yield started
        started.send_signal(signal.SIGINT)
        async with patiently(PATIENCE):
            _, said = await started.communicate()
        assert started.returncode == 0, said.decode()
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()


async def opened(*arguments: str) -> str:
    """The address that `shoal open` prints, where it does not serve the page itself."""
    started = await asyncio.create_subprocess_exec(SHOAL, "open", "--no-browser", *arguments, stdout=-1, stderr=-1)
    said, trouble = await started.communicate()
    assert started.returncode == 0, trouble.decode()
    return said.decode().strip()


async def rows_at(address: str, namespace: str = "") -> dict[str, Any]:
    """Log in with what `shoal open` printed, and read what the page shows first."""
    page: Any = SimpleNamespace(address=address.partition("/#")[0])
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        browser = VisitingTab(page, http)
        assert await browser.login(address) == 200
        _, me = await browser.get("/data/me")
        async with browser.live(namespace) as events:
            return {**await anext(events), "user": me["user"]}


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    control_plane.kubectl(
        "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": load_crds()})
    )
    await_kinds(control_plane.kubectl)
    for name in ("red", "blue"):
        control_plane.kubectl("create", "namespace", name)
        wrapper = {
            "apiVersion": "workload.codeflare.dev/v1beta1",
            "kind": "AppWrapper",
            "metadata": {"name": f"of-{name}", "namespace": name},
        }
        control_plane.kubectl(
            "create", "-f", "-", stdin=json.dumps({**wrapper, "spec": {"resources": {"GenericItems": []}}})
        )
    control_plane.kubectl("create", "serviceaccount", "ann", "-n", "red")
    rules = ["--verb=get,list,watch", "--resource=appwrappers.workload.codeflare.dev,pods"]
    control_plane.kubectl("create", "role", "reader", "-n", "red", *rules)
    control_plane.kubectl("create", "rolebinding", "ann", "-n", "red", "--role=reader", "--serviceaccount=red:ann")
    asked = ("auth", "can-i", "watch", "appwrappers.workload.codeflare.dev", "-n", "red", f"--as={ANN}")
    until(lambda: control_plane.kubectl(*asked).strip() == "yes")  # the server learns of a binding by its own watch
    return control_plane


async def test_a_controllers_page_shows_a_user_what_their_own_token_may_read(
    plane: ControlPlane, tmp_path: Path
) -> None:
    token = plane.kubectl("create", "token", "ann", "-n", "red").strip()
    anns = str(kubeconfig_of(plane, token, tmp_path / "ann"))
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    given = ("--kubeconfig", str(plane.kubeconfig), "--namespace", "default", "--only", "appwrapper")
    async with running("controller", *given, "--page-port", str(port)) as controller:
        assert controller.stderr is not None
        async with patiently(PATIENCE):
            while b"the page is served" not in await controller.stderr.readline():
                pass
        reading = asyncio.ensure_future(controller.stderr.read())  # so that it never waits for us
        shown = await rows_at(await opened("--url", url, "--kubeconfig", anns), "red")
        assert shown["user"] == ANN
        assert [row["name"] for row in shown["rows"]["gangs"]] == ["of-red"]
        everywhere = await rows_at(await opened("--url", url, "--kubeconfig", anns))
        assert everywhere["rows"]["gangs"] == [] and "appwrappers.workload.codeflare.dev" in everywhere["notRead"]
        forged = str(kubeconfig_of(plane, "guessed", tmp_path / "forged"))
        with pytest.raises(AssertionError, match="does not log you in"):
            await opened("--url", url, "--kubeconfig", forged)
        reading.cancel()


async def test_shoal_open_serves_the_page_itself_where_the_cluster_does_not(plane: ControlPlane) -> None:
    async with running("open", "--no-browser", "--kubeconfig", str(plane.kubeconfig)) as served:
        assert served.stdout is not None
        async with patiently(PATIENCE):
            address = (await served.stdout.readline()).decode().strip()
        shown = await rows_at(address)
        assert {row["name"] for row in shown["rows"]["gangs"]} == {"of-red", "of-blue"}
        assert shown["notRead"] == []
