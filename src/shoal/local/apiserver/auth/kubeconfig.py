"""The kubeconfig that a server writes for its clients: everything inside, readable by its owner alone."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec

from shoal.api.meta import Json
from shoal.local.apiserver.auth.authentication import ADMIN
from shoal.local.apiserver.auth.certificates import ServerIdentity, private_file


def kubeconfig(
    path: Path, identity: ServerIdentity, server: str, user: str, groups: tuple[str, ...], namespace: str, context: str
) -> None:
    pair = identity.client(user, groups)
    credentials: Json = {"client-certificate-data": _text(pair.certificate), "client-key-data": _text(pair.key)}
    if user == ADMIN:
        credentials["token"] = identity.admin_token
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "preferences": {},
        "clusters": [
            {
                "name": context,
                "cluster": {"server": server, "certificate-authority-data": _text(identity.ca.certificate)},
            }
        ],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": user, "namespace": namespace}}],
    }
    private_file(path, msgspec.yaml.encode(config))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def dialled(host: str) -> str:
    """An address to connect to, for one to listen on."""
    if host in ("", "0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
