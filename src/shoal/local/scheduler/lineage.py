"""Whose pod it is: the marks on a pod count only where its chain of controllers leads to what they name.

A mark is an annotation, and any user may write one. The scheduler asks this once for each marked pod, before it groups
the pod with others; owners are read from the API server, in the pod's own namespace, and remembered. Writes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from shoal.api import gang as marks
from shoal.api.kinds import WORKLOAD
from shoal.api.labels import KUEUE_WORKLOAD
from shoal.api.meta import Json
from shoal.api.objects import controller_of
from shoal.kube.client import Client
from shoal.kube.discovery import Discovery
from shoal.kube.errors import Forbidden, NotFound

LONGEST_CHAIN = 6
REMEMBERED = 4_096
DECIDING = (marks.GANG_UID, marks.GANG_SIZE, marks.GANG_NAME, marks.PREFIX + "gang-bound", KUEUE_WORKLOAD)
"""Annotations that decide with which pods a pod is bound, and when."""
_GANGS = ("AppWrapper", "RayCluster")
"""Kinds that are gangs: a pod that one of them controls belongs to it, without a look."""


class Lineage:
    """Answers for each pod, by UID, which of its marks are true."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._discovery = Discovery(client)
        self._controller: OrderedDict[str, str] = OrderedDict()
        """UID of an object to that of its controller; empty for one that has none."""
        self._workload: OrderedDict[tuple[str, str], str] = OrderedDict()
        """Namespace and name of a Workload to the UID of its job."""
        self._false: dict[str, frozenset[str]] = {}
        """By the pod's UID: its marks that do not count."""

    def is_known(self, head: Json) -> bool:
        """Whether the marks of this pod were judged, or can be without a look; on most there is nothing to judge."""
        if head["uid"] in self._false:
            return True
        claims, owner = _claims(head), controller_of({"metadata": head})
        if owner is not None and owner.get("uid") not in self._controller and claims:
            return False
        workload = claims.get(KUEUE_WORKLOAD)
        if workload and (head.get("namespace", ""), workload) not in self._workload:
            return False
        if claims:
            chain = [str(owner["uid"]), *self._remembered(str(owner["uid"]))] if owner is not None else []
            self._judge(head, claims, chain, self._workload.get((head.get("namespace", ""), workload or ""), "-"))
        return True

    async def learn(self, head: Json) -> None:
        """Judge the marks of this pod. Raises KubeError where that cannot be done now."""
        if self.is_known(head):
            return
        claims = _claims(head)
        chain = await self._chain(head)
        workload = claims.get(KUEUE_WORKLOAD)
        self._judge(head, claims, chain, await self._job_of(head, workload) if workload else "-")

    def _judge(self, head: Json, claims: dict[str, str], chain: list[str], job: str) -> None:
        false = set[str]()
        if marks.GANG_UID in claims and claims[marks.GANG_UID] not in chain:
            false.update(one for one in DECIDING if one != KUEUE_WORKLOAD)
        if KUEUE_WORKLOAD in claims and job not in (head["uid"], *chain):
            false.add(KUEUE_WORKLOAD)
        self._false[head["uid"]] = frozenset(false)

    def forget(self, uid: str) -> None:
        self._false.pop(uid, None)

    def vetted(self, pod: Json) -> Json:
        """The pod without the marks that do not count. Those of a pod without an owner stay: they bind it to others of
        the same sort, and to no gang (see `group_key`)."""
        head = pod["metadata"]
        false = self._false.get(head["uid"])
        if false is None:
            false = frozenset(DECIDING) if _claims(head) else frozenset()
        if not false:
            return pod
        kept = {name: value for name, value in (head.get("annotations") or {}).items() if name not in false}
        return {**pod, "metadata": {**head, "annotations": kept}}

    async def _chain(self, head: Json) -> list[str]:
        """UIDs of the controllers above a pod, nearest first, each in the pod's namespace."""
        chain: list[str] = []
        below: Json = {"metadata": head}
        while (reference := controller_of(below)) is not None and len(chain) < LONGEST_CHAIN:
            uid = str(reference.get("uid") or "")
            chain.append(uid)
            if uid in self._controller:
                chain += self._remembered(uid)
                break
            if reference.get("kind") in _GANGS and uid == str((head.get("annotations") or {}).get(marks.GANG_UID)):
                break  # no other gang of this namespace has that UID, so there is no need to read it
            owner = await self._read(reference, head.get("namespace", ""))
            if owner is None or owner["metadata"].get("uid") != uid:
                chain.pop()  # it names an owner that is not there
                break
            above = controller_of(owner)
            _remember(self._controller, uid, str(above.get("uid") or "") if above is not None else "")
            below = owner
        return chain

    def _remembered(self, uid: str) -> Iterable[str]:
        seen = {uid}
        while (uid := self._controller.get(uid, "")) and uid not in seen:
            seen.add(uid)
            yield uid

    async def _read(self, reference: Json, namespace: str) -> Json | None:
        kind = await self._discovery.kind_of(str(reference.get("apiVersion") or ""), str(reference.get("kind") or ""))
        if kind is None or not kind.namespaced or not reference.get("name"):
            return None
        try:
            return await self._client.get(kind, str(reference["name"]), namespace)
        except (NotFound, Forbidden):
            return None

    async def _job_of(self, head: Json, workload: str) -> str:
        key = (head.get("namespace", ""), workload)
        if key not in self._workload:
            try:
                found = await self._client.get(WORKLOAD, workload, key[0])
            except (NotFound, Forbidden):
                return "-"
            owner = controller_of(found)
            _remember(self._workload, key, str(owner.get("uid") or "-") if owner is not None else "-")
        return self._workload[key]


def _claims(head: Json) -> dict[str, str]:
    """Marks that need a look: of a pod with an owner, that of a gang which is not this owner; of any pod, that of a
    Workload."""
    annotations, owner = head.get("annotations") or {}, controller_of({"metadata": head})
    found = {KUEUE_WORKLOAD: str(annotations[KUEUE_WORKLOAD])} if annotations.get(KUEUE_WORKLOAD) else {}
    gang = str(annotations.get(marks.GANG_UID) or "")
    if owner is not None and gang and not (owner.get("kind") in _GANGS and owner.get("uid") == gang):
        found[marks.GANG_UID] = gang
    return found


def _remember(known: OrderedDict[Any, str], key: Any, value: str) -> None:
    known[key] = value
    if len(known) > REMEMBERED:
        known.popitem(last=False)
