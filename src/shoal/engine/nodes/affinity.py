"""Pods that want to be near or far from other pods.

Keeps, for each term that a pod asks about, how many pods match it in each topology domain, and which domains are closed
by the anti-affinity of pods already there. Called by the ledger (pods come and go) and by the fit code. Terms that
no pod asks about cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from shoal.engine.model import PodSet
from shoal.engine.nodes.selectors import PodTerm, parse_pod_terms

if TYPE_CHECKING:
    from shoal.engine.nodes.room import Room

Domains = Counter[str]


class Resident(msgspec.Struct, frozen=True):
    """What other pods see of a pod: where it is, its labels, and which pods it keeps away."""

    node: str
    namespace: str
    labels: Mapping[str, str]
    keeps_away: tuple[PodTerm, ...] = ()


class Company(msgspec.Struct, frozen=True):
    """The pod terms of one pod set, read once."""

    namespace: str
    labels: Mapping[str, str]
    wants: tuple[PodTerm, ...] = ()
    keeps_away: tuple[PodTerm, ...] = ()


def company_of(pod_set: PodSet, namespace: str) -> Company:
    """Raises BadInput on unreadable terms."""
    if not pod_set.affinity:
        return Company(namespace, pod_set.labels)
    return Company(
        namespace,
        pod_set.labels,
        parse_pod_terms(pod_set.affinity, "podAffinity", namespace, pod_set.labels),
        parse_pod_terms(pod_set.affinity, "podAntiAffinity", namespace, pod_set.labels),
    )


class Neighbourhood:
    """All residents, and the counts that terms ask for."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.residents: dict[object, tuple[Resident, int]] = {}
        self.closers: Counter[PodTerm] = Counter()
        """Anti-affinity terms carried by residents."""
        self.version = 0
        """Grows whenever pods come or go or labels change; a gang whose pods look at others is then looked at again."""
        self._matching: dict[PodTerm, Domains] = {}
        self._closing: dict[PodTerm, Domains] = {}

    def settle(self, key: object, resident: Resident, count: int = 1) -> None:
        """A pod (or `count` equal planned ones) is now there. Replaces what was known under this key."""
        self.leave(key)
        self.residents[key] = (resident, count)
        self._count(resident, count)

    def leave(self, key: object) -> None:
        known = self.residents.pop(key, None)
        if known is not None:
            self._count(known[0], -known[1])

    def relabelled(self) -> None:
        """Node or namespace labels changed: domains are read afresh when next asked for."""
        self.version += 1
        self._matching.clear()
        self._closing.clear()

    def _count(self, resident: Resident, count: int) -> None:
        self.version += 1
        for term in resident.keeps_away:
            self.closers[term] += count
            if not self.closers[term]:
                del self.closers[term]
            if term in self._closing:
                _add(self._closing[term], self.domain(resident.node, term.topology_key), count)
        for term, domains in self._matching.items():
            if self.matches(term, resident.namespace, resident.labels):
                _add(domains, self.domain(resident.node, term.topology_key), count)

    def matching(self, term: PodTerm) -> Domains:
        """Pods that match the term, by domain."""
        found = self._matching.get(term)
        if found is None:
            found = self._matching[term] = Counter()
            for resident, count in self.residents.values():
                if self.matches(term, resident.namespace, resident.labels):
                    _add(found, self.domain(resident.node, term.topology_key), count)
        return found

    def closing(self, term: PodTerm) -> Domains:
        """Pods that carry this anti-affinity term, by domain."""
        found = self._closing.get(term)
        if found is None:
            found = self._closing[term] = Counter()
            for resident, count in self.residents.values():
                if term in resident.keeps_away:
                    _add(found, self.domain(resident.node, term.topology_key), count)
        return found

    def matches(self, term: PodTerm, namespace: str, labels: Mapping[str, str]) -> bool:
        return term.covers(namespace, self.room.namespaces.get(namespace, {})) and term.selector.matches(labels)

    def domain(self, node: str, topology_key: str) -> str | None:
        slot = self.room.by_name.get(node)
        return None if slot is None or slot.fact is None else slot.fact.labels.get(topology_key)

    def concerns(self, company: Company) -> bool:
        """Must pods of this company be placed one by one, because other pods matter to them?"""
        return bool(company.wants or company.keeps_away) or any(
            self.matches(term, company.namespace, company.labels) for term in self.closers
        )


class Guests:
    """The pods of one gang while they are being placed: what the neighbourhood would look like with them in it."""

    def __init__(self, around: Neighbourhood) -> None:
        self.around = around
        self._placed: list[tuple[str, Company]] = []
        self._terms: set[PodTerm] = set(around.closers)
        self._matching: dict[PodTerm, NDArray[np.bool_]] = {}
        self._closing: dict[PodTerm, NDArray[np.bool_]] = {}

    def add(self, node: str, company: Company) -> None:
        self._placed.append((node, company))
        self._terms.update(company.keeps_away)
        for term, flags in self._matching.items():
            if self.around.matches(term, company.namespace, company.labels):
                self._flag(flags, node, term)
        for term, flags in self._closing.items():
            if term in company.keeps_away:
                self._flag(flags, node, term)

    def open_to(self, company: Company) -> tuple[NDArray[np.bool_], str]:
        """Nodes where such a pod may go, and the kube-scheduler's words for what closed the others."""
        mask = self.around.room.alive.copy()
        reason = ""
        for term in self._terms:
            if self.around.matches(term, company.namespace, company.labels):
                mask &= ~self._where(term, self._closing_flags(term))
                reason = "node(s) didn't satisfy existing pods anti-affinity rules"
        for term in company.keeps_away:
            mask &= ~self._where(term, self._matching_flags(term))
            reason = "node(s) didn't match pod anti-affinity rules"
        if company.wants:
            first = self.is_first_of_its_kind(company)
            for term in company.wants:
                if first:
                    mask &= self.around.room.column(term.topology_key)[0] >= 0
                else:
                    mask &= self._where(term, self._matching_flags(term))
            reason = "node(s) didn't match pod affinity rules"
        return mask, reason

    def is_first_of_its_kind(self, company: Company) -> bool:
        """As Kubernetes: a pod that wants to be near its own kind may be the first of them, anywhere."""
        return all(
            self.around.matches(term, company.namespace, company.labels) and not self._matching_flags(term).any()
            for term in company.wants
        )

    def _matching_flags(self, term: PodTerm) -> NDArray[np.bool_]:
        """Which domains of the term's topology hold a pod that matches it."""
        flags = self._matching.get(term)
        if flags is None:
            flags = self._matching[term] = self._flags(term, self.around.matching(term))
            for node, guest in self._placed:
                if self.around.matches(term, guest.namespace, guest.labels):
                    self._flag(flags, node, term)
        return flags

    def _closing_flags(self, term: PodTerm) -> NDArray[np.bool_]:
        """Which domains hold a pod that carries this anti-affinity term."""
        flags = self._closing.get(term)
        if flags is None:
            flags = self._closing[term] = self._flags(term, self.around.closing(term))
            for node, guest in self._placed:
                if term in guest.keeps_away:
                    self._flag(flags, node, term)
        return flags

    def _flags(self, term: PodTerm, domains: Domains) -> NDArray[np.bool_]:
        values = self.around.room.column(term.topology_key)[1]
        flags = np.zeros(len(values) + 1, dtype=bool)  # the last one stands for nodes without the label: never set
        flags[[values[name] for name in domains if name in values]] = True
        return flags

    def _flag(self, flags: NDArray[np.bool_], node: str, term: PodTerm) -> None:
        domain = self.around.domain(node, term.topology_key)
        if domain is not None:
            flags[self.around.room.column(term.topology_key)[1][domain]] = True

    def _where(self, term: PodTerm, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return flags[self.around.room.column(term.topology_key)[0]]


def holds_in_any_order(around: Neighbourhood, placed: Iterable[tuple[str, Company]]) -> bool:
    """Whether pods that want company find it on these nodes in whatever order they are bound.

    As Kubernetes, the first pod of a kind may go anywhere; which is first, the scheduler decides. So every pod
    that could be first is tried, after all pods that wait for no other.
    """
    groups = {(id(company), node): (node, company) for node, company in placed}
    terms = {term for _, company in groups.values() for term in company.wants}
    found = {term: set(around.matching(term)) for term in terms}
    waiting = []
    for node, company in groups.values():
        if company.wants:
            waiting.append((node, company))
        else:
            _note(around, found, node, company)
    return _all_settle(around, found, waiting)


_Found = dict[PodTerm, set[str]]


def _all_settle(around: Neighbourhood, found: _Found, waiting: list[tuple[str, Company]]) -> bool:
    waiting = _unsettled(around, found, waiting)
    if not waiting:
        return True
    firsts: dict[object, tuple[str, Company]] = {}
    for node, company in waiting:
        if all(not found[term] and around.matches(term, company.namespace, company.labels) for term in company.wants):
            where = tuple(around.domain(node, term.topology_key) for term in company.wants)
            firsts.setdefault((id(company), where), (node, company))
    for node, company in firsts.values():
        after = {term: set(domains) for term, domains in found.items()}
        _note(around, after, node, company)
        if not _all_settle(around, after, waiting):
            return False
    return bool(firsts)


def _unsettled(around: Neighbourhood, found: _Found, waiting: list[tuple[str, Company]]) -> list[tuple[str, Company]]:
    """Let every pod settle whose company is there, until no pod moves; returns the pods that are left."""
    while True:
        left = []
        for node, company in waiting:
            if all(around.domain(node, term.topology_key) in found[term] for term in company.wants):
                _note(around, found, node, company)
            else:
                left.append((node, company))
        if len(left) == len(waiting):
            return left
        waiting = left


def _note(around: Neighbourhood, found: _Found, node: str, company: Company) -> None:
    for term, domains in found.items():
        if around.matches(term, company.namespace, company.labels):
            domain = around.domain(node, term.topology_key)
            if domain is not None:
                domains.add(domain)


def _add(domains: Domains, domain: str | None, count: int) -> None:
    if domain is None:
        return
    domains[domain] += count
    if not domains[domain]:
        del domains[domain]
