"""The webhooks' certificate by cert-manager: what an installation asks it for, instead of keeping one itself.

Pure. Without an issuer of the administrator's, an authority of our own signs the certificate, so that a renewal changes
nothing for the API server; cert-manager's injector gives it the authority.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from shoal.api.meta import Json
from shoal.cli import admission
from shoal.cli.install_values import Values
from shoal.cli.install_workload import labelled

API = "cert-manager.io/v1"
CERTIFICATE = admission.SERVICE
AUTHORITY = "shoal-webhook-authority"
SELF_SIGNED = "shoal-self-signed"
INJECT = "cert-manager.io/inject-ca-from"


def certificates(namespace: str, values: Values) -> list[Json]:
    """In the order in which it is applied."""
    own = not values.certificate_issuer
    return [
        *(_authority(namespace) if own else ()),
        {
            **labelled(API, "Certificate", CERTIFICATE, namespace),
            "spec": {
                "secretName": admission.ISSUED_SECRET,
                **_names(namespace, values.webhook_url),
                "issuerRef": {"kind": "Issuer", "name": AUTHORITY} if own else values.certificate_issuer,
                "privateKey": {"rotationPolicy": "Always"},
            },
        },
    ]


def injected(configuration: Json, namespace: str) -> Json:
    """With the mark by which cert-manager puts the authority into it."""
    marked = {**configuration["metadata"], "annotations": {INJECT: f"{namespace}/{CERTIFICATE}"}}
    return {**configuration, "metadata": marked}


def _authority(namespace: str) -> list[Json]:
    lasting = {"isCA": True, "commonName": AUTHORITY, "secretName": AUTHORITY, "duration": "87600h"}
    return [
        {**labelled(API, "Issuer", SELF_SIGNED, namespace), "spec": {"selfSigned": {}}},
        {
            **labelled(API, "Certificate", AUTHORITY, namespace),
            "spec": {**lasting, "issuerRef": {"kind": "Issuer", "name": SELF_SIGNED}},
        },
        {**labelled(API, "Issuer", AUTHORITY, namespace), "spec": {"ca": {"secretName": AUTHORITY}}},
    ]


def _names(namespace: str, url: str) -> Json:
    """By which the API server calls: the Services, or the host of a URL."""
    host = urlsplit(url).hostname
    if not host:
        return {"dnsNames": [f"{name}.{namespace}.svc" for name in (admission.SERVICE, admission.VISIBILITY)]}
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return {"dnsNames": [host]}
    return {"ipAddresses": [host]}
