"""Credentials: from a kubeconfig file or, inside a pod, from the service account, to a ready transport.

Called by every entry point that talks to a server. Whatever is wrong in the file is named with the file, the entry
and what to do; nothing here prints a token or a key.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from shoal.errors import BadInput
from shoal.kube.clock import Clock, SystemClock
from shoal.kube.credentials import ExecPlugin, ExecSettings, TokenFile, fixed_token
from shoal.kube.http import HttpTransport, TokenSource

_VALIDITY = re.compile(rb"\x30\x1e\x17\x0d\d{12}Z\x17\x0d(\d{12}Z)")
"""From when to when, as a certificate encodes dates before 2050; the group is its end."""

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ClusterEntry(msgspec.Struct, rename="kebab", frozen=True):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class UserEntry(msgspec.Struct, frozen=True):
    client_certificate: str = msgspec.field(name="client-certificate", default="")
    client_certificate_data: str = msgspec.field(name="client-certificate-data", default="")
    client_key: str = msgspec.field(name="client-key", default="")
    client_key_data: str = msgspec.field(name="client-key-data", default="")
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    username: str = ""
    password: str = ""
    exec: ExecSettings | None = None
    auth_provider: dict[str, Any] | None = msgspec.field(name="auth-provider", default=None)
    impersonate: str = msgspec.field(name="as", default="")
    impersonate_groups: list[str] | None = msgspec.field(name="as-groups", default=None)
    impersonate_uid: str = msgspec.field(name="as-uid", default="")


class ContextEntry(msgspec.Struct, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: ClusterEntry = ClusterEntry()


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: UserEntry | None = None


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: ContextEntry = ContextEntry()


class _File(msgspec.Struct, frozen=True):
    current_context: str = msgspec.field(name="current-context", default="")
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


class ClusterTarget(msgspec.Struct, frozen=True):
    """One context, resolved: which server, as which user, and the namespace that commands use by default."""

    source: str
    cluster: ClusterEntry
    user: UserEntry
    namespace: str
    cluster_directory: Path
    user_directory: Path


def load(
    path: str | Path | None = None,
    context: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> HttpTransport:
    """A transport for a context: from `path`, else $KUBECONFIG, else ~/.kube/config, else the pod's service account."""
    environment = os.environ if environment is None else environment
    if path is None and not environment.get("KUBECONFIG") and not default_path(environment).exists():
        if environment.get("KUBERNETES_SERVICE_HOST"):
            return in_cluster(environment=environment)
        raise BadInput(
            f"no kubeconfig: {default_path(environment)} does not exist, KUBECONFIG is not set and this is not a pod. "
            "Name one with --kubeconfig."
        )
    return transport(resolve(path, context, environment=environment), clock=clock or SystemClock())


def load_with_token(
    token: str, path: str | Path | None = None, context: str | None = None, *, clock: Clock | None = None
) -> HttpTransport:
    """The server that `load` finds, as the holder of this token: nothing of the context's own user goes with it."""
    if path is None and not os.environ.get("KUBECONFIG") and not default_path(os.environ).exists():
        return in_cluster(clock=clock).with_token(fixed_token(token))
    target = msgspec.structs.replace(resolve(path, context), user=UserEntry(token=token))
    return transport(target, clock=clock or SystemClock())


def default_path(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or "~").expanduser() / ".kube" / "config"


def resolve(
    path: str | Path | None = None, context: str | None = None, *, environment: Mapping[str, str] | None = None
) -> ClusterTarget:
    """Read the file, or the files that KUBECONFIG lists (the first to name an entry wins), down to one context."""
    environment = os.environ if environment is None else environment
    return _resolve(_files(path, environment), context)


def parse(content: bytes, source: str, context: str | None = None) -> ClusterTarget:
    """A kubeconfig that is not in a file, down to one context. `source` is what messages call it."""
    return _resolve([(Path(source), _decode(content, source))], context)


def _resolve(files: list[tuple[Path, _File]], context: str | None) -> ClusterTarget:
    source = ", ".join(str(file) for file, _ in files)
    name = context or next((content.current_context for _, content in files if content.current_context), "")
    if not name:
        raise BadInput(f"{source} has no current-context: name one with --context. It has: {_names(files, 'contexts')}")
    chosen = _find(files, "contexts", name)
    if chosen is None:
        raise BadInput(f"{source} has no context {name!r}. It has: {_names(files, 'contexts')}")
    entry: ContextEntry = chosen[1].context
    cluster = _find(files, "clusters", entry.cluster)
    if cluster is None:
        raise BadInput(f"context {name!r} in {source} names cluster {entry.cluster!r}, which is not there. "
                       f"It has: {_names(files, 'clusters')}")  # fmt: skip
    user = _find(files, "users", entry.user) if entry.user else None
    if entry.user and user is None:
        raise BadInput(f"context {name!r} in {source} names user {entry.user!r}, which is not there. "
                       f"It has: {_names(files, 'users')}")  # fmt: skip
    if not cluster[1].cluster.server:
        raise BadInput(f"cluster {entry.cluster!r} in {source} has no server: set its URL")
    return ClusterTarget(
        source=source,
        cluster=cluster[1].cluster,
        user=(user[1].user if user else None) or UserEntry(),
        namespace=entry.namespace or "default",
        cluster_directory=cluster[0].parent,
        user_directory=user[0].parent if user else cluster[0].parent,
    )


def transport(target: ClusterTarget, *, clock: Clock | None = None, most: int = 0) -> HttpTransport:
    """A transport for a resolved context. `most`: bytes of an answer that are taken; 0: any number."""
    user = target.user
    if user.auth_provider is not None:
        raise BadInput(f"{target.source}: auth-provider was removed from Kubernetes; use an exec plug-in instead")
    if target.cluster.proxy_url:
        raise BadInput(f"{target.source}: proxy-url is not supported; reach {target.cluster.server} directly")
    clock = clock or SystemClock()
    context = tls_context(target, clock=clock)
    token: TokenSource | None = None
    if user.token_file:
        token = TokenFile(target.user_directory / user.token_file, clock=clock)
    elif user.token:
        token = fixed_token(user.token)
    elif user.exec is not None:
        token = ExecPlugin(
            user.exec,
            target.user_directory,
            source=target.source,
            clock=clock,
            present=lambda certificate, key: _present(context, certificate, key, target.source),
        )
    impersonation = {
        "Impersonate-User": user.impersonate,
        "Impersonate-Group": "\n".join(user.impersonate_groups or ()),
        "Impersonate-Uid": user.impersonate_uid,
    }
    headers = {name: value for name, value in impersonation.items() if value}
    if user.username:
        pair = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
        headers["Authorization"] = f"Basic {pair}"
    return HttpTransport(
        target.cluster.server,
        tls=context,
        token=token,
        headers=headers,
        server_name=target.cluster.tls_server_name,
        most=most,
    )


def inlined(target: ClusterTarget) -> bytes:
    """The same context as a kubeconfig of its own, with the content of the files that it names. JSON, which is YAML."""
    cluster, user = target.cluster, target.user
    authority = _bytes(cluster.certificate_authority_data, cluster.certificate_authority, target.cluster_directory,
                       f"certificate-authority of {target.source}")  # fmt: skip
    certificate = _bytes(user.client_certificate_data, user.client_certificate, target.user_directory,
                         f"client-certificate of {target.source}")  # fmt: skip
    key = _bytes(user.client_key_data, user.client_key, target.user_directory, f"client-key of {target.source}")
    token = user.token or _bytes("", user.token_file, target.user_directory, "token file").decode().strip()
    clusters = {
        "server": cluster.server,
        "certificate-authority-data": base64.b64encode(authority).decode(),
        "tls-server-name": cluster.tls_server_name,
    }
    users = {
        "client-certificate-data": base64.b64encode(certificate).decode(),
        "client-key-data": base64.b64encode(key).decode(),
        "token": token,
        "username": user.username,
        "password": user.password,
    }
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "member",
            "contexts": [{"name": "member", "context": {"cluster": "member", "user": "member"}}],
            "clusters": [{"name": "member", "cluster": {name: value for name, value in clusters.items() if value}}],
            "users": [{"name": "member", "user": {name: value for name, value in users.items() if value}}],
        }
    )


def _present(context: ssl.SSLContext | None, certificate: bytes, key: bytes, source: str) -> None:
    """Use a plug-in's certificate for connections from now on."""
    if context is not None:
        load_pair(context, certificate, key, source)


def in_cluster(
    *, environment: Mapping[str, str] | None = None, directory: Path = SERVICE_ACCOUNT, clock: Clock | None = None
) -> HttpTransport:
    """The pod's own service account; the kubelet replaces its token file, so it is read again as it ages."""
    environment = os.environ if environment is None else environment
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise BadInput("not inside a pod: KUBERNETES_SERVICE_HOST is not set. Name a kubeconfig instead.")
    for name in ("token", "ca.crt"):
        if not (directory / name).exists():
            raise BadInput(f"{directory / name} is missing: the pod needs a mounted service account "
                           "(automountServiceAccountToken must not be false)")  # fmt: skip
    tls = _checked_context(
        str(directory / "ca.crt"), lambda: ssl.create_default_context(cafile=str(directory / "ca.crt"))
    )
    shown = f"[{host}]" if ":" in host else host
    return HttpTransport(
        f"https://{shown}:{port}", tls=tls, token=TokenFile(directory / "token", clock=clock or SystemClock())
    )


def tls_context(target: ClusterTarget, *, clock: Clock | None = None) -> ssl.SSLContext | None:
    """Trust and client certificate of a context, checked now rather than at the first request."""
    cluster, user = target.cluster, target.user
    if cluster.server.startswith("http://"):
        return None
    authority = _bytes(cluster.certificate_authority_data, cluster.certificate_authority, target.cluster_directory,
                       f"certificate-authority of {target.source}")  # fmt: skip
    context = _checked_context(
        f"certificate-authority of {target.source}",
        lambda: ssl.create_default_context(cadata=authority.decode() if authority else None),
    )
    if cluster.insecure_skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = _bytes(user.client_certificate_data, user.client_certificate, target.user_directory,
                         f"client-certificate of {target.source}")  # fmt: skip
    key = _bytes(user.client_key_data, user.client_key, target.user_directory, f"client-key of {target.source}")
    if certificate or key:
        if not certificate or not key:
            raise BadInput(f"{target.source}: client-certificate and client-key go together; one of them is missing")
        check_not_expired(certificate, target.source, clock or SystemClock())
        load_pair(context, certificate, key, target.source)
    return context


def check_not_expired(certificate: bytes, source: str, clock: Clock) -> None:
    if _is_plainly_valid(certificate, clock):
        return
    from cryptography import x509  # the library is large: a short command would spend most of its time on it

    try:
        found = x509.load_pem_x509_certificate(certificate)
    except ValueError as error:
        raise BadInput(f"the client certificate in {source} cannot be read: {error}") from None
    ends = found.not_valid_after_utc
    if clock.now() > ends.timestamp() * 1_000_000:
        raise BadInput(f"the client certificate in {source} expired on {ends:%Y-%m-%d %H:%M} UTC: "
                       "get a fresh kubeconfig from your cluster")  # fmt: skip


def _is_plainly_valid(certificate: bytes, clock: Clock) -> bool:
    """Does the first certificate hold just one pair of dates, the second of them to come? Anything less plain is for
    the library to judge."""
    body = certificate.partition(b"-----BEGIN CERTIFICATE-----")[2].partition(b"-----END CERTIFICATE-----")[0]
    try:
        ends = _VALIDITY.findall(base64.b64decode(b"".join(body.split()), validate=True))
    except binascii.Error:
        return False
    now = time.strftime("%y%m%d%H%M%SZ", time.gmtime(clock.now() / 1_000_000)).encode()
    return len(ends) == 1 and now < ends[0]


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes, source: str) -> None:
    """Python takes a client certificate only from a file: a private one, gone before this returns."""
    with _private_file(certificate + b"\n" + key) as file:
        try:
            context.load_cert_chain(file)
        except (ssl.SSLError, OSError) as error:
            raise BadInput(f"client-certificate and client-key in {source} do not go together: {error}") from None


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """In memory where the system can: a pod of ours has no place on disk that it may write."""
    if not hasattr(os, "memfd_create"):
        import tempfile

        with tempfile.TemporaryDirectory() as directory:  # mode 0700
            file = Path(directory) / "pair.pem"
            file.touch(mode=0o600)
            file.write_bytes(content)
            yield str(file)
        return
    descriptor = os.memfd_create("pair.pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _checked_context(what: str, make: Any) -> ssl.SSLContext:
    try:
        context = make()
    except (ssl.SSLError, UnicodeDecodeError, ValueError, OSError) as error:
        raise BadInput(f"the {what} is not a PEM certificate: {error}") from None
    assert isinstance(context, ssl.SSLContext)
    return context


def _files(path: str | Path | None, environment: Mapping[str, str]) -> list[tuple[Path, _File]]:
    if path is not None:
        listed = [Path(path)]
    elif environment.get("KUBECONFIG"):
        listed = [Path(part) for part in environment["KUBECONFIG"].split(os.pathsep) if part]
        present = [file for file in listed if file.exists()]
        listed = present or listed[:1]
    else:
        listed = [default_path(environment)]
    return [(file, _read(file)) for file in listed]


def _read(file: Path) -> _File:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read the kubeconfig {file}: {error.strerror}") from None
    return _decode(content, str(file))


@lru_cache(maxsize=8)
def _decode(content: bytes, file: str) -> _File:
    """Kept for a while: a command asks for the namespace first, and then for the server."""
    if not content.strip():
        raise BadInput(f"the kubeconfig {file} is empty")
    try:
        return msgspec.yaml.decode(content, type=_File)
    except msgspec.ValidationError as error:
        raise BadInput(f"the kubeconfig {file} is not as expected: {error}") from None
    except msgspec.DecodeError as error:
        where = " ".join(str(error).split()).replace(' in "<byte string>",', ": see")
        raise BadInput(f"the kubeconfig {file} is not YAML: {where}") from None


def _find(files: list[tuple[Path, _File]], list_name: str, name: str) -> tuple[Path, Any] | None:
    for file, content in files:
        for entry in getattr(content, list_name) or ():
            if entry.name == name:
                return file, entry
    return None


def _names(files: list[tuple[Path, _File]], list_name: str) -> str:
    return ", ".join(entry.name for _, content in files for entry in getattr(content, list_name) or ()) or "none"


def _bytes(data: str, file: str, directory: Path, what: str) -> bytes:
    """Inline data wins over a file; relative files are beside the kubeconfig."""
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise BadInput(f"the inline {what} is not base64: {error}") from None
    if file:
        try:
            return (directory / file).read_bytes()
        except OSError as error:
            raise BadInput(f"cannot read {directory / file}, the {what}: {error.strerror}") from None
    return b""
