"""The certificates of one throw-away control plane: a CA, a server pair, an admin pair and the service-account key."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def write_all(folder: Path, users: tuple[str, ...] = ()) -> None:
    """Write ca.crt, server.{crt,key}, admin.{crt,key} and the same for more `users` that may do all, sa.key, sa.pub,
    and what the API server shows to aggregated ones: front-proxy-ca.crt, front-proxy.{crt,key}."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _certificate("shoal-test-ca", (), ca_key, ca_key, None)
    (folder / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    _pair(folder, "server", "kube-apiserver", (), ca, ca_key)
    for user in ("admin", *users):
        _pair(folder, user, user, ("system:masters",), ca, ca_key)
    front_key = ec.generate_private_key(ec.SECP256R1())
    front = _certificate("shoal-test-front-proxy-ca", (), front_key, front_key, None)
    (folder / "front-proxy-ca.crt").write_bytes(front.public_bytes(serialization.Encoding.PEM))
    _pair(folder, "front-proxy", "front-proxy", (), front, front_key)
    signing = ec.generate_private_key(ec.SECP256R1())
    _write_key(folder / "sa.key", signing)
    (folder / "sa.pub").write_bytes(
        signing.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def _pair(
    folder: Path,
    name: str,
    common: str,
    organisations: tuple[str, ...],
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(common, organisations, key, ca_key, ca)
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_key(folder / f"{name}.key", key)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )


def _certificate(
    common: str,
    organisations: tuple[str, ...],
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate | None,
) -> x509.Certificate:
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, common),
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, one) for one in organisations),
        ]
    )
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(ca.subject if ca else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=ca is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_usage(ca is None), critical=True)
    )
    if ca is not None:
        builder = (
            builder.add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
            )
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(
                x509.SubjectAlternativeName(
                    [
                        x509.DNSName("localhost"),
                        x509.DNSName("kubernetes"),
                        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
                    ]
                ),
                critical=False,
            )
        )
    return builder.sign(signer, hashes.SHA256())


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not authority,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
