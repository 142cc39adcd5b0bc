"""The certificates of a cluster with `tlsOptions`: an authority of its own, one leaf for the head, one for the workers.

Kept in Secrets that the pods mount; nothing but the operator has to be installed for it. A leaf names the addresses of
the pods that there are, so it is made again when a pod gets another one, and two weeks before it ends. Called by
`Belongings` on every pass; at rest it reads the cache and writes nothing. The authority never changes while the cluster
lives: a Secret that a user deletes comes back with the same one.
"""

from __future__ import annotations

import base64
import binascii

from shoal.api import kinds
from shoal.api.kind import Key
from shoal.api.labels import TLS_SECRET
from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.caches import Caches
from shoal.controllers.ray.owned_writer import OwnedWriter, Stranger, owned_by
from shoal.controllers.ray.pods import tls
from shoal.controllers.ray.pods.builder import head_host
from shoal.controllers.ray.settings import RaySettings
from shoal.errors import BadInput
from shoal.kube.certificates import DAY, Pair, make_authority, make_leaf, read_pair
from shoal.kube.clock import Clock
from shoal.kube.events import Recorder

LEAF_DAYS, RENEWED_BEFORE_DAYS = 90, 15


class ClusterCertificates:
    def __init__(
        self, writer: OwnedWriter, caches: Caches, recorder: Recorder, settings: RaySettings, clock: Clock
    ) -> None:
        self._writer, self._caches, self._recorder, self._settings = writer, caches, recorder, settings
        self._clock = clock
        self._authorities: dict[str, Pair] = {}

    async def ensure(self, cluster: Json) -> float:
        """Seconds until the first leaf is due."""
        authority = await self._authority(cluster)
        due = [await self._leaf(cluster, authority, is_head=is_head) for is_head in (True, False)]
        return max(1.0, (min(due) - self._clock.now()) / 1_000_000)

    def forget(self, uid: str) -> None:
        self._authorities.pop(uid, None)

    async def _authority(self, cluster: Json) -> Pair:
        held = self._held(cluster, tls.authority_name(cluster))
        found = _pair(held)
        if found is None:
            found = self._authorities.get(view.uid(cluster))
            if found is None:
                found = make_authority(f"ray-ca-{view.name(cluster)}", clock=self._clock)
            await self._write(cluster, tls.authority_name(cluster), held, found, found)
            found = _pair(self._held(cluster, tls.authority_name(cluster))) or found  # of an operator that was faster
        self._authorities[view.uid(cluster)] = found
        return found

    async def _leaf(self, cluster: Json, authority: Pair, *, is_head: bool) -> int:
        """When it is due again, in microseconds."""
        name = tls.secret_name(cluster, is_head=is_head)
        hosts = self._hosts(cluster, is_head=is_head)
        held = self._held(cluster, name)
        found = _pair(held)
        if found is not None and _data(held, "ca.crt") == authority.certificate and hosts <= found.hosts:
            if self._clock.now() < _due(found):
                return _due(found)
            text = (
                f"The certificate in Secret {name} is renewed; pods that run have the old one until they restart, "
                f"and it ends in {RENEWED_BEFORE_DAYS} days"
            )
            self._recorder.event(cluster, "Warning", "MTLSCertificateExpiringSoon", text)
        leaf = make_leaf(
            authority, name, hosts=sorted(hosts), server=True, client=True, days=LEAF_DAYS, clock=self._clock
        )
        await self._write(cluster, name, held, leaf, authority)
        addresses = ", ".join(sorted(_addresses(self._caches.pods_of(cluster), is_head=is_head))) or "none yet"
        self._recorder.event(
            cluster, "Normal", "MTLSCertificatesUpdated", f"Secret {name} has a certificate for pods at: {addresses}"
        )
        return _due(leaf)

    def _hosts(self, cluster: Json, *, is_head: bool) -> frozenset[str]:
        service, namespace = view.head_service_name(cluster), view.namespace(cluster)
        found = {"localhost", "127.0.0.1", *_addresses(self._caches.pods_of(cluster), is_head=is_head)}
        if is_head:
            full = head_host(cluster, self._settings)
            found |= {service, f"{service}.{namespace}", f"{service}.{namespace}.svc", full}
        return frozenset(found)

    def _held(self, cluster: Json, name: str) -> Json | None:
        held = self._caches.secrets.get(Key(view.namespace(cluster), name))
        if held is not None and not owned_by(held, cluster):
            text = f"Secret {name} exists and belongs to another owner; delete or rename it, or rename the RayCluster"
            self._recorder.event(cluster, "Warning", "MTLSFailedToReconcile", text)
            raise Stranger(text)
        return held

    async def _write(self, cluster: Json, name: str, held: Json | None, pair: Pair, authority: Pair) -> None:
        parts = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.certificate}
        data = {part: base64.b64encode(text).decode() for part, text in parts.items()}
        if held is not None:
            await self._writer.patch(kinds.SECRET, held, {"data": data}, self._caches.secrets)
            return
        secret: Json = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": view.namespace(cluster),
                "labels": {
                    names.CLUSTER: view.name(cluster),
                    names.CREATED_BY: names.OPERATOR,
                    names.APP_NAME: names.APP,
                },
                "ownerReferences": [view.owner_reference(cluster, "ray.io/v1", "RayCluster")],
            },
            "type": TLS_SECRET,
            "data": data,
        }
        await self._writer.create(kinds.SECRET, secret, cluster, self._caches.secrets)


def _addresses(pods: list[Json], *, is_head: bool) -> set[str]:
    wanted = names.HEAD if is_head else names.WORKER
    return {
        str(address["ip"])
        for pod in pods
        if view.labels(pod).get(names.NODE_TYPE) == wanted and not view.deleting(pod)
        for address in _told(pod)
        if address.get("ip")
    }


def _told(pod: Json) -> list[Json]:
    status = pod.get("status") or {}
    return status.get("podIPs") or [{"ip": status.get("podIP")}]


def _due(leaf: Pair) -> int:
    return leaf.ends - RENEWED_BEFORE_DAYS * DAY * 1_000_000


def _data(secret: Json | None, part: str) -> bytes:
    try:
        return base64.b64decode(str(((secret or {}).get("data") or {}).get(part) or ""), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _pair(secret: Json | None) -> Pair | None:
    """None where there is none that can be read: it is made again."""
    if secret is None:
        return None
    try:
        return read_pair(_data(secret, "tls.crt"), _data(secret, "tls.key"))
    except BadInput:
        return None
