"""Whether a job belongs to another that is held already: by a queue, or by its AppWrapper.

An owner reference is a claim that any user may write. It counts when the owner exists in the job's namespace under that
name and UID, is of a kind that is held, and is held itself: it names a queue, is an AppWrapper, or belongs to such an
object in turn. Asked by admission and by the queue controller; a few reads at most, each with a limit. Writes nothing.
"""

from __future__ import annotations

import asyncio

from shoal.api import kinds, kueue_names
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.api.objects import controller_of, group_of, label
from shoal.controllers.queues.jobs import BY_NAME
from shoal.kube.client import Client
from shoal.kube.errors import Forbidden, NotFound, Unknown

NEVER_QUEUED = ("kube-system",)
LONGEST_CHAIN = 4
SECONDS = 5.0
_WRAPPERS: dict[tuple[str, str], Kind] = {
    (one.group, one.kind): one for one in (kinds.APP_WRAPPER, kinds.APP_WRAPPER_LEGACY)
}


def _maker(name: tuple[str, str]) -> Kind | None:
    """The kind of this group and name, where it is held."""
    found = BY_NAME.get(name)
    return found.kind if found is not None else _WRAPPERS.get(name)


def claims_owner(job: Json) -> bool:
    """Does it say that an object of a kind that is held made it?"""
    owner = controller_of(job)
    return owner is not None and _maker((group_of(owner), str(owner.get("kind")))) is not None


def claim_of(job: Json) -> str:
    """UID of the owner that it says made it, where that is of a kind that is held; else empty."""
    owner = controller_of(job)
    return str(owner.get("uid") or "-") if owner is not None and claims_owner(job) else ""


class Owners:
    """`client` reads the owners."""

    def __init__(self, client: Client, seconds: float = SECONDS, *, without_queue_name: bool = False) -> None:
        """`without_queue_name`: jobs that name no queue are held, too."""
        self._client = client
        self._seconds = seconds
        self._unnamed = without_queue_name

    async def hold(self, job: Json, namespace: str = "") -> bool:
        """Is what it says of its owner true, and is that one held? Raises KubeError where it cannot be known now."""
        if not claims_owner(job):
            return False
        try:
            async with asyncio.timeout(self._seconds):
                return await self._hold(job, namespace or job["metadata"].get("namespace", ""))
        except TimeoutError:
            raise Unknown("the owner of the job could not be read in time") from None

    async def _hold(self, job: Json, namespace: str) -> bool:
        for _ in range(LONGEST_CHAIN):
            reference = controller_of(job)
            name = (group_of(reference), str(reference.get("kind"))) if reference is not None else ("", "")
            maker = _maker(name)
            if reference is None or maker is None:
                return False
            try:
                owner = await self._client.get(maker, str(reference.get("name") or "-"), namespace)
            except (NotFound, Forbidden):
                return False
            if owner["metadata"].get("uid") != reference.get("uid"):
                return False
            if name in _WRAPPERS or (self._is_named(owner) and namespace not in NEVER_QUEUED):
                return True
            job = owner
        return False

    def _is_named(self, owner: Json) -> bool:
        return self._unnamed or bool(label(owner, kueue_names.QUEUE))
