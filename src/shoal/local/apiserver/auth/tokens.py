"""Service account tokens: signed here, checked here.

Tokens are JWTs (ES256) as Kubernetes issues them: bound to the account's uid, so that they end with it. The signing key
lives in the state directory, readable by its owner alone.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections import OrderedDict
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from shoal.api.meta import Json
from shoal.api.times import seconds_text
from shoal.kube.clock import Clock
from shoal.local.apiserver.kinds.resources import Registry
from shoal.local.apiserver.primitives.status import bad_request, cause, invalid
from shoal.local.apiserver.requests.call import decoded
from shoal.local.apiserver.requests.route import RequestUser

ISSUER = "https://kubernetes.default.svc.cluster.local"
LEAST_SECONDS, USUAL_SECONDS, MOST_SECONDS = 600, 3600, 1 << 32
MOST_CACHED = 1024
_HOLDERS = {"Pod": "pods", "Secret": "secrets", "Node": "nodes"}
"""What a token may be bound to: it ends with that object."""


class _BoundObject(msgspec.Struct, rename="camel"):
    kind: str | None = None
    api_version: str | None = None
    name: str | None = None
    uid: str | None = None


class _TokenSpec(msgspec.Struct, rename="camel"):
    audiences: list[str] | None = None
    expiration_seconds: int | None = None
    bound_object_ref: _BoundObject | None = None


class _Request(msgspec.Struct):
    spec: _TokenSpec | None = None


def request_spec(wanted: Json) -> Json:
    """The spec of a TokenRequest, every value of its type: what is signed here is read again without a look."""
    try:
        msgspec.convert(wanted, _Request)
    except msgspec.ValidationError as error:
        raise bad_request(f"TokenRequest cannot be decoded: {error}") from None
    return wanted.get("spec") or {}


class Tokens:
    def __init__(self, registry: Registry, clock: Clock, key: ec.EllipticCurvePrivateKey) -> None:
        self.registry = registry
        self.clock = clock
        self.key = key
        self._known: OrderedDict[str, Json] = OrderedDict()  # signature already checked
        public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.key_id = _text(hashlib.sha256(public).digest())

    def request(self, account: Json, wanted: Json) -> Json:
        """Answer a TokenRequest."""
        spec = request_spec(wanted)
        audiences = spec.get("audiences") or [ISSUER]
        seconds = spec.get("expirationSeconds") or USUAL_SECONDS
        if seconds < LEAST_SECONDS or seconds > 1 << 32:
            bound = "less than 10 minutes" if seconds < LEAST_SECONDS else "larger than 2^32 seconds"
            raise invalid(
                "authentication.k8s.io",
                "TokenRequest",
                "",
                [
                    cause(
                        "FieldValueInvalid",
                        f"Invalid value: {seconds}: may not specify a duration {bound}",
                        "spec.expirationSeconds",
                    )
                ],
            )
        now = self.clock.now() // 1_000_000
        expires = now + min(seconds, MOST_SECONDS)
        token = self.sign(account["metadata"], audiences, now, expires, spec.get("boundObjectRef"))
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {
                "name": account["metadata"]["name"],
                "namespace": account["metadata"]["namespace"],
                "creationTimestamp": seconds_text(self.clock.now()),
            },
            "spec": {
                "audiences": audiences,
                "expirationSeconds": expires - now,
                "boundObjectRef": spec.get("boundObjectRef"),
            },
            "status": {"token": token, "expirationTimestamp": seconds_text(expires * 1_000_000)},
        }

    def sign(self, account: Json, audiences: list[str], now: int, expires: int, bound: Any = None) -> str:
        private: Json = {
            "namespace": account["namespace"],
            "serviceaccount": {"name": account["name"], "uid": account["uid"]},
        }
        if type(bound) is dict and bound.get("kind") in _HOLDERS:
            private[bound["kind"].lower()] = {"name": bound.get("name"), "uid": bound.get("uid")}
            if bound["kind"] == "Pod":
                private |= self._node_of(account["namespace"], str(bound.get("name")))
        claims = {
            "aud": audiences,
            "exp": expires,
            "iat": now,
            "nbf": now,
            "iss": ISSUER,
            "jti": str(uuid.uuid4()),
            "kubernetes.io": private,
            "sub": f"system:serviceaccount:{account['namespace']}:{account['name']}",
        }
        head = _text(msgspec.json.encode({"alg": "ES256", "kid": self.key_id, "typ": "JWT"}))
        signed = f"{head}.{_text(msgspec.json.encode(claims))}"
        r, s = decode_dss_signature(self.key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_text(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def authenticate(self, token: str, audiences: list[str] | None = None) -> RequestUser | None:
        """Whose token this is; None when it is not ours, has run out, or its account or what it is bound to is gone."""
        claims = self._claims(token)
        if claims is None:
            return None
        now = self.clock.now() // 1_000_000
        if not claims["nbf"] - 60 <= now < claims["exp"]:
            return None
        if not set(claims["aud"]) & set(audiences or [ISSUER]):
            return None
        private = claims["kubernetes.io"]
        namespace, account = private["namespace"], private["serviceaccount"]
        if self._uid("serviceaccounts", namespace, account["name"]) != account["uid"]:
            return None
        extra: dict[str, tuple[str, ...]] = {}
        if claims.get("jti"):
            extra["authentication.kubernetes.io/credential-id"] = (f"JTI={claims['jti']}",)
        for kind, plural in _HOLDERS.items():
            holder = private.get(kind.lower())
            if not holder:
                continue
            told = kind == "Node" and "pod" in private  # where the pod was; the token lives and dies with the pod
            if not told and self._uid(plural, "" if kind == "Node" else namespace, holder["name"]) != holder["uid"]:
                return None
            if kind != "Secret":
                extra[f"authentication.kubernetes.io/{kind.lower()}-name"] = (holder["name"],)
                extra[f"authentication.kubernetes.io/{kind.lower()}-uid"] = (holder["uid"],)
        return RequestUser(
            claims["sub"],
            ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"),
            account["uid"],
            extra,
        )

    def _node_of(self, namespace: str, pod: str) -> Json:
        pods = self.registry.find("", "pods")
        record = pods.collection.get(namespace, pod) if pods is not None else None
        node = decoded(record)["spec"].get("nodeName") if record is not None else None
        return {"node": {"name": node, "uid": self._uid("nodes", "", node)}} if node else {}

    def _uid(self, plural: str, namespace: str, name: str) -> str:
        resource = self.registry.find("", plural)
        record = resource.collection.get(namespace, name) if resource is not None else None
        return str(decoded(record)["metadata"]["uid"]) if record is not None else ""

    def _claims(self, token: str) -> Json | None:
        if token in self._known:
            return self._known[token]
        parts = token.split(".")
        if len(parts) != 3 or len(token) > 8192:
            return None
        try:
            head = msgspec.json.decode(_bytes(parts[0]))
            signature = _bytes(parts[2])
            if head.get("alg") != "ES256" or len(signature) != 64:
                return None
            encoded = encode_dss_signature(int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big"))
            self.key.public_key().verify(encoded, f"{parts[0]}.{parts[1]}".encode(), ec.ECDSA(hashes.SHA256()))
            claims: Json = msgspec.json.decode(_bytes(parts[1]))
        except (ValueError, msgspec.MsgspecError, InvalidSignature, AttributeError):
            return None
        self._known[token] = claims
        if len(self._known) > MOST_CACHED:
            self._known.popitem(last=False)
        return claims


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
