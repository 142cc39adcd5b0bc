"""Keeps the webhook's certificate fresh and every place that trusts it up to date.

The chain lives in one Secret, shared by all replicas; each presents what it finds there, the leader renews. A new
authority is announced to every webhook configuration and CRD first and used only afterwards, so that no call is
refused.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from shoal.api.kind import Kind
from shoal.api.kinds import API_SERVICE, CRD, MUTATING_WEBHOOK, SECRET, VALIDATING_WEBHOOK
from shoal.api.meta import Json
from shoal.kube.certificates import Chain, Pair, Rotation, read_pair
from shoal.kube.client import Client
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.errors import AlreadyExists, KubeError, NotFound

log = logging.getLogger(__name__)

ADOPT_AFTER = 300.0
"""Seconds between the announcement of a new authority and its use: time for every API server to learn of it."""
RETRY = 30.0


class Stored(msgspec.Struct, frozen=True):
    """What the Secret holds."""

    chain: Chain
    announced: Pair | None = None

    @property
    def bundle(self) -> bytes:
        return self.chain.bundle + (self.announced.certificate if self.announced else b"")


class CertificateKeeper:
    """`run` it where the lease is held; `present` is called with each leaf to serve."""

    def __init__(
        self,
        client: Client,
        rotation: Rotation,
        *,
        namespace: str,
        secret: str = "shoal-webhook-certificate",
        webhooks: tuple[tuple[Kind, str], ...] = (),
        present: Callable[[Pair], None] = lambda leaf: None,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._rotation = rotation
        self._namespace = namespace
        self._secret = secret
        self._webhooks = webhooks
        self._present = present
        self._clock: Clock = clock or SystemClock()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                wait = await self.step()
            except KubeError as error:
                log.warning("webhook certificate: %s (again in %.0f s)", error, RETRY)
                wait = RETRY
            await self._clock.sleep(wait)

    async def step(self) -> float:
        """Bring certificates and bundles to where they should be; seconds until the next look."""
        secret, stored = await self._load()
        chain = self._rotation.renew(stored.chain, self._clock)
        if chain is not stored.chain:
            secret, stored = await self._store(secret, Stored(chain, stored.announced))
        if stored.announced is None and (fresh := self._rotation.announce(stored.chain, self._clock)):
            secret, stored = await self._store(secret, Stored(stored.chain, fresh))
        await self.inject(stored.bundle)
        self._present(stored.chain.leaf)
        if stored.announced is not None:
            await self._clock.sleep(ADOPT_AFTER)
            adopted = self._rotation.adopt(stored.chain, stored.announced, self._clock)
            secret, stored = await self._store(secret, Stored(adopted))
            self._present(stored.chain.leaf)
        return self._rotation.next_look(stored.chain, self._clock)

    async def inject(self, bundle: bytes) -> None:
        """Put the bundle into every configuration in one pass; those that are not installed yet are left out."""
        text = base64.b64encode(bundle).decode()
        for kind, name in self._webhooks:
            try:
                found = await self._client.get(kind, name)
            except NotFound:
                log.debug("%s %s is not installed; nothing to inject", kind.kind, name)
                continue
            steps = [
                {"op": "add", "path": f"{path}/caBundle", "value": text}
                for path, client_config in _client_configs(kind, found)
                if client_config.get("caBundle") != text
            ]
            if steps:
                guard = {
                    "op": "test",
                    "path": "/metadata/resourceVersion",
                    "value": found["metadata"]["resourceVersion"],
                }
                await self._client.patch(kind, name, None, [guard, *steps], patch_type="json")

    async def _load(self) -> tuple[Json, Stored]:
        try:
            secret = await self._client.get(SECRET, self._secret, self._namespace)
        except NotFound:
            fresh = Stored(self._rotation.begin(self._clock))
            body = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": self._secret, "namespace": self._namespace},
                "type": "Opaque",
                "data": _encoded(fresh),
            }
            try:
                secret = await self._client.create(SECRET, body, self._namespace)
            except AlreadyExists:
                secret = await self._client.get(SECRET, self._secret, self._namespace)
        return secret, decoded(secret)

    async def _store(self, secret: Json, stored: Stored) -> tuple[Json, Stored]:
        body = {**secret, "data": _encoded(stored)}
        return await self._client.update(SECRET, body, self._secret, self._namespace), stored


def decoded(secret: Json) -> Stored:
    """The chain in a Secret, for replicas that only present it."""
    data = {name: base64.b64decode(value) for name, value in (secret.get("data") or {}).items()}
    authority = read_pair(data.get("ca.crt", b""), data.get("ca.key", b""))
    leaf = read_pair(data.get("tls.crt", b""), data.get("tls.key", b""))
    announced = read_pair(data["next.crt"], data["next.key"]) if data.get("next.crt") else None
    return Stored(Chain(authority, leaf, tuple(_split(data.get("retired.crt", b"")))), announced)


def leaf_of(secret: Json) -> Pair:
    """The certificate to present, whichever controller keeps it. Raises BadInput."""
    data = secret.get("data") or {}
    return read_pair(base64.b64decode(data.get("tls.crt", "")), base64.b64decode(data.get("tls.key", "")))


def _encoded(stored: Stored) -> dict[str, str]:
    chain = stored.chain
    data = {
        "ca.crt": chain.authority.certificate,
        "ca.key": chain.authority.key,
        "tls.crt": chain.leaf.certificate,
        "tls.key": chain.leaf.key,
        "retired.crt": b"".join(chain.retired),
        "next.crt": stored.announced.certificate if stored.announced else b"",
        "next.key": stored.announced.key if stored.announced else b"",
    }
    return {name: base64.b64encode(value).decode() for name, value in data.items()}


def _split(bundle: bytes) -> Iterator[bytes]:
    end = b"-----END CERTIFICATE-----\n"
    for part in bundle.split(end):
        if part.strip():
            yield part + end


def _client_configs(kind: Kind, obj: Json) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where a configuration names its caller's trust: path and value of what holds a caBundle."""
    if kind in (MUTATING_WEBHOOK, VALIDATING_WEBHOOK):
        for number, webhook in enumerate(obj.get("webhooks") or ()):
            yield f"/webhooks/{number}/clientConfig", webhook.get("clientConfig") or {}
    elif kind == CRD:
        webhook = ((obj.get("spec") or {}).get("conversion") or {}).get("webhook") or {}
        if "clientConfig" in webhook:
            yield "/spec/conversion/webhook/clientConfig", webhook["clientConfig"]
    elif kind == API_SERVICE:
        yield "/spec", obj.get("spec") or {}
