"""OpenAPI v2 and v3 of what the server serves."""

from shoal.local.apiserver.openapi.documents import OpenApi

__all__ = ["OpenApi"]
