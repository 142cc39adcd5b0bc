"""Reading the token of a cluster, for the parts of the operator that talk to its dashboard."""

from __future__ import annotations

from shoal.api import kinds, ray_token
from shoal.api.meta import Json
from shoal.controllers.ray import view
from shoal.controllers.ray.pods import auth
from shoal.kube.client import Client
from shoal.kube.errors import NotFound


async def read_token(client: Client, cluster: Json) -> str:
    """Empty where there is no Secret yet."""
    try:
        secret = await client.get(kinds.SECRET, auth.secret_name(cluster), view.namespace(cluster))
    except NotFound:
        return ""
    return ray_token.decoded(secret.get("data"))
