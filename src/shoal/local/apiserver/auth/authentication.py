"""Who is asking: bearer tokens, client certificates, and impersonation by those who may.

There is no anonymous access except to health and version, on loopback too: every local user can reach a loopback port.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from shoal.local.apiserver.auth.authorization import MASTERS, Action, Authorizer, denied
from shoal.local.apiserver.auth.tokens import Tokens
from shoal.local.apiserver.primitives.status import Refused, bad_request, forbidden
from shoal.local.apiserver.requests.route import RequestUser

AUTHENTICATED = "system:authenticated"
ADMIN = "system:admin"
_EXTRA = "impersonate-extra-"


class Authenticator:
    def __init__(self, tokens: Tokens, admin_token: str) -> None:
        self.tokens = tokens
        self._admin_token = admin_token.encode()

    def bearer(self, token: str, audiences: list[str] | None = None) -> RequestUser | None:
        if hmac.compare_digest(token.encode(), self._admin_token):
            return RequestUser(ADMIN, (MASTERS, AUTHENTICATED))
        return self.tokens.authenticate(token, audiences)

    def user(self, headers: Mapping[str, str], certificate: Mapping[str, Any] | None) -> RequestUser | None:
        """From a request's headers (lower case) and the verified client certificate of its connection."""
        header = headers.get("authorization", "")
        if header:
            scheme, _, token = header.partition(" ")
            return self.bearer(token.strip()) if scheme.lower() == "bearer" else None
        return from_certificate(certificate) if certificate else None


def from_certificate(certificate: Mapping[str, Any]) -> RequestUser | None:
    name, groups = "", []
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                name = value
            elif key == "organizationName":
                groups.append(value)
    return RequestUser(name, (*groups, AUTHENTICATED)) if name else None


def with_authenticated(user: RequestUser) -> RequestUser:
    if AUTHENTICATED in user.groups:
        return user
    return RequestUser(user.name, (*user.groups, AUTHENTICATED), user.uid, user.extra)


def impersonated(user: RequestUser, headers: Mapping[str, str], authorizer: Authorizer) -> RequestUser:
    """The user that the caller asks to act as, if it may. Several groups come one per line."""
    name = headers.get("impersonate-user", "")
    asked = [one for one in headers if one.startswith("impersonate-") and headers[one]]
    if not asked:
        return user
    if not name:
        raise bad_request("requested impersonation without impersonating a user: set Impersonate-User")
    groups = tuple(one for one in headers.get("impersonate-group", "").split("\n") if one)
    uid = headers.get("impersonate-uid", "")
    extra = {unquote(one[len(_EXTRA) :]): tuple(headers[one].split("\n")) for one in asked if one.startswith(_EXTRA)}
    account = name.split(":") if name.startswith("system:serviceaccount:") else []
    if len(account) == 4:
        _require(user, authorizer, Action("impersonate", "", "serviceaccounts", "", account[2], account[3]))
    else:
        _require(user, authorizer, Action("impersonate", "", "users", name=name))
    for group in groups:
        _require(user, authorizer, Action("impersonate", "", "groups", name=group))
    if len(account) == 4 and not groups:  # an account's own groups come with it; others must be allowed
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{account[2]}")
    if uid:
        _require(user, authorizer, Action("impersonate", "authentication.k8s.io", "uids", name=uid))
    for key, values in extra.items():
        for value in values:
            _require(user, authorizer, Action("impersonate", "authentication.k8s.io", "userextras", key, name=value))
    return with_authenticated(RequestUser(name, groups, uid, extra))


def _require(user: RequestUser, authorizer: Authorizer, action: Action) -> None:
    if not authorizer.allowed(user, action):
        raise _refused(user, action)


def _refused(user: RequestUser, action: Action) -> Refused:
    return forbidden(action.group, action.resource, action.name, denied(user, action))
