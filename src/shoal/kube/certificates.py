"""Certificates that we make ourselves: an authority and leaves signed by it, for webhooks and the embedded server.

Strict verifiers (Python 3.13 and later) want keyUsage in the authority and authorityKeyIdentifier in the leaf; both
are always there. Keys are ECDSA P-256. Rotation keeps the old authority trusted until nothing uses it any more.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal.errors import BadInput
from shoal.kube.clock import Clock, SystemClock

DAY = 86_400
SKEW = timedelta(minutes=5)
"""Certificates begin a little early, for verifiers whose clock is behind."""


class Pair(msgspec.Struct, frozen=True):
    """A certificate and its private key, PEM."""

    certificate: bytes
    key: bytes

    @property
    def begins(self) -> int:
        return _microseconds(self._parsed.not_valid_before_utc)

    @property
    def ends(self) -> int:
        return _microseconds(self._parsed.not_valid_after_utc)

    @property
    def serial(self) -> int:
        return self._parsed.serial_number

    @property
    def hosts(self) -> frozenset[str]:
        """The names and addresses that it is good for."""
        try:
            found = self._parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return frozenset()
        addresses = found.get_values_for_type(x509.IPAddress)
        return frozenset((*found.get_values_for_type(x509.DNSName), *map(str, addresses)))

    def write(self, certificate_path: Path, key_path: Path) -> None:
        """The key is readable by its owner only, from its first byte on."""
        write_private(key_path, self.key)
        certificate_path.write_bytes(self.certificate)

    @property
    def _parsed(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate)


def read_pair(certificate: bytes, key: bytes) -> Pair:
    """Check that both parse and belong together."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        private = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError) as error:
        raise BadInput(f"not a PEM certificate with its key: {error}") from None
    if parsed.public_key() != private.public_key():
        raise BadInput("the certificate and the private key do not belong together")
    return Pair(certificate, key)


def make_authority(name: str = "shoal", *, days: float = 3650, clock: Clock | None = None) -> Pair:
    """A self-signed authority that may sign leaves and nothing below them."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        _builder(subject, subject, key.public_key(), days, clock or SystemClock())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def make_leaf(
    authority: Pair,
    name: str,
    *,
    hosts: Iterable[str] = (),
    organizations: Iterable[str] = (),
    server: bool = True,
    client: bool = False,
    days: float = 365,
    clock: Clock | None = None,
) -> Pair:
    """A leaf for a server (`hosts`: names and addresses) or a client (`name` is the user, organizations its groups)."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, one) for one in organizations]
    subject = x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH] * server + [ExtendedKeyUsageOID.CLIENT_AUTH] * client
    builder = (
        _builder(subject, issuer.subject, key.public_key(), days, clock or SystemClock())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            ),
            critical=False,
        )
    )
    names = [_general_name(host) for host in hosts]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _pair(builder.sign(issuer_key, hashes.SHA256()), key)


class Chain(msgspec.Struct, frozen=True):
    """What a server presents and what its callers must trust. Both authorities are in the bundle during an overlap."""

    authority: Pair
    leaf: Pair
    retired: tuple[bytes, ...] = ()
    """Certificates of earlier authorities that callers may still meet."""

    @property
    def bundle(self) -> bytes:
        return b"".join([self.authority.certificate, *self.retired])


class Rotation(msgspec.Struct, frozen=True):
    """How long certificates live, in days. Each is replaced when a third of its life is left.

    A new authority is announced in the bundle first; its first leaf is presented only when the announcement is known to
    have reached every caller (`signed_by`), and the old authority leaves the bundle when its last leaf has ended.
    """

    name: str
    hosts: tuple[str, ...]
    authority_days: float = 730
    leaf_days: float = 90

    def begin(self, clock: Clock) -> Chain:
        authority = make_authority(self.name, days=self.authority_days, clock=clock)
        return Chain(authority, self._leaf(authority, clock))

    def announce(self, chain: Chain, clock: Clock) -> Pair | None:
        """The next authority, to be added to every bundle before `adopt`; None while the present one is young."""
        if clock.now() < _due(chain.authority):
            return None
        return make_authority(self.name, days=self.authority_days, clock=clock)

    def adopt(self, chain: Chain, authority: Pair, clock: Clock) -> Chain:
        """Present leaves of the new authority; the old one stays trusted."""
        retired = (chain.authority.certificate, *chain.retired)
        return Chain(authority, self._leaf(authority, clock), retired)

    def renew(self, chain: Chain, clock: Clock) -> Chain:
        """The chain with a fresh leaf where it is due, and without authorities whose last leaf has ended."""
        now = clock.now()
        retired = tuple(one for one in chain.retired if now < _microseconds_of(one))
        leaf = self._leaf(chain.authority, clock) if now >= _due(chain.leaf) else chain.leaf
        if leaf is chain.leaf and retired == chain.retired:
            return chain
        return Chain(chain.authority, leaf, retired)

    def next_look(self, chain: Chain, clock: Clock) -> float:
        """Seconds until something is due."""
        due = min(_due(chain.leaf), _due(chain.authority), *map(_microseconds_of, chain.retired))
        return max(1.0, (due - clock.now()) / 1_000_000)

    def _leaf(self, authority: Pair, clock: Clock) -> Pair:
        left = (authority.ends - clock.now()) / 1_000_000 / DAY
        return make_leaf(authority, self.name, hosts=self.hosts, days=min(self.leaf_days, left), clock=clock)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, replacing any that is there."""
    fresh = path.with_name(f".{path.name}.new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    fresh.replace(path)


def _due(pair: Pair) -> int:
    return pair.begins + (pair.ends - pair.begins) * 2 // 3


def _microseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


def _microseconds_of(certificate: bytes) -> int:
    return _microseconds(x509.load_pem_x509_certificate(certificate).not_valid_after_utc)


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: float, clock: Clock
) -> x509.CertificateBuilder:
    now = datetime.fromtimestamp(clock.now() // 1_000_000, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), private)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
