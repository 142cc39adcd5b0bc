"""From a Secret to the way into another cluster.

A kubeconfig that a user can put into a Secret must not make this process run commands, read its files or talk to a
server that it cannot verify: only inline data over https is taken, anything else is refused with the field at fault.
Nothing here prints a token or a key.
"""

from __future__ import annotations

import base64
import binascii

from shoal.api.meta import Json
from shoal.errors import BadInput
from shoal.kube import kubeconfig
from shoal.kube.bounded import AnswerLimits
from shoal.kube.kubeconfig import ClusterTarget
from shoal.kube.transport import Transport

KEY = "kubeconfig"


class Insecure(BadInput):
    """The kubeconfig asks for something that a member's credential may not."""


def content_of(secret: Json) -> bytes:
    """The kubeconfig in a Secret. Raises BadInput."""
    name = f"Secret {secret['metadata'].get('namespace', '')}/{secret['metadata']['name']}"
    text = (secret.get("data") or {}).get(KEY)
    if not text:
        raise BadInput(f"{name} has no key {KEY}: put the member's kubeconfig there")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadInput(f"{name}: {KEY} is not base64") from None


def connect(content: bytes, source: str, most: int = AnswerLimits().body) -> Transport:
    """Raises BadInput for what cannot be read, Insecure for what is not wanted. `most`: bytes of one answer."""
    target = kubeconfig.parse(content, source)
    check(target)
    return kubeconfig.transport(target, most=most)


def check(target: ClusterTarget) -> None:
    cluster, user = target.cluster, target.user
    refused = {
        "users[].user.exec": user.exec is not None,
        "users[].user.auth-provider": user.auth_provider is not None,
        "users[].user.tokenFile": bool(user.token_file),
        "users[].user.client-certificate": bool(user.client_certificate),
        "users[].user.client-key": bool(user.client_key),
        "clusters[].cluster.certificate-authority": bool(cluster.certificate_authority),
        "clusters[].cluster.insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "clusters[].cluster.proxy-url": bool(cluster.proxy_url),
    }
    for field, found in refused.items():
        if found:
            raise Insecure(f"{target.source}: {field} is not allowed for a member cluster: inline data and TLS only")
    if not cluster.server.startswith("https://"):
        raise Insecure(f"{target.source}: clusters[].cluster.server must begin with https://")
