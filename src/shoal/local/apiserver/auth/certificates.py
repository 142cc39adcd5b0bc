"""Keys and certificates of one server: its CA, its own certificate, its clients', and the key that signs tokens.

Made at the first start and kept in the state directory, files 0600 and directory 0700. Without a directory they live in
memory and die with the server.
"""

from __future__ import annotations

import datetime
import os
import secrets
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from shoal.kube.certificates import Pair, make_authority, make_leaf

RENEW_BEFORE = datetime.timedelta(days=30)


def private_file(path: Path, data: bytes) -> None:
    """Write a secret whole or not at all, readable by its owner alone from the first byte on."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        os.fchmod(handle, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class ServerIdentity:
    """What a server proves itself with, and what it gives to its clients."""

    def __init__(self, directory: Path | None, hosts: tuple[str, ...] = ()) -> None:
        self.directory = directory / "pki" if directory is not None else None
        self.hosts = tuple(
            dict.fromkeys(
                ("127.0.0.1", "::1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", *hosts)
            )
        )
        if self.directory is not None:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.chmod(self.directory, 0o700)
        self.token_key = self._key("tokens.key")
        self.ca = self._pair("ca", lambda: make_authority(f"shoal-ca-{secrets.token_hex(4)}"))
        self.server = self._pair("server", lambda: self._make_server(), self._still_good)
        self.admin_token = self._secret("admin.token")

    def _read(self, name: str) -> bytes | None:
        if self.directory is None or not (self.directory / name).exists():
            return None
        return (self.directory / name).read_bytes()

    def _write(self, name: str, data: bytes) -> None:
        if self.directory is not None:
            private_file(self.directory / name, data)

    def _key(self, name: str) -> ec.EllipticCurvePrivateKey:
        found = self._read(name)
        if found is None:
            key = ec.generate_private_key(ec.SECP256R1())
            self._write(name, _key_pem(key))
            return key
        loaded = serialization.load_pem_private_key(found, None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        return loaded

    def _secret(self, name: str) -> str:
        found = self._read(name)
        if found is None:
            found = secrets.token_urlsafe(32).encode()
            self._write(name, found)
        return found.decode().strip()

    def _pair(self, name: str, make: Callable[[], Pair], good: Callable[[Pair], bool] = lambda pair: True) -> Pair:
        certificate, key = self._read(f"{name}.crt"), self._read(f"{name}.key")
        if certificate and key and good(Pair(certificate, key)):
            return Pair(certificate, key)
        pair = make()
        self._write(f"{name}.key", pair.key)
        self._write(f"{name}.crt", pair.certificate)
        return pair

    def _still_good(self, pair: Pair) -> bool:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        if certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC) + RENEW_BEFORE:
            return False
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        known = {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
        return set(self.hosts) <= known

    def _make_server(self) -> Pair:
        return make_leaf(self.ca, "kube-apiserver", hosts=self.hosts, days=self._days_left)

    def client(self, user: str, groups: tuple[str, ...]) -> Pair:
        """A client certificate: the user as common name, the groups as organisations."""
        return make_leaf(self.ca, user, organizations=groups, server=False, client=True, days=self._days_left)

    @property
    def _days_left(self) -> float:
        """Nothing outlives the authority that signed it."""
        left = self.ca.ends / 1_000_000 - datetime.datetime.now(datetime.UTC).timestamp()
        return left / datetime.timedelta(days=1).total_seconds()

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=self.ca.certificate.decode())
        with tempfile.TemporaryDirectory(dir=self.directory) as place:  # ssl reads keys from files only; mode 0700
            for name, data in (("crt", self.server.certificate), ("key", self.server.key)):
                private_file(Path(place) / name, data)
            context.load_cert_chain(Path(place) / "crt", Path(place) / "key")
        return context

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.ca.certificate.decode())


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
