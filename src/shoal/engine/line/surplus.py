"""Pods that elastic gangs have beyond what they were admitted with: each counts as a small gang of its own.

Kept by `LineState`, worked out again from facts for every elastic gang that changed. As gangs of their own such pods
hold room and quota, leave as soon as another gang needs those, and can be taken one by one with the same steps as
any gang. Which of several equal pods is the surplus does not matter: those that are on their way out, then those that
were it before.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from shoal.api.kueue_names import POD_SET
from shoal.engine.model import Gang, PodFact, PodSet, PodSetAssignment, Shrink
from shoal.engine.nodes.to_come import pod_set_index

if TYPE_CHECKING:
    from shoal.engine.line.state import LineState

PREFIX = "surplus/"
"""Of the UID of such a gang; the rest is the UID of its pod."""
HOLDS = ("admitted", "stopping")


def surplus_uid(pod: str) -> str:
    return PREFIX + pod


def is_surplus(uid: str) -> bool:
    return uid.startswith(PREFIX)


def leaving_turn(one: Gang) -> tuple[bool, int, int, str, str]:
    """Surplus as a gang, first to leave first: what is on its way, then low priority, then what came last."""
    return one.state != "stopping", one.priority, -one.admitted_at, one.name, one.uid


class Split(msgspec.Struct, frozen=True):
    """The pods of one pod set of an elastic gang, by UID."""

    admitted: tuple[str, ...] = ()
    """Those that take the places that the gang was admitted with."""
    surplus: tuple[str, ...] = ()
    bids: tuple[str, ...] = ()
    vacant: int = 0
    """How many more pods may come without a grant: the gang was admitted with them."""


def split(pods: Sequence[PodFact], count: int, before: Split | None, leaving: Container[str]) -> Split:
    """`count`: as many were admitted. `before`: how it was so far; None: nothing is known of that.

    Of pods on their way out no more count as surplus than did before: one that was admitted has its quota kept for the
    pod that takes its place.
    """
    known = before or Split()
    there = [pod for pod in pods if not pod.is_terminal and not pod.gated]
    there.sort(
        key=lambda pod: (
            pod.uid in leaving or pod.leaving,
            pod.uid not in known.admitted,
            pod.uid in known.surplus,
            pod.node == "",
            pod.name,
            pod.uid,
        )
    )
    live = [pod for pod in there if not pod.deleting]
    dying = sorted(
        (pod for pod in there if pod.deleting), key=lambda pod: (pod.uid not in known.surplus, pod.name, pod.uid)
    )
    surplus = live[count:]
    most = len(there) - count if before is None else min(len(known.surplus), len(there) - count)
    surplus += dying[: max(0, most - len(surplus))]
    bids = sorted(
        (pod for pod in pods if pod.bids and pod.gated and not pod.deleting and not pod.is_terminal),
        key=lambda pod: (pod.grows_since, pod.name, pod.uid),
    )
    return Split(
        admitted=tuple(pod.uid for pod in live[:count]),
        surplus=tuple(pod.uid for pod in surplus),
        bids=tuple(pod.uid for pod in bids),
        vacant=max(0, count - len(live)),
    )


def set_name(gang: Gang, pod: PodFact) -> str:
    """The pod set of a pod of this gang: as its label says, else the one that it looks like."""
    named = pod.labels.get(POD_SET, "")
    if any(one.name == named for one in gang.pod_sets):
        return named
    index = pod_set_index(gang.pod_sets, pod)
    return gang.pod_sets[index].name if index is not None else ""


class Surplus:
    def __init__(self) -> None:
        self.elastic: set[str] = set()
        """UIDs of the gangs that may have any."""
        self.owners: dict[str, str] = {}
        """UID of a pod that is surplus to that of its gang."""
        self._of: dict[str, set[str]] = {}
        self.leaving: dict[str, str] = {}
        """UID of a pod that was told to leave, to that of the gang for which."""
        self.splits: dict[str, dict[str, Split]] = {}
        """By UID of an elastic gang: its pod sets."""
        self.granted_at: dict[str, int] = {}
        self.nodes: dict[str, str] = {}
        """Where pods that were granted and have no node yet are planned."""
        self.changed: set[str] = set()
        """UIDs of pods that are surplus of gangs that changed, or not any more, since quota was told."""
        self.unjudged: set[str] = set()
        """UIDs of elastic gangs that changed, or pods of them, since their bids were last looked at."""
        self._stale: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.elastic or self.owners or self._stale)

    def note(self, gang: Gang) -> None:
        """A gang is new or has changed; only those that are elastic, or were, matter."""
        if gang.elastic:
            self.elastic.add(gang.uid)
        elif gang.uid in self.elastic:
            self.elastic.discard(gang.uid)
        else:
            return
        self._stale.add(gang.uid)
        self.unjudged.add(gang.uid)

    def forget(self, gang: str) -> None:
        if gang in self.elastic:
            self.elastic.discard(gang)
            self._stale.add(gang)

    def of(self, gang: str) -> set[str]:
        """UIDs of the pods that are surplus of this gang."""
        return self._of.get(gang, set())

    def gangs(self, state: LineState) -> list[Gang]:
        """All surplus as gangs, first to leave first."""
        return sorted([state.by_uid(surplus_uid(pod)) for pod in self.owners], key=leaving_turn)

    def settle(self, state: LineState) -> None:
        """Work out again what is surplus of the gangs that changed."""
        while self._stale:
            uid = min(self._stale)
            self._stale.discard(uid)
            self._settle_one(uid, state)

    def _settle_one(self, uid: str, state: LineState) -> None:
        self.unjudged.add(uid)
        gang = state.gangs.get(state.keys.get(uid, ""))
        known = frozenset(self.of(uid))
        pods = [*state.ledger.pods_of(uid), *(state.ledger.pods[pod] for pod in known if pod in state.ledger.pods)]
        before = self.splits.pop(uid, None)
        surplus: dict[str, PodSet] = {}
        if gang is not None and gang.elastic and gang.state in HOLDS:
            splits, surplus = self._split(gang, pods, before)
            self.splits[uid] = splits
        for pod in sorted(known - surplus.keys()):
            self._drop(pod, uid, state)
        for pod, pod_set in sorted(surplus.items()):
            assert gang is not None
            self._put(state.ledger.pods[pod], pod_set, gang, state)

    def _split(
        self, gang: Gang, pods: Iterable[PodFact], before: dict[str, Split] | None
    ) -> tuple[dict[str, Split], dict[str, PodSet]]:
        by_set: dict[str, list[PodFact]] = {}
        for pod in pods:
            by_set.setdefault(set_name(gang, pod), []).append(pod)
        counts = {entry.name: entry.count for entry in gang.assignment}
        splits: dict[str, Split] = {}
        surplus: dict[str, PodSet] = {}
        for pod_set in gang.pod_sets:
            mine = by_set.get(pod_set.name, [])
            known = None if before is None else before.get(pod_set.name)
            found = split(mine, counts.get(pod_set.name, pod_set.count), known, self.leaving)
            splits[pod_set.name] = found
            surplus |= dict.fromkeys(found.surplus, pod_set)
        return splits, surplus

    def _put(self, pod: PodFact, pod_set: PodSet, owner: Gang, state: LineState) -> None:
        uid = surplus_uid(pod.uid)
        if pod.uid not in self.owners:
            self.owners[pod.uid] = owner.uid
            self._of.setdefault(owner.uid, set()).add(pod.uid)
        if pod.gang != uid:
            state.ledger.set_pod(msgspec.structs.replace(pod, gang=uid, pod_set=pod_set.name))
        given = next((one for one in owner.assignment if one.name == pod_set.name), None)
        node = self.nodes.get(pod.uid, "")
        if pod.node:
            self.nodes.pop(pod.uid, None)
        leaves = pod.deleting or pod.leaving or pod.uid in self.leaving or owner.state == "stopping"
        self.changed.add(pod.uid)
        state.put(
            Gang(
                key=f"Pod/{pod.namespace}/{pod.name}",
                uid=uid,
                namespace=pod.namespace,
                name=pod.name,
                dialect="kueue",
                queue=owner.queue,
                priority=owner.priority,
                created_at=owner.created_at,
                queued_at=owner.queued_at,
                pod_sets=(msgspec.structs.replace(pod_set, count=1, min_count=None),),
                supply=owner.supply,
                state="stopping" if leaves else "admitted",
                admitted_at=self.granted_at.get(pod.uid, 0),
                assignment=(
                    PodSetAssignment(
                        name=pod_set.name,
                        count=1,
                        flavors=given.flavors if given is not None else {},
                        nodes={node: 1} if node and not pod.node else {},
                    ),
                ),
                stopping_for=self.leaving.get(pod.uid, "") if leaves else "",
            )
        )

    def _drop(self, pod: str, owner: str, state: LineState) -> None:
        """It is one of those that were admitted now, or gone."""
        del self.owners[pod]
        self._of[owner].discard(pod)
        if not self._of[owner]:
            del self._of[owner]
        self.changed.add(pod)
        known = state.gangs.get(state.keys.get(surplus_uid(pod), ""))
        if known is not None:
            state.drop(known)
        fact = state.ledger.pods.get(pod)
        if fact is not None:
            state.ledger.set_pod(msgspec.structs.replace(fact, gang=owner, pod_set=""))
        else:
            for book in (self.leaving, self.nodes):
                book.pop(pod, None)
            self.granted_at.pop(pod, None)

    def attributed(self, fact: PodFact) -> PodFact:
        """A pod as the ledger is to know it, and its gang as changed."""
        owner = self.owners.get(fact.uid, "")
        self._stale |= self.elastic & {owner, fact.gang}
        if fact.gang != owner or not owner:
            return fact
        return msgspec.structs.replace(fact, gang=surplus_uid(fact.uid), pod_set=set_of(fact))

    def gone(self, pod: PodFact) -> None:
        """A pod is about to be forgotten."""
        owner = self.told(pod).gang
        if owner in self.elastic or pod.uid in self.owners:
            self._stale.add(owner)

    def told(self, pod: PodFact) -> PodFact:
        """The pod as it was told."""
        owner = self.owners.get(pod.uid)
        return pod if owner is None else msgspec.structs.replace(pod, gang=owner, pod_set="")

    def shrink(self, pod: str, preemptor: Gang, state: LineState, node: str = "") -> Shrink:
        """Tell this pod to leave for that gang: from now on it counts as leaving."""
        owner = state.by_uid(self.owners[pod])
        self.leaving[pod] = preemptor.uid
        self.changed.add(pod)
        surplus = state.by_uid(surplus_uid(pod))
        state.assume_stopping(surplus, preemptor)
        return Shrink(
            pod=pod,
            gang=owner.key,
            uid=owner.uid,
            preemptor=preemptor.key,
            preemptor_uid=preemptor.uid,
            node=node,
            message=f"makes way for {preemptor.key}; {owner.key} keeps what it was admitted with",
        )

    def exchange(self, pod: str, other: str, state: LineState) -> bool:
        """Of two pods of one pod set, the other leaves instead."""
        owner = self.owners.get(pod, "")
        if pod not in self.leaving or other in self.leaving or not owner:
            return False
        equals = [{*one.admitted, *one.surplus} for one in self.splits.get(owner, {}).values()]
        if not any({pod, other} <= those for those in equals):
            return False
        self.leaving[other] = self.leaving.pop(pod)
        self._stale.add(owner)
        self.settle(state)
        return True


def set_of(fact: PodFact) -> str:
    return fact.labels.get(POD_SET, "")
