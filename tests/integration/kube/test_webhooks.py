"""A real API server calls our webhooks, while their certificates are replaced."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from aiohttp import web

from shoal.api.kinds import CONFIG_MAP, MUTATING_WEBHOOK, NAMESPACE, SECRET, VALIDATING_WEBHOOK
from shoal.api.meta import Json
from shoal.kube import webhook_certificates
from shoal.kube.admission_review import AdmissionRequest, AdmissionVerdict
from shoal.kube.certificates import Pair, Rotation
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, ServerError
from shoal.kube.webhook_certificates import CertificateKeeper, decoded
from shoal.kube.webhooks import WebhookServer
from tests.faults import proven
from tests.patience import PATIENCE

from .conftest import config_map

pytestmark = pytest.mark.controlplane


def configuration(kind: str, path: str, port: int) -> Json:
    hook = {
        "name": f"{path}.example.test",
        "clientConfig": {"url": f"https://127.0.0.1:{port}/{path}"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "guarded"}},
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "shoal"},
        "webhooks": [hook],
    }


def judge(request: AdmissionRequest) -> AdmissionVerdict:
    assert request.object is not None
    if "bad" in request.name:
        return AdmissionVerdict(False, f"{request.user_info.username} may not call it {request.name}")
    return AdmissionVerdict()


def mark(request: AdmissionRequest) -> AdmissionVerdict:
    assert request.object is not None
    return AdmissionVerdict(changed={**request.object, "data": {"seen": "yes"}}, warnings=("it was marked",))


def _bundles_stay_old(patch: pytest.MonkeyPatch) -> None:
    whole = Rotation.adopt

    def forget_the_old(self: Rotation, chain: Any, authority: Pair, clock: Any) -> Any:
        adopted = whole(self, chain, authority, clock)
        return type(adopted)(adopted.authority, adopted.leaf, ())

    async def announce_nothing(self: CertificateKeeper, bundle: bytes) -> None:
        if self not in told:
            told.append(self)
            await inject(self, bundle)

    told: list[CertificateKeeper] = []
    inject = CertificateKeeper.inject
    patch.setattr(Rotation, "adopt", forget_the_old)
    patch.setattr(CertificateKeeper, "inject", announce_nothing)


@proven(without=_bundles_stay_old)
async def test_f066_a_real_server_is_never_refused_while_authorities_rotate(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F66: the authority rotates under a real API server. Holds: every call is answered meanwhile."""
    monkeypatch.setattr(webhook_certificates, "ADOPT_AFTER", 4.0)
    server = WebhookServer()
    server.admit("/judge", judge)
    server.admit("/mark", mark)
    server._app.on_response_prepare.append(hang_up)
    keeper = CertificateKeeper(
        client,
        # Certificates begin five minutes early: one that lives for two more is past two thirds of its life at once.
        Rotation("webhook", ("127.0.0.1",), authority_days=120 / 86_400, leaf_days=110 / 86_400),
        namespace="default",
        webhooks=((VALIDATING_WEBHOOK, "shoal"), (MUTATING_WEBHOOK, "shoal")),
        present=server.present,
    )
    port = await server.start("127.0.0.1", 0)
    await client.create(NAMESPACE, {"metadata": {"name": "guarded"}})
    await client.create(VALIDATING_WEBHOOK, configuration("ValidatingWebhookConfiguration", "judge", port))
    await client.create(MUTATING_WEBHOOK, configuration("MutatingWebhookConfiguration", "mark", port))
    await keeper.step()
    await until_called(client)
    serials = set()
    calls = 0
    for _ in range(3):
        async with asyncio.TaskGroup() as tasks:
            rotating = tasks.create_task(keeper.step())
            while not rotating.done():
                calls += 1
                await call_both(client, calls)
                await asyncio.sleep(0.1)
        secret = await client.get(SECRET, "shoal-webhook-certificate", "default")
        serials.add(decoded(secret).chain.authority.serial)
    assert len(serials) == 3 and calls > 3
    await server.stop()


async def call_both(client: Client, number: int) -> None:
    made = await client.create(CONFIG_MAP, config_map(f"good-{number}", "guarded"), "guarded")
    assert made["data"] == {"seen": "yes"}
    with pytest.raises(Forbidden, match=f"may not call it bad-{number}"):
        await client.create(CONFIG_MAP, config_map(f"bad-{number}", "guarded"), "guarded")


async def hang_up(request: web.Request, response: web.StreamResponse) -> None:
    """After every answer, so that every call checks our certificate again."""
    response.headers["Connection"] = "close"
    response.force_close()


async def until_called(client: Client) -> None:
    """The server learns of each configuration and of its bundle by its own watches, a moment after writing."""
    async with asyncio.timeout(PATIENCE):
        for number in itertools.count():
            try:
                made = await client.create(CONFIG_MAP, config_map(f"first-{number}", "guarded"), "guarded")
                await client.create(CONFIG_MAP, config_map(f"first-bad-{number}", "guarded"), "guarded")
            except ServerError:
                pass  # it knows a webhook but not yet its bundle
            except Forbidden:
                if made.get("data"):
                    return
            await asyncio.sleep(0.1)
