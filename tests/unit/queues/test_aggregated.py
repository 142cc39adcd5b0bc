"""The visibility API of an installed controller: an API server asks it for a user, other callers are strangers."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.cli.visibility import Visibility
from shoal.controllers.queues.visibility import GROUP, PendingWorkloads
from shoal.kube import front_proxy
from shoal.kube.admission_review import User
from shoal.kube.certificates import Pair, make_authority, make_leaf
from shoal.kube.front_proxy import FrontProxies
from shoal.kube.webhooks import WebhookServer
from shoal.kube.writes import Writes
from tests.cluster import Cluster
from tests.faults import proven
from tests.unit.queues.build import cluster_queue, condition, flavor, job, local_queue, make, name_of
from tests.unit.queues.conftest import decide

ROOT = f"/apis/{GROUP}/v1beta2"
OF_QUEUE = f"{ROOT}/clusterqueues/cluster-queue/pendingworkloads"
ADMIN = {"X-Remote-User": "ann", "X-Remote-Group": "system:masters"}


class Served:
    """The server, and callers that show a certificate of some authority or none."""

    def __init__(self, port: int, own: Pair, fronts: Pair, folder: Path) -> None:
        self._port, self._own, self._folder = port, own, folder
        self.proxy = make_leaf(fronts, "front-proxy", server=False, client=True)
        self.other = make_leaf(fronts, "another", server=False, client=True)

    async def get(self, path: str, headers: Mapping[str, str] = ADMIN, shown: Pair | None = None) -> tuple[int, Json]:
        tls = ssl.create_default_context(cadata=self._own.certificate.decode())
        if shown is not None:
            paths = self._folder / "shown.crt", self._folder / "shown.key"
            shown.write(*paths)
            tls.load_cert_chain(*paths)
        async with aiohttp.ClientSession() as session:
            url = f"https://127.0.0.1:{self._port}{path}"
            async with session.get(url, headers=headers, ssl=tls) as answer:
                return answer.status, await answer.json()


@pytest.fixture
async def served(quiet: Cluster, tmp_path: Path) -> AsyncIterator[Served]:
    """A queue in which one gang waits, and its controller leads."""
    fronts, own = make_authority("fronts"), make_authority()
    data = {
        "requestheader-client-ca-file": fronts.certificate.decode(),
        "requestheader-allowed-names": '["front-proxy"]',
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    }
    known = {"metadata": {"name": front_proxy.CONFIG_MAP}, "data": data}
    await quiet.client.create(kinds.CONFIG_MAP, known, front_proxy.NAMESPACE)
    visible, server = Visibility(), WebhookServer()
    queued = decide(quiet)
    await make(quiet, flavor(), cluster_queue(), local_queue())
    (made,) = await make(quiet, job("large", 4000))
    await quiet.until(kinds.WORKLOAD, name_of(made), lambda one: bool(condition(one, "QuotaReserved")))
    await visible.serve(quiet.client, server)
    server.present(make_leaf(own, "webhook", hosts=["127.0.0.1"]))
    port = await server.start("127.0.0.1", 0)
    visible.follow(PendingWorkloads(queued.caches, queued.planning.engine))
    yield Served(port, own, fronts, tmp_path)
    await server.stop()


async def test_an_api_server_asks_for_a_user(served: Served) -> None:
    code, told = await served.get(ROOT, shown=served.proxy)
    assert (code, told["groupVersion"]) == (200, f"{GROUP}/v1beta2")
    code, told = await served.get(OF_QUEUE, shown=served.proxy)
    assert code == 200
    assert [one["metadata"]["ownerReferences"][0]["name"] for one in told["items"]] == ["large"]
    of_local = f"{ROOT}/namespaces/default/localqueues/user-queue/pendingworkloads"
    assert (await served.get(of_local, shown=served.proxy))[1]["items"] == told["items"]
    assert (await served.get(OF_QUEUE.replace("cluster-queue", "nowhere"), shown=served.proxy))[0] == 404


def any_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def believed(self: FrontProxies, certificate: Any, headers: Any) -> User:
        return User(headers.get("X-Remote-User", ""), "", headers.getall("X-Remote-Group", []), {})

    monkeypatch.setattr(FrontProxies, "user", believed)


@proven(without=any_caller)
async def test_f751_only_an_api_server_says_which_user_asks(served: Served) -> None:
    """F751: a client that reaches the port names an administrator in the headers of a front proxy. Holds: without the
    certificate of one, or with that of another client, it is refused; a user without the right is, too."""
    for shown in (None, served.other):
        for path in (ROOT, OF_QUEUE):
            assert (await served.get(path, shown=shown))[0] == 401
    code, told = await served.get(OF_QUEUE, {"X-Remote-User": "eve"}, served.proxy)
    assert (code, told["reason"]) == (403, "Forbidden")
    assert (await served.get(OF_QUEUE, {}, served.proxy))[0] == 401


async def test_the_leader_is_the_endpoint(quiet: Cluster) -> None:
    for address in ("10.0.0.7", "10.0.0.8"):
        await Visibility(address).announce(Writes(quiet.client), "default")
    stored = await quiet.client.get(kinds.ENDPOINTS, "shoal-visibility", "default")
    assert [one["addresses"] for one in stored["subsets"]] == [[{"ip": "10.0.0.8"}]]
