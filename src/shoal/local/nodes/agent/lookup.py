"""What pods refer to, read from the API server: the runtime's `Sources` over a client."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shoal.api.kind import Kind
from shoal.api.kinds import CONFIG_MAP, PERSISTENT_VOLUME_CLAIM, SECRET, SERVICE_ACCOUNT
from shoal.api.meta import Json
from shoal.kube.client import Client
from shoal.kube.errors import KubeError, NotFound
from shoal.local.nodes.runtime.sources import ConfigError


class ApiSources:
    """`api` is where pods reach the server, `certificate` its CA; `sizes` tells a node's allocatable.

    `binds_claims` where nothing else provides persistent volumes: a claim is bound when a pod first uses it.
    """

    def __init__(
        self,
        client: Client,
        sizes: Callable[[str], dict[str, str]],
        api: tuple[str, int] | None = None,
        certificate: str = "",
        binds_claims: bool = False,
    ) -> None:
        self._client = client
        self._sizes = sizes
        self._api = api
        self._certificate = certificate
        self._binds_claims = binds_claims

    async def config_map(self, namespace: str, name: str) -> Json | None:
        return await self._get(CONFIG_MAP, namespace, name)

    async def secret(self, namespace: str, name: str) -> Json | None:
        return await self._get(SECRET, namespace, name)

    async def claim(self, namespace: str, name: str) -> bool:
        found = await self._get(PERSISTENT_VOLUME_CLAIM, namespace, name)
        if found is None:
            return False
        if self._binds_claims and (found.get("status") or {}).get("phase") != "Bound":
            wanted = found.get("spec") or {}
            size = ((wanted.get("resources") or {}).get("requests") or {}).get("storage", "0")
            status = {"phase": "Bound", "accessModes": wanted.get("accessModes") or [], "capacity": {"storage": size}}
            try:
                await self._client.patch(
                    PERSISTENT_VOLUME_CLAIM, name, namespace, {"status": status}, subresource="status"
                )
            except KubeError as error:
                raise ConfigError(f"claim {name} cannot be bound: {error}") from error
        return True

    async def account(self, namespace: str, name: str) -> Json | None:
        return await self._get(SERVICE_ACCOUNT, namespace, name)

    async def token(self, pod: Json, account: str, audience: str, seconds: int) -> str:
        metadata = pod["metadata"]
        namespace = metadata.get("namespace", "")
        holder = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        spec: Json = {"expirationSeconds": max(600, seconds), "boundObjectRef": holder}
        if audience:
            spec["audiences"] = [audience]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = SERVICE_ACCOUNT.path(namespace, account, "token")
        try:
            answer = await self._client.request("POST", path, body=msgspec.json.encode(body))
        except KubeError as error:
            raise ConfigError(f"no token for service account {namespace}/{account}: {error}") from error
        return str(msgspec.json.decode(answer.body)["status"]["token"])

    def certificate(self) -> str:
        return self._certificate

    def api_address(self) -> tuple[str, int] | None:
        return self._api

    def allocatable(self, node: str) -> dict[str, str]:
        return self._sizes(node)

    async def _get(self, kind: Kind, namespace: str, name: str) -> Json | None:
        try:
            return await self._client.get(kind, name, namespace)
        except NotFound:
            return None
        except KubeError as error:
            raise ConfigError(f"cannot read {name}: {error}") from error
