"""What the API server calls a kind: group, version, name, and the path where its objects live.

Everything that talks to an API server names kinds by these values; nothing builds a path by hand.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote

import msgspec


class Kind(msgspec.Struct, frozen=True, order=True):
    """One served kind. `group` is empty for the core group."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return _api_version(self.group, self.version)

    @property
    def group_kind(self) -> str:
        """`kind.group`, the name that survives a change of version."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def resource(self) -> str:
        """`plural.group`, as errors and CRD names spell it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of a collection, an object or a subresource. A missing namespace means all of them."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/" + "/".join(parts)


@lru_cache
def _api_version(group: str, version: str) -> str:
    """One text for all objects of a kind that are held."""
    return f"{group}/{version}" if group else version


class Key(msgspec.Struct, frozen=True, order=True):
    """Namespace and name: what a reconciler is called with. Cluster-scoped objects have an empty namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name
