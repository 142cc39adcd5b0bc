"""Webhooks, their certificates, health and metrics."""

from __future__ import annotations

import asyncio
import base64
import ssl
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from shoal.api.kind import Kind
from shoal.api.kinds import CONFIG_MAP, CRD, MUTATING_WEBHOOK, SECRET
from shoal.api.meta import Json
from shoal.errors import BadInput
from shoal.kube import webhook_certificates
from shoal.kube.admission_review import AdmissionRequest, AdmissionVerdict
from shoal.kube.cache import Cache, Change
from shoal.kube.certificates import Pair, Rotation, make_authority, make_leaf, read_pair
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.kube.feed import FeedSettings
from shoal.kube.health import HealthServer, cache_samples, write_samples
from shoal.kube.webhook_certificates import CertificateKeeper, decoded
from shoal.kube.webhooks import WebhookServer, json_patch
from shoal.kube.writes import Writes
from tests.embedded import Embedded
from tests.faults import proven

from .conftest import Start
from .samples import crd

HOST = "shoal-webhook.shoal-system.svc"


async def call(server: WebhookServer, authority: Pair, path: str, body: Any) -> tuple[int, Json]:
    tls = ssl.create_default_context(cadata=authority.certificate.decode())
    tls.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does by itself
    async with aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{server.port}{path}"
        async with session.post(url, json=body, ssl=tls) as answer:
            text = await answer.text()
            return answer.status, await answer.json() if answer.content_type == "application/json" else {"text": text}


def review(obj: Json, **more: Any) -> Json:
    request = {"uid": "r1", "operation": "CREATE", "object": obj, "userInfo": {"username": "ann"}, **more}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


async def test_admission_refuses_changes_and_survives_its_handlers() -> None:
    authority = make_authority()
    server = WebhookServer()
    server.present(make_leaf(authority, "webhook", hosts=["127.0.0.1"]))

    def judge(request: AdmissionRequest) -> AdmissionVerdict:
        assert request.object is not None
        match request.object["spec"]["do"]:
            case "refuse":
                return AdmissionVerdict(False, f"not for {request.user_info.username}")
            case "change":
                return AdmissionVerdict(
                    changed={**request.object, "spec": {"do": "done", "a/b": 1}}, warnings=("changed it",)
                )
            case "fail":
                raise KeyError("oops")
        return AdmissionVerdict()

    async def judge_slowly(request: AdmissionRequest) -> AdmissionVerdict:
        await asyncio.sleep(0)
        return judge(request)

    server.admit("/now", judge)
    server.admit("/later", judge_slowly)
    await server.start("127.0.0.1", 0)
    for path in ("/now", "/later"):
        _, answer = await call(server, authority, path, review({"spec": {"do": "refuse"}}))
        assert answer["response"]["status"]["message"] == "not for ann" and not answer["response"]["allowed"]
        _, answer = await call(server, authority, path, review({"spec": {"do": "change"}}))
        assert answer["response"]["warnings"] == ["changed it"]
        assert b'"/spec/a~1b"' in base64.b64decode(answer["response"]["patch"])
        _, answer = await call(server, authority, path, review({"spec": {"do": "fail"}}))
        assert answer["response"]["status"]["code"] == 500
        _, answer = await call(server, authority, path, review({"spec": {"do": "pass"}}))
        assert answer["response"] == {"uid": "r1", "allowed": True}
    status, answer = await call(server, authority, "/now", {"kind": "nonsense"})
    assert status == 400 and "not a review" in answer["text"]
    await server.stop()


def _leaves_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WebhookServer, "leave", WebhookServer.stop)


@proven(without=_leaves_at_once)
async def test_f445_a_replica_that_ends_answers_until_no_call_comes() -> None:
    """F445: a replica is stopped while API servers still call it on connections that they keep. Holds: every call is
    answered, each connection is given up with its answer, and the replica ends once no more come."""
    authority, server = make_authority(), WebhookServer()
    server.present(make_leaf(authority, "webhook", hosts=["127.0.0.1"]))
    server.admit("/now", lambda request: AdmissionVerdict())
    await server.start("127.0.0.1", 0)
    tls = ssl.create_default_context(cadata=authority.certificate.decode())
    url = f"https://127.0.0.1:{server.port}/now"
    async with aiohttp.ClientSession() as session:
        async with session.post(url, json=review({}), ssl=tls) as answer:
            assert answer.status == 200 and answer.headers.get("Connection") != "close"
        leaving = asyncio.ensure_future(server.leave(quiet=1.0))
        await asyncio.sleep(0)
        for _ in range(3):
            async with session.post(url, json=review({}), ssl=tls) as answer:
                assert answer.status == 200 and answer.headers["Connection"] == "close"
        assert not leaving.done()
        await asyncio.wait_for(leaving, 10)
    await server.stop()


async def test_conversion_names_the_object_that_cannot_be_converted() -> None:
    authority = make_authority()
    server = WebhookServer()
    server.present(make_leaf(authority, "webhook", hosts=["127.0.0.1"]))

    def convert(obj: Json, version: str) -> Json:
        if "spec" not in obj:
            raise BadInput("it has no spec")
        return {**obj, "apiVersion": version}

    server.convert("/convert", convert)
    await server.start("127.0.0.1", 0)
    good = {"apiVersion": "x/v1", "metadata": {"name": "a"}, "spec": {}}
    bad = {"apiVersion": "x/v1", "metadata": {"name": "b"}}
    request = {"uid": "c1", "desiredAPIVersion": "x/v2", "objects": [good]}
    body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request}
    _, answer = await call(server, authority, "/convert", body)
    assert answer["response"]["convertedObjects"] == [{**good, "apiVersion": "x/v2"}]
    _, answer = await call(server, authority, "/convert", {**body, "request": {**request, "objects": [good, bad]}})
    assert answer["response"]["result"]["message"] == "x/v1 b cannot become x/v2: it has no spec"
    await server.stop()


async def test_a_new_certificate_is_presented_without_a_restart() -> None:
    first, second = make_authority("first"), make_authority("second")
    server = WebhookServer()
    server.admit("/", lambda request: AdmissionVerdict())
    server.present(make_leaf(first, "webhook", hosts=["127.0.0.1"]))
    await server.start("127.0.0.1", 0)
    assert (await call(server, first, "/", review({})))[0] == 200
    server.present(make_leaf(second, "webhook", hosts=["127.0.0.1"]))
    assert (await call(server, second, "/", review({})))[0] == 200
    await server.stop()


def test_patches_lead_from_one_object_to_the_other() -> None:
    assert json_patch({"a": 1, "b": [1], "c": {"d": 1}}, {"b": [1, 2], "c": {"d": 1, "e": None}}) == [
        {"op": "remove", "path": "/a"},
        {"op": "replace", "path": "/b", "value": [1, 2]},
        {"op": "add", "path": "/c/e", "value": None},
    ]


def test_a_pair_that_does_not_belong_together_is_refused() -> None:
    with pytest.raises(BadInput, match="do not belong together"):
        read_pair(make_authority().certificate, make_authority().key)


# --- F66


def _use_the_new_authority_at_once(patch: pytest.MonkeyPatch) -> None:
    whole = Rotation.adopt
    patch.setattr(webhook_certificates, "ADOPT_AFTER", 0.0)

    def forget_the_old(self: Rotation, chain: Any, authority: Pair, clock: Any) -> Any:
        adopted = whole(self, chain, authority, clock)
        return type(adopted)(adopted.authority, adopted.leaf, ())

    patch.setattr(Rotation, "adopt", forget_the_old)


@proven(without=_use_the_new_authority_at_once)
async def test_f066_rotation_refuses_no_call_in_four_years(clock: VirtualClock, start: Start) -> None:
    """F66: certificates expire and the authority rotates. Holds: no refused call; bundles first, old authority kept."""
    server = await Embedded(VirtualClock()).start("shoal-system")  # four years of its own upkeep would take long
    client = Client(server.transport())
    service = {"service": {"name": "shoal-webhook", "namespace": "shoal-system"}}
    hook = {"clientConfig": service, "sideEffects": "None", "admissionReviewVersions": ["v1"]}
    hooks = [{**hook, "name": f"{name}.example.test"} for name in ("a", "b")]
    await client.create(MUTATING_WEBHOOK, {"metadata": {"name": "shoal"}, "webhooks": hooks})
    thing = Kind("example.test", "v1", "Thing", "things")
    definition = crd(thing)
    webhook = {"clientConfig": service, "conversionReviewVersions": ["v1"]}
    definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    await client.create(CRD, definition)
    trusted: dict[str, list[bytes]] = {}
    presented: list[Pair] = []

    def verify_all() -> None:
        for bundle in (bundle for bundles in trusted.values() for bundle in bundles):
            verify(presented[-1], bundle, clock)

    def present(leaf: Pair) -> None:
        presented.append(leaf)
        verify_all()

    async def learn(change: Change) -> None:
        """API servers learn of a new bundle a minute late."""
        await clock.sleep(60)
        trusted[change.key.name] = bundles(change.new)
        verify_all()

    for kind in (MUTATING_WEBHOOK, CRD):
        watched: Cache[Any] = Cache(client, kind, clock=clock, settings=FeedSettings(compare_every=1e9, idle_limit=1e9))
        watched.subscribe(lambda change: None if not bundles(change.new) else start(learn(change)) and None)
        start(watched.run())
    places = ((MUTATING_WEBHOOK, "shoal"), (CRD, thing.resource), (CRD, "not.installed.test"))
    rotation = Rotation("shoal-webhook", (HOST,), authority_days=365, leaf_days=60)
    keeper = CertificateKeeper(
        client, rotation, namespace="shoal-system", webhooks=places, present=present, clock=clock
    )
    start(keeper.run())
    for _ in range(2 * 365):
        await clock.advance(2 * 86_400)
        verify_all()
    found = [bundle for bundles in trusted.values() for bundle in bundles]
    assert len(found) == 3 and len(set(found)) == 1, "all bundles are alike"
    assert len({leaf.serial for leaf in presented}) > 20
    stored = decoded(await client.get(SECRET, "shoal-webhook-certificate", "shoal-system"))
    assert len(stored.chain.retired) <= 2, "authorities that have ended are dropped"
    await server.stop()


def bundles(obj: Json) -> list[bytes]:
    configs = [hook["clientConfig"] for hook in obj.get("webhooks") or ()]
    if "spec" in obj:
        configs.append(obj["spec"]["conversion"]["webhook"]["clientConfig"])
    return [base64.b64decode(config["caBundle"]) for config in configs if "caBundle" in config]


def verify(leaf: Pair, bundle: bytes, clock: VirtualClock) -> None:
    now = datetime.fromtimestamp(clock.now() / 1e6, UTC)
    roots = x509.load_pem_x509_certificates(bundle)
    verifier = PolicyBuilder().store(Store(roots)).time(now).build_server_verifier(x509.DNSName(HOST))
    try:
        verifier.verify(x509.load_pem_x509_certificate(leaf.certificate), [])
    except VerificationError as error:
        pytest.fail(f"refused at {now}: {error}")


# --- health


async def test_readiness_names_what_is_missing_and_metrics_count(
    server: Embedded, client: Client, clock: VirtualClock, start: Start
) -> None:
    server.refusals["api/v1/configmaps"] = (403, "Forbidden", "no")
    cache: Cache[Any] = Cache(client, CONFIG_MAP, clock=clock)
    health = HealthServer()

    def trouble() -> str | None:
        if cache.trouble is not None:
            return cache.trouble.message
        return None if cache.synced.is_set() else "not loaded yet"

    health.require("cache configmaps", trouble)
    health.add_metrics(lambda: cache_samples(cache))
    writes = Writes(client, clock=clock)
    health.add_metrics(lambda: write_samples(writes))
    port = await health.start(port=0)

    async def get(path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, await answer.text()

    assert await get("/healthz") == (200, "ok\n")
    assert await get("/readyz") == (503, "[-] cache configmaps: not loaded yet\nnot ready\n")
    start(cache.run())
    await clock.advance(1)
    status, text = await get("/readyz")
    assert status == 503 and "grant the verbs list and watch on configmaps" in text
    server.refusals.clear()
    await clock.advance(10)
    assert await get("/readyz") == (200, "[+] cache configmaps\nready\n")
    status, text = await get("/metrics")
    assert status == 200
    assert 'shoal_cache_lists_total{kind="configmaps"} 1.0' in text
    assert "shoal_writes_sent_total 0.0" in text
    await health.stop()
