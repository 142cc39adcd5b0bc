"""The admission webhooks of a real cluster: who serves them, what the API server is told, whose certificate they show.

Every replica answers, the leader keeps the certificate. Only our own kinds are selected, so that an outage refuses new
AppWrappers and nothing else; stamping must not fail open, or a creator could be forged while it is down.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.controllers import ray
from shoal.controllers.appwrapper import webhook
from shoal.controllers.appwrapper.rights import Rights
from shoal.controllers.ray import webhook as ray_webhook
from shoal.kube.cache import Cache, Change
from shoal.kube.certificates import Rotation
from shoal.kube.client import Client
from shoal.kube.discovery import Discovery
from shoal.kube.webhook_certificates import CertificateKeeper, decoded
from shoal.kube.webhooks import WebhookServer

CONFIGURATION = "shoal"
SERVICE = "shoal-webhook"
SECRET = "shoal-webhook-certificate"
PORT = 9443

_WRAPPER_RULES: list[Json] = [
    {
        "apiGroups": ["workload.codeflare.dev", "mcad.ibm.com"],
        "apiVersions": ["v1beta1", "v1beta2"],
        "resources": ["appwrappers"],
        "operations": ["CREATE", "UPDATE"],
        "scope": "Namespaced",
    }
]
_QUOTA_RULES: list[Json] = [
    {
        "apiGroups": ["quota.codeflare.dev", "ibm.com"],
        "apiVersions": ["v1alpha1", "v1"],
        "resources": ["quotasubtrees"],
        "operations": ["CREATE", "UPDATE"],
        "scope": "Namespaced",
    }
]


class Admission:
    """The server of one replica. `run` it in every replica, `keep` where the lease is held."""

    def __init__(self, client: Client, namespace: str, hosts: tuple[str, ...]) -> None:
        self._client = client
        self._namespace = namespace
        self._rotation = Rotation(SERVICE, hosts or (f"{SERVICE}.{namespace}.svc",))
        self._server = WebhookServer()
        self._presented = False
        judge = webhook.Judge(Rights(client), Discovery(client))
        self._server.admit(webhook.STAMP_PATH, webhook.stamp)
        self._server.admit(webhook.VALIDATE_PATH, judge.validate)
        self._server.admit(ray_webhook.VALIDATE_PATH, ray_webhook.validator(ray.Settings()))

    async def run(self, host: str, port: int) -> None:
        """Answer calls until cancelled, with whatever certificate the Secret holds."""
        await self._server.start(host, port)
        secrets: Cache[Json] = Cache(
            self._client, kinds.SECRET, namespace=self._namespace, field_selector=f"metadata.name={SECRET}"
        )
        secrets.subscribe(self._changed)
        try:
            await secrets.run()
        finally:
            await self._server.stop()

    def _changed(self, change: Change) -> None:
        if change.new is not None:
            self._server.present(decoded(change.new).chain.leaf)
            self._presented = True

    def trouble(self) -> str | None:
        """Why calls cannot be answered yet; None when they can."""
        return None if self._presented else "there is no certificate to show yet"

    async def keep(self, client: Client) -> None:
        """Renew the certificate in time and tell the API server whom to trust, until cancelled."""
        configurations = ((kinds.MUTATING_WEBHOOK, CONFIGURATION), (kinds.VALIDATING_WEBHOOK, CONFIGURATION))
        keeper = CertificateKeeper(
            client, self._rotation, namespace=self._namespace, secret=SECRET, webhooks=configurations
        )
        await keeper.run()


def configurations(namespace: str, url: str = "") -> list[Json]:
    """What the API server is told. Without `url` it calls the Service."""
    return [
        _configuration(
            "MutatingWebhookConfiguration",
            [_webhook("stamp.shoal.dev", webhook.STAMP_PATH, _WRAPPER_RULES, namespace, url)],
        ),
        _configuration(
            "ValidatingWebhookConfiguration",
            [
                _webhook("appwrapper.shoal.dev", webhook.VALIDATE_PATH, _WRAPPER_RULES, namespace, url),
                # What only says early that something cannot work may be missed: the controllers say it later.
                _webhook("quota.shoal.dev", webhook.VALIDATE_PATH, _QUOTA_RULES, namespace, url, needed=False),
                _webhook("ray.shoal.dev", ray_webhook.VALIDATE_PATH, ray_webhook.RULES, namespace, url, needed=False),
            ],
        ),
    ]


def certificate_hosts(url: str) -> tuple[str, ...]:
    """The name that the certificate must carry when the API server calls a URL."""
    host = urlsplit(url).hostname
    return (host,) if host else ()


def _configuration(kind: str, webhooks: list[Json]) -> Json:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": CONFIGURATION},
        "webhooks": webhooks,
    }


def _webhook(name: str, path: str, rules: list[Json], namespace: str, url: str, *, needed: bool = True) -> Json:
    service = {"name": SERVICE, "namespace": namespace, "path": path, "port": 443}
    return {
        "name": name,
        "clientConfig": {"url": url.rstrip("/") + path} if url else {"service": service},
        "rules": rules,
        "failurePolicy": "Fail" if needed else "Ignore",
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "admissionReviewVersions": ["v1"],
        "matchPolicy": "Equivalent",
    }
