"""codeflare-sdk's ways to log in: which cluster, as which user, in which namespace. Of this process alone.

Without a login the user's kubeconfig decides, as for every command.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from shoal.api import kinds
from shoal.api.meta import Json
from shoal.errors import BadInput
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, NotFound
from shoal.sdk.connecting import ClusterChoice, default_namespace

MANAGER = "shoal-sdk"
DEFAULT_QUEUE = "kueue.x-k8s.io/default-queue"
_logged_in: list[ClusterChoice] = []
_folders: list[tempfile.TemporaryDirectory[str]] = []


def choice() -> ClusterChoice:
    return _logged_in[0] if _logged_in else ClusterChoice()


def namespace() -> str:
    """Where nothing names one."""
    return default_namespace(choice())


async def default_queue(client: Client, namespace: str) -> str | None:
    """The LocalQueue that is annotated as the one to use where none is named."""
    try:
        found = await client.list(kinds.LOCAL_QUEUE, namespace)
    except (Forbidden, NotFound):
        return None
    chosen = [one for one in found if (one["metadata"].get("annotations") or {}).get(DEFAULT_QUEUE) == "true"]
    return str(chosen[0]["metadata"]["name"]) if chosen else None


class TokenAuthentication:
    """`TokenAuthentication(token=…, server=…).login()`: a kubeconfig of this process alone."""

    def __init__(self, token: str, server: str, skip_tls: bool = False, ca_cert_path: str | None = None) -> None:
        self._token, self._server, self._skip_tls, self._ca = token, server, skip_tls, ca_cert_path

    def login(self) -> str:
        cluster: Json = {"server": self._server}
        if self._skip_tls:
            cluster["insecure-skip-tls-verify"] = True
        elif self._ca:
            cluster["certificate-authority"] = self._ca
        _log_in(cluster, {"token": self._token})
        return f"Logged into {self._server}"

    def logout(self) -> str:
        _log_out()
        return f"Successfully logged out of {self._server}"


class KubeConfigFileAuthentication:
    def __init__(self, kube_config_path: str | None = None) -> None:
        self._path = kube_config_path

    def load_kube_config(self) -> str:
        path = Path(self._path or os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config").expanduser()
        if not path.is_file():
            raise BadInput(f"{path} is not there; give kube_config_path")
        _logged_in[:] = [ClusterChoice(kubeconfig=path)]
        return f"Loaded user config file at path {path}"


def set_api_client(api_client: Any) -> None:
    """A client of the `kubernetes` package that is logged in already: its server and its user are used."""
    configuration = api_client.configuration
    cluster: Json = {"server": configuration.host}
    if not configuration.verify_ssl:
        cluster["insecure-skip-tls-verify"] = True
    elif configuration.ssl_ca_cert:
        cluster["certificate-authority"] = configuration.ssl_ca_cert
    header = str(configuration.get_api_key_with_prefix("authorization") or "")
    user: Json = {"token": header.removeprefix("Bearer ")} if header else {}
    if configuration.cert_file and configuration.key_file:
        user |= {"client-certificate": configuration.cert_file, "client-key": configuration.key_file}
    _log_in(cluster, user)


def _log_in(cluster: Json, user: Json) -> None:
    _log_out()
    named = {"cluster": "here", "user": "me"}
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "here", "cluster": cluster}], "contexts": [{"name": "here", "context": named}],
        "users": [{"name": "me", "user": user}],
    }  # fmt: skip
    _folders[:] = [tempfile.TemporaryDirectory(prefix="shoal-login-")]
    path = Path(_folders[0].name) / "kubeconfig"
    path.touch(mode=0o600)
    path.write_bytes(msgspec.yaml.encode(config))
    _logged_in[:] = [ClusterChoice(kubeconfig=path)]


def _log_out() -> None:
    _logged_in.clear()
    for folder in _folders:
        folder.cleanup()
    _folders.clear()
