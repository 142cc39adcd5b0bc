"""When a replica is ready, and that what is missing is said once, with what to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from shoal.api import kinds
from shoal.cli.parts import lead_with, parts_named
from shoal.cli.readiness import Readiness, RunningPart
from shoal.controllers.appwrapper import AppWrapperSettings
from shoal.controllers.queues import QueueSettings
from shoal.controllers.ray import RaySettings
from shoal.kube.client import Client
from shoal.kube.health import HealthServer
from shoal.kube.lease import Leadership, LeaseSettings
from shoal.kube.transport import Request, Response, Stream, Transport
from tests.cluster import Cluster
from tests.faults import proven
from tests.patience import PATIENCE
from tests.unit.appwrapper.test_rights import RBAC

PARTS = ("appwrapper", "queues", "ray")
QUICK = LeaseSettings(0.5)


class Counted:
    """Counts requests for leases, so that a test can wait for several of them."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.leases = 0

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        self.leases += "/leases" in request.path
        return await self.inner.send(request, timeout=timeout)

    def stream(self, request: Request, *, idle_timeout: float | None = None) -> AbstractAsyncContextManager[Stream]:
        return self.inner.stream(request, idle_timeout=idle_timeout)

    async def close(self) -> None:
        await self.inner.close()


class Replica:
    """`shoal controller` without its process: one health server, one leadership, all parts."""

    def __init__(
        self,
        transport: Transport,
        name: str = "one",
        namespace: str = "kube-system",
        lease: LeaseSettings = QUICK,
    ) -> None:
        self.health = HealthServer()
        readiness = Readiness(self.health)
        settings = AppWrapperSettings(trust_unstamped=True)
        self.parts = parts_named(PARTS, settings, QueueSettings(), RaySettings(), self.health, readiness)
        self.leadership = Leadership(Client(transport), "shoal-controller", namespace, name, settings=lease)
        readiness.stands_by(self.leadership)

    async def until(self, part: str, text: str | None) -> str:
        """Until this part tells of a trouble with this text in it, or of none."""
        said: str | None = ""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    said = self.health.troubles().get(part)
                    if (said is None) if text is None else (text in (said or "")):
                        return said or ""
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"{part} says {said!r} and never {text!r}") from None


@asynccontextmanager
async def running_replica(replica: Replica) -> AsyncIterator[Replica]:
    task = asyncio.ensure_future(lead_with(replica.parts, replica.leadership))
    try:
        yield replica
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def admin(cluster: Cluster) -> Transport:
    return cluster.client.transport


async def grant_everywhere(cluster: Cluster, user: str, *resources: tuple[str, str]) -> None:
    rules = [
        {"verbs": ["get", "create", "update"], "apiGroups": [group], "resources": [one]} for group, one in resources
    ]
    role = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": user}, "rules": rules}
    await cluster.create(kinds.CLUSTER_ROLE, role)
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": user},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": user},
        "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC}],
    }
    await cluster.create(kinds.CLUSTER_ROLE_BINDING, binding)


async def test_a_leader_is_ready_with_its_caches_and_a_standby_without(quiet: Cluster) -> None:
    first, second = Replica(admin(quiet)), Replica(admin(quiet), "two")
    assert set(first.health.troubles()) == {"lease"}  # nothing has been read
    async with running_replica(first):
        for part in ("lease", "gangs", "ray"):
            await first.until(part, None)
        assert first.leadership.leads
        async with running_replica(second):
            await second.until("lease", None)
            assert second.health.troubles() == {} and not second.leadership.leads


def _is_ready_once_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningPart, "trouble", lambda self: None)
    monkeypatch.setattr("tests.unit.cli.test_readiness.PATIENCE", 2.0)


@proven(without=_is_ready_once_it_leads)
async def test_f271_a_leader_without_its_kinds_is_not_ready(quiet: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """F271: the controller leads before its CRDs are installed. Holds: it is not ready and names the kind and what to
    do, once in the log; it becomes ready by itself when they are there."""
    crd = await quiet.client.get(kinds.CRD, "rayjobs.ray.io")
    await quiet.client.delete(kinds.CRD, "rayjobs.ray.io")
    await quiet.until_gone(kinds.CRD, "rayjobs.ray.io")
    with caplog.at_level(logging.WARNING):
        async with running_replica(Replica(admin(quiet))) as replica:
            said = await replica.until("ray", "rayjobs.ray.io (ray.io/v1) is not served")
            assert "Install its CRD" in said
            await replica.until("gangs", None)
            crd["metadata"] = {"name": crd["metadata"]["name"]}
            await quiet.create(kinds.CRD, crd)
            await replica.until("ray", None)
    told = [one for one in caplog.messages if one.startswith("rayjobs.ray.io (ray.io/v1) is not served")]
    assert 1 <= len(told) <= 2  # the operator and the queues watch it, each for itself


def _says_it_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def say(self: Leadership, trouble: str | None) -> None:
        self.trouble = trouble
        if trouble is not None:
            logging.getLogger("shoal.kube.lease").warning("%s", trouble)

    monkeypatch.setattr(Leadership, "_say", say)


@proven(without=_says_it_every_time)
async def test_f272_a_missing_namespace_is_said_once_with_what_to_do(
    quiet: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """F272: the namespace of the lease does not exist and the account may not create it. Holds: the log says it once,
    `/readyz` as long as it lasts, both with what to do; the replica leads as soon as the namespace is there."""
    counted = Counted(quiet.server.transport(user="meek", groups=("system:authenticated",)))
    await grant_everywhere(quiet, "meek", ("coordination.k8s.io", "leases"))
    replica = Replica(counted, namespace="later")
    with caplog.at_level(logging.WARNING):
        async with running_replica(replica):
            said = await replica.until("lease", "namespace later, which holds the lease, does not exist")
            assert "name another with --namespace" in said
            before = counted.leases
            async with asyncio.timeout(PATIENCE):
                while counted.leases < before + 6:  # noqa: ASYNC110 (no event tells it)
                    await asyncio.sleep(0.01)
            await quiet.create(
                kinds.NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "later"}}
            )
            await replica.until("lease", None)
    assert len([one for one in caplog.messages if "namespace later" in one]) == 1


async def test_a_missing_namespace_is_created_where_the_account_may(
    quiet: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with running_replica(Replica(admin(quiet), namespace="made-here")) as replica:
            await replica.until("lease", None)
            assert await quiet.get(kinds.NAMESPACE, "made-here")
    assert "namespace made-here did not exist and was created: it holds the lease" in caplog.messages


async def test_a_lease_that_may_not_be_used_is_named(quiet: Cluster) -> None:
    stranger = quiet.server.transport(user="stranger", groups=("system:authenticated",))
    async with running_replica(Replica(stranger)) as replica:
        said = await replica.until("lease", "may not use lease shoal-controller in namespace kube-system")
        assert "grant get, create, update and patch on leases there" in said
