"""`tlsOptions`: certificates of the cluster's own, for the addresses that its pods have, renewed before they end."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from shoal.api import kinds
from shoal.controllers.ray import names, view
from shoal.controllers.ray.cluster import certificates
from shoal.controllers.ray.pods import tls
from shoal.controllers.ray.settings import GATES_ON, MUTUAL_TLS, RaySettings
from shoal.controllers.ray.validation.cluster_rules import problems_of_cluster
from shoal.kube.certificates import DAY, Pair
from tests.conformance.kuberay_traces import Stage
from tests.faults import proven
from tests.unit.ray.builders import container, group, ray_cluster

ON = RaySettings(gates=GATES_ON | {MUTUAL_TLS})
TLS = {"tlsOptions": {"enabled": True}}


@pytest.fixture
async def secured() -> AsyncIterator[Stage]:
    stage = Stage(ON)
    await stage.start()
    yield stage
    await stage.stop()


def secret(stage: Stage, name: str) -> dict[str, bytes]:
    found = next(one for one in stage.objects(kinds.SECRET) if view.name(one) == name)
    return {part: base64.b64decode(text) for part, text in found["data"].items()}


def leaf(stage: Stage, role: str) -> Pair:
    data = secret(stage, f"ray-{role}-secret-demo")
    return Pair(data["tls.crt"], data["tls.key"])


async def placed(stage: Stage, node_type: str, address: str, **more: object) -> None:
    match = {names.NODE_TYPE: node_type}
    step = {"do": "setPods", "match": match, "phase": "Running", "ready": True, "podIP": address, **more}
    await stage.play(step)
    await stage.settle()


async def test_certificates_follow_the_addresses_of_the_pods(secured: Stage) -> None:
    await secured.client.create(kinds.RAY_CLUSTER, ray_cluster("demo", group(replicas=1), **TLS), "default")
    await secured.settle()
    service = {"demo-head-svc", "demo-head-svc.default.svc.cluster.local", "localhost", "127.0.0.1"}
    assert service <= leaf(secured, "head").hosts and "demo-head-svc" not in leaf(secured, "worker").hosts
    await placed(secured, "head", "10.0.0.1")
    await placed(secured, "worker", "10.0.0.2")
    assert "10.0.0.1" in leaf(secured, "head").hosts and "10.0.0.2" in leaf(secured, "worker").hosts

    authority = secret(secured, "ray-ca-secret-demo")["tls.crt"]
    trusted = PolicyBuilder().store(Store([x509.load_pem_x509_certificate(authority)]))
    for role, name in (("head", "demo-head-svc.default.svc.cluster.local"), ("worker", "localhost")):
        presented = x509.load_pem_x509_certificate(leaf(secured, role).certificate)
        assert secret(secured, f"ray-{role}-secret-demo")["ca.crt"] == authority
        at = presented.not_valid_before_utc
        trusted.time(at).build_server_verifier(x509.DNSName(name)).verify(presented, [])
        assert trusted.time(at).build_client_verifier().verify(presented, []).chain

    pods = {view.labels(pod)[names.NODE_TYPE]: pod["spec"] for pod in secured.objects(kinds.POD)}
    for role, spec in pods.items():
        assert spec["initContainers"][0]["name"] == tls.WAIT_CONTAINER
        mounted = next(one for one in spec["volumes"] if one["name"] == "ray-tls")
        assert mounted["secret"]["secretName"] == f"ray-{role}-secret-demo"


async def test_a_cluster_at_rest_writes_no_certificate(secured: Stage) -> None:
    await secured.client.create(kinds.RAY_CLUSTER, ray_cluster("demo", group(replicas=1), **TLS), "default")
    await secured.settle()
    await placed(secured, "head", "10.0.0.1")
    revisions = secured.server.revisions(kinds.SECRET)
    await placed(secured, "head", "10.0.0.1")
    await placed(secured, "worker", "10.0.0.9", phase="Pending", ready=False)
    changed = set(secured.server.revisions(kinds.SECRET)) - set(revisions)
    assert len(changed) == 1  # the worker's, whose pod has an address now


def never_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "_due", lambda leaf: 1 << 62)


@proven(without=never_due)
async def test_f542_certificates_are_renewed_before_they_end(secured: Stage) -> None:
    """F542: a Ray cluster with TLS runs for longer than its certificates are good for. Holds: two weeks before they end
    there are new ones of the same authority, and an event says that running pods need a restart."""
    await secured.client.create(kinds.RAY_CLUSTER, ray_cluster("demo", group(replicas=1), **TLS), "default")
    await secured.settle()
    first, authority = leaf(secured, "head"), secret(secured, "ray-ca-secret-demo")
    secured.clock.advance((certificates.LEAF_DAYS - certificates.RENEWED_BEFORE_DAYS + 1) * DAY)
    await secured.settle()
    second = leaf(secured, "head")
    assert second.serial != first.serial and second.ends > first.ends + 60 * DAY * 1_000_000
    assert secret(secured, "ray-ca-secret-demo") == authority
    told = {one["reason"] for one in secured.objects(kinds.EVENT)}
    assert "MTLSCertificateExpiringSoon" in told


async def test_a_deleted_authority_comes_back_as_it_was(secured: Stage) -> None:
    await secured.client.create(kinds.RAY_CLUSTER, ray_cluster("demo", group(replicas=1), **TLS), "default")
    await secured.settle()
    authority, first = secret(secured, "ray-ca-secret-demo"), leaf(secured, "head")
    await secured.client.delete(kinds.SECRET, "ray-ca-secret-demo", "default")
    await secured.settle()
    assert secret(secured, "ray-ca-secret-demo") == authority and leaf(secured, "head") == first
    broken = {"data": {"tls.crt": base64.b64encode(b"nothing").decode()}}
    await secured.client.patch(kinds.SECRET, "ray-head-secret-demo", "default", broken)
    await secured.settle()
    assert leaf(secured, "head").hosts == first.hosts


async def test_a_secret_of_another_owner_is_left_alone(secured: Stage) -> None:
    label = {"labels": {names.CREATED_BY: names.OPERATOR}}
    theirs = {"metadata": {"name": "ray-head-secret-demo", **label}, "data": {"mine": "eA=="}}
    await secured.client.create(kinds.SECRET, theirs, "default")
    await secured.client.create(kinds.RAY_CLUSTER, ray_cluster("demo", **TLS), "default")
    await secured.settle()
    assert secret(secured, "ray-head-secret-demo") == {"mine": b"x"}
    assert not secured.objects(kinds.POD)
    assert any("belongs to another owner" in one["message"] for one in secured.objects(kinds.EVENT))


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (ray_cluster(**TLS), ""),
        (ray_cluster(tlsOptions={"enabled": False}), ""),
        (ray_cluster(tlsOptions={"enabled": "yes"}), "spec.tlsOptions.enabled must be true or false"),
        (
            ray_cluster("demo", group(template={"spec": {"containers": [
                container("ray-worker", env=[{"name": "RAY_USE_TLS", "value": "0"}])]}}), **TLS),
            "worker group 'workers' sets RAY_USE_TLS",
        ),
        (
            ray_cluster(autoscalerOptions={"volumeMounts": [{"name": "a", "mountPath": "/etc/ray/tls/"}]}, **TLS),
            "spec.autoscalerOptions mounts 'a' at /etc/ray/tls",
        ),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_is_refused(cluster: dict[str, object], said: str) -> None:
    problems = problems_of_cluster(cluster, ON)
    assert bool(problems) == bool(said) and said in "".join(problems)
    assert ("RayClusterMTLS" in "".join(problems_of_cluster(cluster, RaySettings()))) != ("true or false" in said)
