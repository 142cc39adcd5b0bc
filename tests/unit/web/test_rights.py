"""Whose page it is: every row and answer is the API server's answer to that user, and ends with their credentials."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli import page as composition
from shoal.cli.page import LOGIN_PATH, LocalVisitors, by_token
from shoal.kube import kubeconfig
from shoal.kube.client import Client
from shoal.kube.errors import Unauthorized
from shoal.local.apiserver import Server
from shoal.web import PageServer
from tests.cluster import Cluster, running
from tests.faults import proven
from tests.unit.cli.test_people import bind
from tests.unit.queues.build import job, local_queue, make, name_of, true
from tests.unit.queues.conftest import cluster, quiet
from tests.unit.web.visiting import served, tab, until_told

__all__ = ["cluster", "quiet"]


async def logged_in(client: Client, namespace: str = "") -> str:
    answer = await client.request("POST", LOGIN_PATH, query={"namespace": namespace} if namespace else {})
    return str(msgspec.json.decode(answer.body)["address"])


def _as_the_server(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(composition, "Client", lambda transport, **more: Client(transport._server.transport(), **more))


@proven(without=_as_the_server)
async def test_f323_a_visitor_sees_no_name_that_the_api_server_does_not_show_them(cluster: Cluster) -> None:
    """F323: an ordinary user of one namespace opens the page of a cluster that others use, too. Holds: its rows and
    answers name nothing of the others; what holds a gang back is counted."""
    await cluster.client.create(kinds.NAMESPACE, {"metadata": {"name": "theirs"}})
    theirs = {**local_queue("other-queue"), "metadata": {"name": "other-queue", "namespace": "theirs"}}
    await make(cluster, theirs)
    hidden = job("secret-project", cpu="3", queue="other-queue")
    hidden["metadata"]["namespace"] = "theirs"
    (held,) = await make(cluster, hidden)
    await cluster.until(kinds.WORKLOAD, name_of(held), true("Admitted"), "theirs")
    (mine,) = await make(cluster, job("mine", cpu="2"))
    await cluster.until(kinds.WORKLOAD, name_of(mine), lambda one: bool((one.get("status") or {}).get("conditions")))
    ann = await bind(cluster, "ann", "edit", "default")
    async with served() as page, tab(page) as browser:
        LocalVisitors(cluster.server, page)
        assert await browser.login(await logged_in(ann, "default")) == 200
        async with browser.live("default") as events:
            first = await anext(events)
        assert [row["name"] for row in first["rows"]["gangs"]] == ["mine"]
        assert first["rows"]["nodes"] == [] and "nodes" in first["notRead"]
        status, told = await browser.get("/data/why?kind=job.batch&namespace=default&name=mine")
        assert status == 200 and told["holdersNotShown"] == 1 and told["holders"] == []
        status, place = await browser.get("/data/position?kind=job.batch&namespace=default&name=mine")
        assert (status, place["position"], place["queueLength"]) == (200, 1, 1)
        refused, words = await browser.get("/data/gang?kind=job.batch&namespace=theirs&name=secret-project")
        assert refused in (403, 404) and "jobs.batch" in words["error"]
        async with browser.live() as events:
            everywhere = await anext(events)
        assert everywhere["rows"]["gangs"] == [] and "rayjobs.ray.io" in everywhere["notRead"]
        assert "secret-project" not in f"{first} {told} {place} {everywhere}"


def _never_ends(patch: pytest.MonkeyPatch) -> None:
    real = composition.Visitor
    patch.setattr(composition, "Visitor", lambda **given: real(**{**given, "alive": lambda: True}))


@proven(without=_never_ends)
async def test_f324_a_session_ends_with_the_token_that_opened_it() -> None:
    """F324: the service account of a token that a page was opened with is deleted. Holds: the session ends at the next
    request, though its own time has not come."""
    async with running(with_builtin=False) as cluster, served() as page, tab(page) as browser:
        server: Server = cluster.server
        port = await server.serve()
        LocalVisitors(server, page)
        account = await cluster.create(kinds.SERVICE_ACCOUNT, {"metadata": {"name": "robot"}})
        token = (await cluster.client.create(kinds.SERVICE_ACCOUNT, {}, "default", subresource="token", name="robot"))[
            "status"
        ]["token"]
        transport = kubeconfig.transport(_target(server, port, token))
        try:
            assert await browser.login(await logged_in(Client(transport))) == 200
        finally:
            await transport.close()
        status, told = await browser.get("/data/me")
        assert (status, told["user"]) == (200, "system:serviceaccount:default:robot")
        await cluster.client.delete(kinds.SERVICE_ACCOUNT, "robot", "default", uid=account["metadata"]["uid"])
        assert (await browser.get("/data/me"))[0] == 401


async def token_of(cluster: Cluster, account: str) -> str:
    made: Json = await cluster.client.create(kinds.SERVICE_ACCOUNT, {}, "default", subresource="token", name=account)
    return str(made["status"]["token"])


def _target(server: Server, port: int, token: str) -> kubeconfig.ClusterTarget:
    authority = base64.b64encode(server.identity.ca.certificate).decode()
    at = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": authority}
    content = {
        "current-context": "one", "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
        "users": [{"name": "one", "user": {"token": token}}],
        "clusters": [{"name": "one", "cluster": at}],
    }  # fmt: skip
    return kubeconfig.parse(msgspec.json.encode(content), "test")


def _with_own_certificate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kubeconfig, "load_with_token", lambda token, path, context=None: kubeconfig.load(path, context))


@proven(without=_with_own_certificate)
async def test_f325_a_controllers_own_credentials_never_go_with_a_visitor(tmp_path: Path) -> None:
    """F325: a controller that runs with an administrator's client certificate serves the page to a user's token. Holds:
    the API server sees the user alone, and a token that it does not know is refused."""
    async with running(with_builtin=False) as cluster:
        await cluster.server.serve()
        own = tmp_path / "kubeconfig"
        cluster.server.write_kubeconfig(own)
        await cluster.create(kinds.SERVICE_ACCOUNT, {"metadata": {"name": "robot"}})
        visitors = by_token(lambda token: kubeconfig.load_with_token(token, own))
        visitor = await visitors(await token_of(cluster, "robot"))
        assert visitor.user == "system:serviceaccount:default:robot"
        visitor.gone()
        with pytest.raises(Unauthorized):
            await visitors("guessed")


async def test_rows_come_once_and_then_one_by_one(quiet: Cluster) -> None:
    async with served() as page, tab(page, quiet.client) as browser, browser.live() as events:
        first = await anext(events)
        assert [row["name"] for row in first["rows"]["nodes"]] == ["node-1"] and first["rows"]["gangs"] == []
        await make(quiet, job("new", cpu="1"))
        row = await until_told(events, "gangs", lambda row: row and row["name"] == "new")
        assert (row["kind"], row["queue"], row["stage"]) == ("Job", "user-queue", "waiting")
        await quiet.client.delete(kinds.JOB, "new", "default", propagation="Background")
        assert await until_told(events, "gangs", lambda row: row is None) is None
        await quiet.add_node("node-2", cpu="4")
        added = await until_told(events, "nodes", lambda row: row and row["name"] == "node-2" and row["amounts"])
        assert added["amounts"]["cpu"]["n"] == [0, 4000]


async def test_tabs_of_a_session_share_their_watches_and_a_stream_ends_with_the_session(quiet: Cluster) -> None:
    async with served() as page, tab(page, quiet.client) as browser, browser.live() as one, browser.live() as two:
        assert (await anext(one))["rows"] == (await anext(two))["rows"]
        (session,) = page.sessions._sessions.values()
        assert len(session.kept["boards"]) == 1
        assert (await browser.post("/logout", {}))[0] == 200
        assert [told async for told in one] == [] and [told async for told in two] == []


def test_a_page_has_no_rights_of_its_own() -> None:
    """Nothing is read but with a visitor's client: the server is made without one."""
    page = PageServer()
    assert not [name for name, value in vars(page).items() if isinstance(value, Client)]
