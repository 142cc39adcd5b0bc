"""What a pod refers to but does not contain: config maps, secrets, tokens, the node it runs on.

The runtime asks through this seam and never sees an API client; tests hand in a dictionary.
"""

from __future__ import annotations

from typing import Protocol

from shoal.api.meta import Json
from shoal.errors import ShoalError


class ConfigError(ShoalError):
    """The container's configuration cannot be completed yet; shown as CreateContainerConfigError and tried again."""


class MountError(ShoalError):
    """A volume cannot be set up yet; shown as a FailedMount event and tried again."""


class Sources(Protocol):
    async def config_map(self, namespace: str, name: str) -> Json | None: ...

    async def secret(self, namespace: str, name: str) -> Json | None: ...

    async def claim(self, namespace: str, name: str) -> bool:
        """Whether there is such a persistent volume claim; it is bound from then on."""
        ...

    async def account(self, namespace: str, name: str) -> Json | None:
        """A service account; None when there is no such one."""
        ...

    async def token(self, pod: Json, account: str, audience: str, seconds: int) -> str:
        """A bearer token of a service account of the pod's namespace, which ends with the pod."""
        ...

    def certificate(self) -> str:
        """The API server's CA in PEM; empty when unknown."""
        ...

    def api_address(self) -> tuple[str, int] | None:
        """Where a pod reaches the API server."""
        ...

    def allocatable(self, node: str) -> dict[str, str]: ...
