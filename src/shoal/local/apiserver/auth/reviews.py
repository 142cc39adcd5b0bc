"""Reviews: questions that are asked by creating an object which is answered and never stored.

Access reviews ask the authorizer, token reviews the authenticator, self reviews say who the caller is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.api.meta import Json
from shoal.local.apiserver.auth.authentication import Authenticator
from shoal.local.apiserver.auth.authorization import Action, Authorizer
from shoal.local.apiserver.kinds.objects import check_identity, check_metadata
from shoal.local.apiserver.primitives.status import bad_request, cause, invalid
from shoal.local.apiserver.requests.body import decode_object
from shoal.local.apiserver.requests.call import Answer, Call, object_answer
from shoal.local.apiserver.requests.route import RequestUser


class _Attributes(msgspec.Struct):
    verb: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class _PathAttributes(msgspec.Struct):
    path: str = ""
    verb: str = ""


class _ReviewSpec(msgspec.Struct, rename="camel"):
    resource_attributes: _Attributes | None = None
    non_resource_attributes: _PathAttributes | None = None
    user: str = ""
    groups: list[str] | None = None
    uid: str = ""
    extra: dict[str, list[str]] | None = None
    token: str = ""
    audiences: list[str] | None = None
    namespace: str = ""


class Reviews:
    def __init__(self, authorizer: Authorizer, authenticator: Authenticator) -> None:
        self.authorizer = authorizer
        self.authenticator = authenticator

    def answer(self, call: Call) -> Answer:
        review = decode_object(call.request.body, call.request.headers.get("content-type", ""))
        check_identity(review, call.version)
        check_metadata(review, call.resource.kind)
        try:
            spec = msgspec.convert(review.get("spec") or {}, _ReviewSpec)
        except msgspec.ValidationError as error:
            raise bad_request(f"{call.resource.kind} cannot be decoded: spec: {error}") from None
        review["metadata"].setdefault("creationTimestamp", None)
        match call.resource.kind:
            case "SelfSubjectAccessReview":
                review["status"] = self._access(call, call.user, spec)
            case "SubjectAccessReview" | "LocalSubjectAccessReview":
                if not spec.user and not spec.groups:
                    words = 'Invalid value: "": at least one of user or group must be specified'
                    raise invalid(call.resource.group, "", "", [cause("FieldValueInvalid", words, "spec.user")])
                self._check_place(call, spec)
                review["status"] = self._access(call, RequestUser(spec.user, tuple(spec.groups or ()), spec.uid), spec)
            case "SelfSubjectRulesReview":
                if not spec.namespace:
                    raise bad_request("no namespace on request")
                review["status"] = self._rules(call.user, spec.namespace)
            case "SelfSubjectReview":
                review["status"] = {"userInfo": shown(call.user)}
            case _:
                if not spec.token:
                    raise bad_request("token is required for TokenReview in authentication")
                review["status"] = self._token(spec)
        return object_answer(review, 201)

    def _check_place(self, call: Call, spec: _ReviewSpec) -> None:
        asked = spec.resource_attributes
        if call.resource.kind == "LocalSubjectAccessReview" and asked and asked.namespace != call.route.namespace:
            words = f'Invalid value: "{asked.namespace}": must match metadata.namespace'
            causes = [cause("FieldValueInvalid", words, "spec.resourceAttributes.namespace")]
            raise invalid(call.resource.group, "", "", causes)

    def _access(self, call: Call, user: RequestUser, spec: _ReviewSpec) -> Json:
        if (spec.resource_attributes is None) == (spec.non_resource_attributes is None):
            raise invalid(
                call.resource.group,
                "",
                "",
                [
                    cause(
                        "FieldValueInvalid",
                        "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be "
                        "specified",
                        "spec.nonResourceAttributes" if spec.resource_attributes else "spec.resourceAttributes",
                    )
                ],
            )
        if spec.resource_attributes is not None:
            asked = spec.resource_attributes
            namespace = call.route.namespace or asked.namespace
            action = Action(asked.verb, asked.group, asked.resource, asked.subresource, namespace, asked.name)
        else:
            assert spec.non_resource_attributes is not None
            action = Action(spec.non_resource_attributes.verb, path=spec.non_resource_attributes.path or "/")
        allowed = self.authorizer.allowed(user, action)
        return {"allowed": allowed}

    def _rules(self, user: RequestUser, namespace: str) -> Json:
        resource: list[Any] = []
        paths: list[Any] = []
        for rule in self.authorizer.rules(user, namespace):
            if rule.non_resource_urls:
                paths.append({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls})
            else:
                one = {"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources}
                resource.append({**one, "resourceNames": rule.resource_names} if rule.resource_names else one)
        return {"resourceRules": resource, "nonResourceRules": paths, "incomplete": False}

    def _token(self, spec: _ReviewSpec) -> Json:
        user = self.authenticator.bearer(spec.token, spec.audiences)
        if user is None:
            return {"user": {}, "error": "invalid bearer token"}
        found: Json = {"authenticated": True, "user": shown(user)}
        if spec.audiences:
            found["audiences"] = spec.audiences
        return found


def shown(user: RequestUser) -> Json:
    found: Json = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        found["uid"] = user.uid
    if user.extra:
        found["extra"] = user.extra
    return found
