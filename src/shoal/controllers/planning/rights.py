"""No right is lent: an object is created for an AppWrapper only if its creator could create it alone.

The creator of an AppWrapper stands in one annotation that only admission can write. Each wrapped kind is asked for
with a SubjectAccessReview, at admission and again at dispatch, be it to this cluster or to another. Kinds whose own
creation the server judges by who asks (roles, bindings, nested AppWrappers, …) are refused, unless objects are
created as the user. Called by the AppWrapper controller, its webhook and the hub of several clusters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.controllers.planning.creators import MASTERS, Creator, access_review
from shoal.errors import BadInput
from shoal.kube.client import Client
from shoal.kube.discovery import Discovery

UNSTAMPED = (
    "the creator of this AppWrapper is not recorded, so the creator's rights cannot be checked: install the admission "
    "webhook (shoal install) and create it again, or start the controller with --trust-unstamped"
)

_JUDGED_BY_CREATOR = frozenset(
    {
        "rbac.authorization.k8s.io",
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "certificates.k8s.io",
    }
)
_NESTED = frozenset({("workload.codeflare.dev", "AppWrapper"), ("mcad.ibm.com", "AppWrapper")})


def is_judged_by_creator(group: str, kind: str) -> bool:
    """Would the server ask who creates such an object? Then our own rights may not answer for the user's."""
    return group in _JUDGED_BY_CREATOR or (group, kind) in _NESTED


def refused_kind(group: str, kind: str) -> str:
    """Why an AppWrapper may not wrap this kind, or an empty text."""
    if not is_judged_by_creator(group, kind):
        return ""
    return f"{kind} in {group} cannot be wrapped: what it grants depends on its creator; create it yourself"


class SendableKinds(Discovery):
    """Kinds of this server, and those that only other clusters serve and an administrator has listed.

    RBAC goes by names: the right to create what is not served here can be granted, and asked for, all the same.
    """

    def __init__(self, client: Client, listed: Iterable[str] = ()) -> None:
        super().__init__(client)
        self._unserved = dict(map(listed_kind, listed))

    async def kind_of(self, api_version: str, kind: str) -> Kind | None:
        group, _, version = api_version.rpartition("/")
        served = await super().kind_of(api_version, kind)
        plural = self._unserved.get((group, kind))
        return served if served is not None or plural is None else Kind(group, version, kind, plural)


def listed_kind(text: str) -> tuple[tuple[str, str], str]:
    """`PLURAL.GROUP/KIND`, the name of its CRD and its kind. Raises BadInput."""
    resource, slash, kind = text.partition("/")
    plural, dot, group = resource.partition(".")
    if not (plural and dot and group and slash and kind.isidentifier()):
        raise BadInput(f"{text!r} is not PLURAL.GROUP/KIND, such as pytorchjobs.kubeflow.org/PyTorchJob")
    return (group, kind), plural


class Rights:
    """Asks the API server what a creator may do. Equal questions at the same time share one request."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._asked: dict[tuple[bytes, Kind, str], asyncio.Task[bool]] = {}

    async def missing(self, creator: Creator, wanted: Iterable[Kind], namespace: str) -> Kind | None:
        """The first of these kinds that the creator may not create in the namespace."""
        if MASTERS in creator.groups:  # allowed everything, by definition, on every API server
            return None
        asked = list(dict.fromkeys(wanted))
        answers = await asyncio.gather(*(self._may_create(creator, kind, namespace) for kind in asked))
        return next((kind for kind, allowed in zip(asked, answers, strict=True) if not allowed), None)

    async def _may_create(self, creator: Creator, kind: Kind, namespace: str) -> bool:
        question = (msgspec.json.encode(creator), kind, namespace)
        task = self._asked.get(question)
        if task is None:
            task = asyncio.create_task(self._ask(creator, kind, namespace))
            self._asked[question] = task
            task.add_done_callback(lambda _: self._asked.pop(question, None))
        return await asyncio.shield(task)

    async def _ask(self, creator: Creator, kind: Kind, namespace: str) -> bool:
        review = access_review(creator, kind, namespace)
        answer: Json = await self._client.create(kinds.SUBJECT_ACCESS_REVIEW, review)
        return bool((answer.get("status") or {}).get("allowed"))


def not_allowed(creator: Creator, kind: Kind, namespace: str) -> str:
    return f"User {creator.user} is not authorized to create {kind.resource} in {namespace}"
