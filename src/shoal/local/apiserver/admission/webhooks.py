"""Admission webhooks: objects shown to others over HTTPS before they are stored.

Which webhooks apply is decided from the stored configurations, decoded once per change. Mutating ones run one after
another, validating ones side by side. A webhook that cannot be reached counts as its failure policy says; it can
delay its own request only, and never for longer than its timeout.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import msgspec

from shoal.api.meta import Json
from shoal.local.apiserver.auth.reviews import shown
from shoal.local.apiserver.cel.match_conditions import ConditionFailed, matches
from shoal.local.apiserver.kinds.resources import SPOKEN_GROUP, Registry
from shoal.local.apiserver.patch.errors import PatchError
from shoal.local.apiserver.patch.json_patch import json_patch
from shoal.local.apiserver.primitives.status import Refused, bad_request, internal
from shoal.local.apiserver.requests.body import decode_json
from shoal.local.apiserver.requests.call import Call, Operation, decoded
from shoal.local.apiserver.requests.hooks import HookCaller, HookUnreachable
from shoal.local.apiserver.requests.selectors import label_selector
from shoal.local.apiserver.storage.collection import Collection

_GROUP = "admissionregistration.k8s.io"
USUAL_TIMEOUT, MOST_TIMEOUT = 10, 30


class Hook(msgspec.Struct, frozen=True):
    """One webhook of one configuration, ready to be asked."""

    configuration: str
    name: str
    client: Json
    rules: list[Json]
    namespace_selector: Json | None
    object_selector: Json | None
    ignores_failure: bool
    timeout: float
    mutating: bool
    equivalent: bool
    conditions: list[Json]
    reinvoked: bool = False  # asked once more when another changed the object after it


class Webhooks:
    def __init__(self, registry: Registry, caller: HookCaller, settle: Callable[[Call, Json], None]) -> None:
        self.registry = registry
        self.caller = caller
        self.settle = settle  # makes what a webhook wrote an object of its kind again
        self._sets: dict[bool, tuple[int, tuple[Hook, ...]]] = {}
        self._collections: dict[bool, Collection] = {}
        for mutating, plural in ((True, "mutatingwebhookconfigurations"), (False, "validatingwebhookconfigurations")):
            resource = registry.find(_GROUP, plural)
            assert resource is not None
            self._collections[mutating] = resource.collection

    @property
    def mutating(self) -> tuple[Hook, ...]:
        return self._hooks(True)

    @property
    def validating(self) -> tuple[Hook, ...]:
        return self._hooks(False)

    def _hooks(self, mutating: bool) -> tuple[Hook, ...]:
        collection = self._collections[mutating]
        known = self._sets.get(mutating)
        if known is None or known[0] != collection.revision:
            found = [hook for record in collection.records() for hook in read_hooks(decoded(record), mutating)]
            known = self._sets[mutating] = (collection.revision, tuple(found))
        return known[1]

    # --- asking

    async def mutate(self, call: Call, obj: Json, old: Json | None) -> Json:
        operation: Operation = "CREATE" if old is None else "UPDATE"
        asked_before: list[Hook] = []  # and asked again, once, when a later one changed what they saw
        again: list[Hook] = []
        for hook in self.mutating:
            changed = await self._change(hook, call, operation, obj, old)
            if changed is not None and changed != obj:
                again += [one for one in asked_before if one not in again]
            obj = changed if changed is not None else obj
            if hook.reinvoked and changed is not None:
                asked_before.append(hook)
        for hook in again:
            changed = await self._change(hook, call, operation, obj, old)
            obj = changed if changed is not None else obj
        return obj

    async def _change(self, hook: Hook, call: Call, operation: Operation, obj: Json, old: Json | None) -> Json | None:
        """The object as this webhook makes it; None when it was not asked."""
        if not self._applies(hook, call, operation, obj, old):
            return None
        answer = await self._ask(hook, call, operation, obj, old)
        if answer is None or not answer.get("patch"):
            return obj
        changed = _patched(hook, obj, answer)
        if not _spoken(call):
            self.settle(call, changed)
        return changed

    async def validate(self, call: Call, obj: Json | None, old: Json | None) -> None:
        operation: Operation = "DELETE" if obj is None else "CREATE" if old is None else "UPDATE"
        if obj is None:
            for hook in self.mutating:
                if self._applies(hook, call, operation, obj, old):
                    await self._ask(hook, call, operation, obj, old)
        asked = [
            self._ask(hook, call, operation, obj, old)
            for hook in self.validating
            if self._applies(hook, call, operation, obj, old)
        ]
        if asked:
            for result in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result

    async def connect(self, call: Call, options: Json) -> None:
        """A client wants to exec, attach or forward a port: webhooks that ask for such connections may refuse."""
        for hook in (*self.mutating, *self.validating):
            if self._applies(hook, call, "CONNECT", options, None):
                await self._ask(hook, call, "CONNECT", options, None)

    def _applies(self, hook: Hook, call: Call, operation: str, obj: Json | None, old: Json | None) -> bool:
        resource, route = call.resource, call.route
        if resource.group == _GROUP:  # a webhook that could refuse its own removal could never be repaired
            return False
        if not any(
            _matches(
                rule,
                operation,
                resource.group,
                call.version.name,
                resource.plural,
                route.subresource,
                resource.namespaced,
                hook.equivalent,
            )
            for rule in hook.rules
        ):
            return False
        if hook.namespace_selector and not self._namespace_matches(hook.namespace_selector, call, obj or old or {}):
            return False
        if hook.object_selector:
            test = label_selector(hook.object_selector)
            if not any(test((one.get("metadata") or {}).get("labels") or {}) for one in (obj, old) if one is not None):
                return False
        return True

    def _namespace_matches(self, selector: Json, call: Call, obj: Json) -> bool:
        test = label_selector(selector)
        if call.resource.kind == "Namespace" and not call.resource.group:
            return test((obj.get("metadata") or {}).get("labels") or {})
        if not call.resource.namespaced:
            return True
        namespaces = self.registry.find("", "namespaces")
        record = namespaces.collection.head("", call.namespace) if namespaces is not None else None
        return record is not None and test(record.labels)

    async def _ask(self, hook: Hook, call: Call, operation: str, obj: Json | None, old: Json | None) -> Json | None:
        """The webhook's answer, or None when it need not be asked, or was not reached and that does not matter."""
        review = review_of(self.caller.question(), call, operation, obj, old)
        try:
            if hook.conditions and not matches(hook.conditions, review["request"]):
                return None
            answer = await self.caller.post(hook.client, review, hook.timeout)
            response = answer.get("response")
            if type(response) is not dict or response.get("uid") != review["request"]["uid"]:
                raise HookUnreachable("its answer has no response to this request")
        except (HookUnreachable, ConditionFailed) as error:
            if hook.ignores_failure:
                return None
            raise internal(f'failed calling webhook "{hook.name}": {error}') from None
        for warning in response.get("warnings") or ():
            call.warnings.append(str(warning))
        if not response.get("allowed"):
            raise _denied(hook, response.get("status") or {})
        return response


def read_hooks(configuration: Json, mutating: bool) -> list[Hook]:
    found = []
    for one in configuration.get("webhooks") or ():
        found.append(
            Hook(
                configuration["metadata"]["name"],
                str(one.get("name", "")),
                one.get("clientConfig") or {},
                one.get("rules") or [],
                one.get("namespaceSelector"),
                one.get("objectSelector"),
                one.get("failurePolicy") == "Ignore",
                float(min(one.get("timeoutSeconds") or USUAL_TIMEOUT, MOST_TIMEOUT)),
                mutating,
                one.get("matchPolicy") != "Exact",
                one.get("matchConditions") or [],
                mutating and one.get("reinvocationPolicy") == "IfNeeded",
            )
        )
    return found


def _matches(
    rule: Json,
    operation: str,
    group: str,
    version: str,
    plural: str,
    subresource: str,
    namespaced: bool,
    equivalent: bool,
) -> bool:
    if not {"*", operation} & set(rule.get("operations") or ()):
        return False
    if not {"*", group} & set(rule.get("apiGroups") or ()):
        return False
    # An equivalent version of the same resource would be converted for the webhook; it is shown as it was asked for.
    if not equivalent and not {"*", version} & set(rule.get("apiVersions") or ()):
        return False
    if (rule.get("scope") == "Namespaced" and not namespaced) or (rule.get("scope") == "Cluster" and namespaced):
        return False
    wanted = f"{plural}/{subresource}" if subresource else plural
    for resource in rule.get("resources") or ():
        if resource == wanted or resource == "*/*" or (resource == "*" and not subresource):
            return True
        if subresource and resource in (f"*/{subresource}", f"{plural}/*"):
            return True
        if not subresource and resource == f"{plural}/*":
            return True
    return False


def review_of(uid: str, call: Call, operation: str, obj: Json | None, old: Json | None) -> Json:
    kind, resource, route = call.version.kind, call.resource, call.route
    spoken = _spoken(call) or {"group": kind.group, "version": kind.version, "kind": kind.kind}
    where = {"group": kind.group, "version": kind.version, "resource": resource.plural}
    request: Json = {
        "uid": uid,
        "kind": spoken,
        "resource": where,
        "requestKind": spoken,
        "requestResource": where,
        "name": route.name or ((obj or old or {}).get("metadata") or {}).get("name", ""),
        "operation": operation,
        "userInfo": shown(call.user),
        "object": obj,
        "oldObject": old,
        "dryRun": call.dry_run,
        "options": None,
    }
    if route.namespace:
        request["namespace"] = route.namespace
    if route.subresource:
        request["subResource"] = request["requestSubResource"] = route.subresource
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def _spoken(call: Call) -> Json:
    """The kind that a subresource speaks, where it is not the object's own."""
    name = call.resource.subresources_of(call.version).get(call.route.subresource, "")
    if not name or name == call.resource.kind:
        return {}
    group, version = SPOKEN_GROUP.get(name, (call.version.kind.group, call.version.kind.version))
    return {"group": group, "version": version, "kind": name}


def _patched(hook: Hook, obj: Json, answer: Json) -> Json:
    if answer.get("patchType") != "JSONPatch":
        raise internal(f'admission webhook "{hook.name}" answered with a patch that is no JSONPatch')
    try:
        patch = decode_json(base64.b64decode(answer["patch"], validate=True))
        found: Any = json_patch(obj, patch)
    except (ValueError, PatchError, Refused) as error:
        raise internal(f'the patch of admission webhook "{hook.name}" cannot be applied: {error}') from None
    if type(found) is not dict or type(found.get("metadata")) is not dict:
        raise internal(f'the patch of admission webhook "{hook.name}" leaves no object')
    metadata, before = found["metadata"], obj["metadata"]
    for field in ("name", "namespace", "uid", "creationTimestamp"):
        if metadata.get(field) != before.get(field):
            raise bad_request(f'admission webhook "{hook.name}" changed metadata.{field}, which it may not')
    return dict(found)


def _denied(hook: Hook, status: Any) -> Refused:
    status = status if type(status) is dict else {}
    words = str(status.get("message") or status.get("reason") or "")
    message = f'admission webhook "{hook.name}" denied the request' + (
        f": {words}" if words else " without explanation"
    )
    code = status.get("code")
    code = code if type(code) is int and 400 <= code < 600 else 403
    reason = str(status.get("reason") or ("Forbidden" if code == 403 else ""))
    return Refused(
        code, reason, message, details=status.get("details") if type(status.get("details")) is dict else None
    )
