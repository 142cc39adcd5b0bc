"""For which user an API server asks when it passes a request on to us, as an aggregated API server must know.

An API server shows a client certificate of an authority of its own (`requestheader-client-ca-file` of the ConfigMap
`extension-apiserver-authentication`) and names the user in headers. Without such a certificate no header counts. What
the user may do is asked back with a SubjectAccessReview.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from shoal.api.kinds import SUBJECT_ACCESS_REVIEW
from shoal.api.meta import Json
from shoal.kube.admission_review import User
from shoal.kube.client import Client

NAMESPACE, CONFIG_MAP = "kube-system", "extension-apiserver-authentication"
READER = "extension-apiserver-authentication-reader"
"""The Role, there from the start, of those that may read it."""


class FrontProxies(msgspec.Struct, frozen=True):
    """Who may speak for users, and in which headers."""

    authority: str = ""
    names: tuple[str, ...] = ()
    """Common names of their certificates; empty: any."""
    user_headers: tuple[str, ...] = ()
    uid_headers: tuple[str, ...] = ()
    group_headers: tuple[str, ...] = ()
    extra_prefixes: tuple[str, ...] = ()

    def trusted_by(self, context: ssl.SSLContext) -> None:
        """Ask for their certificates; other clients need none, and are strangers."""
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # authorities of clusters often lack what it asks for
        context.load_verify_locations(cadata=self.authority)

    def user(self, certificate: Mapping[str, Any] | None, headers: Any) -> User | None:
        """The user in whose name this verified certificate's owner asks; None where it may not, or does not say."""
        if not self.authority or not certificate or (self.names and _common_name(certificate) not in self.names):
            return None
        name = next((headers[one] for one in self.user_headers if headers.get(one)), "")
        if not name:
            return None
        uid = next((headers[one] for one in self.uid_headers if headers.get(one)), "")
        groups = [value for one in self.group_headers for value in headers.getall(one, [])]
        extra: dict[str, list[str]] = {}
        for prefix in self.extra_prefixes:
            for header, value in headers.items():
                if header.lower().startswith(prefix.lower()):
                    extra.setdefault(unquote(header[len(prefix) :]).lower(), []).append(value)
        return User(name, uid, groups, extra)


def read(config_map: Json) -> FrontProxies:
    """What the API server says of itself. Raises msgspec.MsgspecError where a list of it is none."""
    data = config_map.get("data") or {}

    def listed(name: str) -> tuple[str, ...]:
        return msgspec.json.decode(data.get(f"requestheader-{name}") or "[]", type=tuple[str, ...])

    return FrontProxies(
        str(data.get("requestheader-client-ca-file") or ""),
        listed("allowed-names"),
        listed("username-headers"),
        listed("uid-headers"),
        listed("group-headers"),
        listed("extra-headers-prefix"),
    )


async def may(client: Client, user: User, attributes: Json) -> bool:
    """May this user do that? `attributes`: resourceAttributes of the review."""
    spec = {
        "user": user.username,
        "uid": user.uid,
        "groups": user.groups,
        "extra": user.extra,
        "resourceAttributes": attributes,
    }
    review = {"apiVersion": SUBJECT_ACCESS_REVIEW.api_version, "kind": SUBJECT_ACCESS_REVIEW.kind, "metadata": {}}
    answer: Json = await client.create(SUBJECT_ACCESS_REVIEW, {**review, "spec": spec})
    return (answer.get("status") or {}).get("allowed") is True


def _common_name(certificate: Mapping[str, Any]) -> str:
    """Of a certificate as `ssl` tells it."""
    parts = (pair for part in certificate.get("subject") or () for pair in part)
    return next((value for name, value in parts if name == "commonName"), "")
