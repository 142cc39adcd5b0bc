"""Admission of AppWrappers and QuotaSubtrees: who answers for it is stamped, what can never work is refused.

Handlers for `kube.webhooks`. `stamp` and `validate` are pure: they read the request and nothing else. `AppWrapperJudge`
also asks whether the requester may create what is wrapped; nothing but that answer leaves it. None of them ever stands
in the way of a deletion: an object that is being deleted, or whose spec does not change, passes.
"""

from __future__ import annotations

import copy

import msgspec

from shoal.api import rules
from shoal.api.appwrapper import AppWrapper
from shoal.api.appwrapper_rules import is_left_to_creation, user_labels, wrapped_templates, wraps_the_same
from shoal.api.codec import typed
from shoal.api.gang import CREATED_BY, SUPPLY
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.problems import FieldError, joined
from shoal.controllers.appwrapper.dispatch import not_served, too_wide
from shoal.controllers.demand.app_wrapper import unreadable
from shoal.controllers.planning.creators import Creator, stamp_of
from shoal.controllers.planning.rights import Rights, not_allowed, refused_kind
from shoal.kube.admission_review import AdmissionRequest, AdmissionVerdict
from shoal.kube.discovery import Discovery

STAMP_PATH = "/appwrapper/stamp"
VALIDATE_PATH = "/appwrapper/validate"
MOST_KINDS = 64
"""Kinds that one AppWrapper may wrap: each is a question to the API server, and anyone may call a webhook."""


def stamp(request: AdmissionRequest) -> AdmissionVerdict:
    """Write down the user that answers for the wrapped objects: the creator, or the last to change them. Idempotent."""
    if request.object is None or request.sub_resource:
        return AdmissionVerdict()
    obj: Json = copy.deepcopy(request.object)
    metadata = obj.setdefault("metadata", {})
    annotations = metadata.get("annotations") or {}
    old = request.old_object
    if old is None or not wraps_the_same(obj, old):
        annotations = {**annotations, CREATED_BY: stamp_of(request)}
    else:
        kept = ((old.get("metadata") or {}).get("annotations") or {}).get(CREATED_BY)
        annotations = {name: value for name, value in annotations.items() if name != CREATED_BY}
        if kept is not None:
            annotations[CREATED_BY] = kept
    metadata["annotations"] = annotations
    if not annotations:
        del metadata["annotations"]
    if old is None and "components" in (obj.get("spec") or {}):
        named = user_labels(request.user_info.username, request.user_info.uid)
        metadata["labels"] = {**(metadata.get("labels") or {}), **named}
    return AdmissionVerdict(changed=obj)


def validate(request: AdmissionRequest, *, as_creator: bool = False, supply: str = "fit") -> AdmissionVerdict:
    """Refuse what can never work, with the field at fault; warn of what MCAD lets in and then fails.

    `as_creator`: wrapped objects are created as the user, so that kinds which the server judges by their creator pass.
    `supply`: what decides where the object itself does not say; `aggregate` is MCAD to the letter.
    """
    obj, old = request.object, request.old_object
    if obj is None or request.sub_resource or _passes(obj, old):
        return AdmissionVerdict()
    found = [*rules.validate(obj, old), *_too_many_kinds(obj), *([] if as_creator else refused_kinds(obj))]
    literally = _is_literal(obj, supply)
    problems = [error for error in found if not is_left_to_creation(error, literally=literally)]
    if not problems:
        problems = _unreadable_demand(obj)
    if problems:
        return _invalid(request, problems)
    return AdmissionVerdict(warnings=tuple(f"{error}; this AppWrapper will fail" for error in found))


def _invalid(request: AdmissionRequest, problems: list[FieldError]) -> AdmissionVerdict:
    return AdmissionVerdict(
        False, f"{request.kind.kind} {request.name!r} is invalid: {joined(problems)}", 422, "Invalid"
    )


def _is_literal(obj: Json, supply: str) -> bool:
    """Is MCAD asked for to the letter? Then more gets in, and fails."""
    chosen = ((obj.get("metadata") or {}).get("annotations") or {}).get(SUPPLY, supply)
    return bool(chosen == "aggregate")


def refused_kinds(obj: Json) -> list[FieldError]:
    """Wrapped kinds whose effect depends on who creates them."""
    found = []
    for path, template in wrapped_templates(obj):
        group = str(template.get("apiVersion") or "").rpartition("/")[0]
        refusal = refused_kind(group, str(template.get("kind") or ""))
        if refusal:
            found.append(FieldError(path, refusal, "Forbidden"))
    return found


def _unreadable_demand(obj: Json) -> list[FieldError]:
    """Amounts of a pod template that no server would take: such a gang would wait for ever."""
    if obj.get("kind") != "AppWrapper":
        return []
    try:
        words = unreadable(typed(obj, AppWrapper))
    except msgspec.ValidationError:
        return []  # the schema says so
    return [FieldError("", words)] if words else []


def _too_many_kinds(obj: Json) -> list[FieldError]:
    found = {_type_of(template) for _, template in wrapped_templates(obj)}
    if len(found) <= MOST_KINDS:
        return []
    return [FieldError("spec", f"wraps objects of {len(found)} kinds; at most {MOST_KINDS} are allowed", "TooMany")]


def _type_of(template: Json) -> tuple[str, str]:
    return str(template.get("apiVersion")), str(template.get("kind"))


class AppWrapperJudge:
    """Validation that also asks for the requester's own right to create each wrapped object."""

    def __init__(self, rights: Rights, kinds: Discovery, *, as_creator: bool = False, supply: str = "fit") -> None:
        self._rights = rights
        self._kinds = kinds
        self._as_creator = as_creator
        self._supply = supply

    async def validate(self, request: AdmissionRequest) -> AdmissionVerdict:
        verdict = validate(request, as_creator=self._as_creator, supply=self._supply)
        obj, old = request.object, request.old_object
        if not verdict.allowed or obj is None or request.sub_resource or request.kind.kind != "AppWrapper":
            return verdict
        if _passes(obj, old) or (old is not None and wraps_the_same(obj, old)):
            return verdict
        found = await self._kinds_of(obj)
        served = [(path, kind) for path, _, kind in found if kind is not None]
        wide = [FieldError(path, too_wide(kind), "Forbidden") for path, kind in served if not kind.namespaced]
        if wide and not _is_literal(obj, self._supply):
            return _invalid(request, wide)
        unknown = [FieldError(path, not_served(*named)) for path, named, kind in found if kind is None]
        warnings = (*verdict.warnings, *(f"{error}; this AppWrapper will fail" for error in (*wide, *unknown)))
        user = request.user_info
        creator = Creator(user.username, user.uid, tuple(user.groups), user.extra)
        missing = await self._rights.missing(creator, [kind for _, kind in served], request.namespace)
        if missing is not None:
            return AdmissionVerdict(False, not_allowed(creator, missing, request.namespace))
        return msgspec.structs.replace(verdict, warnings=warnings)

    async def _kinds_of(self, obj: Json) -> list[tuple[str, tuple[str, str], Kind | None]]:
        """Every type that is wrapped, once: where it first stands, its apiVersion and name, what is served of it."""
        first: dict[tuple[str, str], str] = {}
        for path, template in wrapped_templates(obj):
            first.setdefault(_type_of(template), path)
        return [(path, named, await self._kinds.kind_of(*named)) for named, path in first.items()]


def _passes(obj: Json, old: Json | None) -> bool:
    """On its way out, or only its metadata changes."""
    if (obj.get("metadata") or {}).get("deletionTimestamp"):
        return True
    return old is not None and obj.get("spec") == old.get("spec")
