"""Builders for queue tests, and a small world that carries out what the ledger decides."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.engine.kueue import (
    ClusterQueue,
    Cohort,
    Evict,
    Flavor,
    FlavorQuota,
    Kueue,
    KueueSettings,
    Limits,
    LocalQueue,
    Preemption,
    QueueDecisions,
    ResourceGroup,
    Terms,
)
from shoal.engine.model import Gang, Namespace, PodSet

CPU = 1000  # one cpu in the engine's milli

DEFAULTS: dict[str, Any] = {}
"""Settings of every world unless it says otherwise; the fault proofs take protections away here."""


def limits(cpu: int, borrowing: int | None = None, lending: int | None = None) -> Limits:
    return Limits(
        cpu * CPU,
        None if borrowing is None else borrowing * CPU,
        None if lending is None else lending * CPU,
    )


def queue(
    name: str,
    cpu: int | Limits = 10,
    cohort: str = "",
    *,
    within: str = "Never",
    reclaim: str = "Never",
    borrow: str = "Never",
    **more: Any,
) -> ClusterQueue:
    """A cluster queue with one flavor, `default`, unless `groups` are given."""
    quota = limits(cpu) if isinstance(cpu, int) else cpu
    more.setdefault("groups", (ResourceGroup(("cpu",), (FlavorQuota("default", {"cpu": quota}),)),))
    more.setdefault("namespace_selector", {})
    preemption = Preemption(
        within_cluster_queue=within,  # type: ignore[arg-type]
        reclaim_within_cohort=reclaim,  # type: ignore[arg-type]
        borrow_within_cohort=borrow,  # type: ignore[arg-type]
    )
    return ClusterQueue(name=name, cohort=cohort, preemption=preemption, **more)


def gang(name: str, to: str, cpu: int = 1, *, count: int = 1, priority: int = 0, at: int = 0, **more: Any) -> Gang:
    """A gang of `count` pods of `cpu` each, waiting in the local queue named like the cluster queue."""
    pod_sets = more.pop("pod_sets", None) or (
        PodSet(name="main", count=count, min_count=more.pop("least", None), requests={"cpu": cpu * CPU}),
    )
    return Gang(
        key=f"Workload/default/{name}",
        uid=f"uid-{name}",
        namespace="default",
        name=name,
        dialect="kueue",
        queue=to,
        priority=priority,
        created_at=at,
        pod_sets=pod_sets,
        **more,
    )


class World:
    """What lies outside the ledger: it stores decisions, lets victims go, and tells the facts that follow."""

    def __init__(self, *facts: Any, **settings: Any) -> None:
        self.kueue = Kueue(KueueSettings(**{**DEFAULTS, **settings}))
        self.gangs: dict[str, Gang] = {}
        self.leaving: list[Evict] = []
        self.now = 1_000_000
        self.admitted_in_order: list[str] = []
        self.evictions: list[tuple[str, str]] = []
        self.tell(Namespace(name="default"), Flavor(name="default"), *facts)

    def tell(self, *facts: Any) -> World:
        for fact in facts:
            if isinstance(fact, ClusterQueue):
                self.kueue.update(LocalQueue(namespace="default", name=fact.name, cluster_queue=fact.name))
            if isinstance(fact, Gang):
                self.gangs[fact.name] = fact
            self.kueue.update(fact)
        return self

    def plan(self) -> QueueDecisions:
        """One plan; reservations are stored, victims begin to leave."""
        self.now += 1_000_000
        decisions = self.kueue.plan(self.now)
        for entry in decisions.reserved:
            name = entry.gang.rpartition("/")[2]
            self.admitted_in_order.append(name)
            terms = Terms(cluster_queue=entry.cluster_queue)
            self.tell(
                msgspec.structs.replace(
                    self.gangs[name],
                    state="admitted",
                    admitted_at=self.now,
                    assignment=entry.assignment,
                    details={"kueue": terms},
                )
            )
        for victim in decisions.evicted:
            name = victim.gang.rpartition("/")[2]
            self.evictions.append((victim.preemptor.rpartition("/")[2], name))
            self.leaving.append(victim)
            self.tell(msgspec.structs.replace(self.gangs[name], state="stopping", stopping_for=victim.preemptor_uid))
        return decisions

    def let_go(self, *names: str) -> None:
        """Victims' pods are gone: all of them, or the named ones."""
        for victim in list(self.leaving):
            name = victim.gang.rpartition("/")[2]
            if not names or name in names:
                self.leaving.remove(victim)
                terms = Terms(evicted_at=self.now, evicted_reason="Preempted")
                self.tell(
                    msgspec.structs.replace(
                        self.gangs[name],
                        state="waiting",
                        admitted_at=0,
                        assignment=(),
                        stopping_for="",
                        details={"kueue": terms},
                    )
                )

    def settle(self, most: int = 200) -> int:
        """Plan and let go until nothing moves; returns the number of rounds."""
        for rounds in range(most):
            decisions = self.plan()
            assert not decisions.warnings, decisions.warnings
            if not decisions.reserved and not decisions.evicted and not self.leaving:
                return rounds
            self.let_go()
        raise AssertionError(f"still moving after {most} rounds: {self.evictions[-10:]}")

    def finish(self, *names: str) -> None:
        for name in names:
            self.kueue.update(msgspec.structs.replace(self.gangs.pop(name), state="finished"))

    def running(self) -> set[str]:
        return {name for name, one in self.gangs.items() if one.state in ("admitted", "stopping")}

    def used(self, name: str, flavor: str = "default") -> int:
        """Whole cpus in use in one cluster queue."""
        node = self.kueue.state.records[name].node
        return sum(amount for at, amount in node.usage.items() if at.flavor == flavor) // CPU


def cohort(name: str, parent: str = "", cpu: int = 0, **more: Any) -> Cohort:
    groups = (ResourceGroup(("cpu",), (FlavorQuota("default", {"cpu": limits(cpu)}),)),) if cpu else ()
    return Cohort(name=name, parent=parent, groups=groups, **more)
