"""The kinds that the server serves: the registry, and what built-in kinds do when they are written."""

from shoal.local.apiserver.kinds.resources import Registry, Resource, ServedVersion

__all__ = ["Registry", "Resource", "ServedVersion"]
