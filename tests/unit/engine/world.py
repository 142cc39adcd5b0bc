"""A cluster that does as it is told: applies plans, runs pods, and keeps its own facts to check the engine against.

Everything random comes from one seed. `assert_holds` after every step, whatever happened.
"""

from __future__ import annotations

import random
from collections import Counter

import msgspec

from shoal.engine import Engine, EngineSettings
from shoal.engine.model import Gang, HostPort, NodeFact, Plan, PodFact, PodSet, Toleration, key_of
from shoal.engine.nodes.selectors import untolerated

from .build import SECOND, node

ZONES = ("east", "west")


def apart_from(labels):
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


class World:
    def __init__(self, seed: int, **settings):
        self.dice = random.Random(seed)
        self.settings = EngineSettings(**settings)
        self.engine = Engine(self.settings)
        self.now = 1_000 * SECOND
        self.nodes: dict[str, NodeFact] = {}
        self.gangs: dict[str, Gang] = {}
        self.pods: dict[str, PodFact] = {}
        self.history: list[tuple[int, str, str]] = []
        self.number = 0

    # What happens in a cluster

    def tell(self, fact):
        self.engine.update(fact)

    def add_node(self):
        self.number += 1
        dice = self.dice
        fact = node(
            f"n{self.number}",
            cpu=dice.choice([2, 4, 8]),
            memory=f"{dice.choice([8, 16])}Gi",
            gpu=dice.choice([0, 0, 2, 4]),
            pods=dice.choice([4, 110]),
            labels={"zone": dice.choice(ZONES)},
            taints=[("dedicated", "gpu", "NoSchedule")] if dice.random() < 0.2 else [],
        )
        self.nodes[fact.name] = fact
        self.tell(fact)

    def lose_node(self):
        name = self.dice.choice(sorted(self.nodes))
        for uid in [uid for uid, pod in self.pods.items() if pod.node == name]:
            self.lose_pod(uid)
        del self.nodes[name]
        self.engine.remove(f"Node/{name}")

    def submit(self, **more):
        self.number += 1
        dice = self.dice
        sets = tuple(self.random_pod_set(f"s{index}") for index in range(dice.choice([1, 1, 2])))
        name = f"g{self.number}"
        made = Gang(
            key=f"AppWrapper/default/{name}",
            uid=f"uid-{name}",
            namespace=dice.choice(["default", "other"]),
            name=name,
            priority=dice.choice([0, 0, 0, 5]),
            created_at=self.now,
            queued_at=self.now,
            pod_sets=sets,
            **more,
        )
        self.gangs[made.key] = made
        self.tell(made)
        return made

    def random_pod_set(self, name):
        dice = self.dice
        asked = {"cpu": dice.choice([500, 1000, 2000]), "memory": dice.choice([1, 4]) * 2**30}
        if dice.random() < 0.3:
            asked["nvidia.com/gpu"] = dice.choice([1, 2])
        apart, labels = dice.random() < 0.12, {"app": dice.choice("xyz")}
        return PodSet(
            name=name,
            count=dice.choice([0, 1, 1, 2, 3, 6]),
            requests=asked,
            labels=labels,
            affinity=apart_from(labels) if apart else {},
            host_ports=(HostPort(dice.choice([80, 443])),) if dice.random() < 0.08 else (),
            node_selector={"zone": dice.choice(ZONES)} if dice.random() < 0.25 else {},
            tolerations=(Toleration("dedicated", "Exists"),) if dice.random() < 0.5 else (),
        )

    def create_pods(self):
        """One admitted gang gets one more pod bound, where it was planned."""
        waiting = []
        for gang in self.gangs.values():
            if gang.state != "admitted":
                continue
            here = Counter((pod.pod_set, pod.node) for pod in self.pods.values() if pod.gang == gang.uid)
            for entry in gang.assignment:
                for where, count in entry.nodes.items():
                    if here[entry.name, where] < count and where in self.nodes:
                        waiting.append((gang, entry.name, where))
        if waiting:
            gang, pod_set, where = self.dice.choice(waiting)
            self.number += 1
            wanted = next(entry for entry in gang.pod_sets if entry.name == pod_set)
            fact = PodFact(
                uid=f"p{self.number}",
                namespace=gang.namespace,
                name=f"p{self.number}",
                node=where,
                requests=wanted.requests,
                labels=wanted.labels,
                affinity=wanted.affinity,
                host_ports=wanted.host_ports,
                gang=gang.uid,
                pod_set=pod_set,
                phase="Running",
            )
            self.pods[fact.uid] = fact
            self.tell(fact)

    def lose_pod(self, uid):
        del self.pods[uid]
        self.engine.remove(f"Pod/{uid}")

    def finish(self):
        running = sorted(key for key, gang in self.gangs.items() if gang.state == "admitted")
        if running:
            key = self.dice.choice(running)
            self.remove_gang(key)

    def remove_gang(self, key):
        gang = self.gangs.pop(key)
        self.engine.remove(key)
        for uid in [uid for uid, pod in self.pods.items() if pod.gang == gang.uid]:
            self.lose_pod(uid)

    def progress_stopping(self):
        """Gangs being stopped lose a pod each; one without pods goes back to the queue."""
        for key in sorted(key for key, gang in self.gangs.items() if gang.state == "stopping"):
            gang = self.gangs[key]
            own = sorted(uid for uid, pod in self.pods.items() if pod.gang == gang.uid)
            if own:
                self.lose_pod(own[0])
            else:
                self.change(gang, state="waiting", seats={}, assignment=(), admitted_at=0)

    def change(self, gang, **what):
        changed = msgspec.structs.replace(gang, **what)
        self.gangs[gang.key] = changed
        self.tell(changed)

    # Carrying out plans

    def plan(self) -> Plan:
        self.now += SECOND
        plan = self.engine.plan(self.now)
        self.apply(plan)
        return plan

    def apply(self, plan):
        for preempt in plan.preempts:
            self.history.append((self.now, "preempt", preempt.gang))
            self.change(self.gangs[preempt.gang], state="stopping", stopping_for=preempt.preemptor_uid)
        for admit in plan.admits:
            self.history.append((self.now, "admit", admit.gang))
            gang = self.gangs[admit.gang]
            assert gang.state == "waiting", f"{gang.key} is admitted twice"
            self.change(
                gang,
                state="admitted",
                stopping_for="",
                admitted_at=self.now,
                seats=admit.seats,
                assignment=admit.assignment,
            )
        for reseat in plan.reseats:
            self.change(self.gangs[reseat.gang], seats=reseat.seats)

    def settle(self, limit=200):
        """Plan and let stopping gangs stop until nothing changes. Returns how many cycles decided something."""
        cycles = 0
        for _ in range(limit):
            plan = self.plan()
            stopping = any(gang.state == "stopping" for gang in self.gangs.values())
            self.progress_stopping()
            cycles += not plan.is_empty
            if plan.is_empty and not stopping and not plan.unfinished:
                return cycles
        raise AssertionError("no fixed point")

    def step(self):
        dice = self.dice
        action = dice.choice(
            ["submit"] * 4 + ["pods"] * 6 + ["finish"] * 2 + ["plan"] * 5 + ["stop"] * 2 + ["node", "lose", "delete"]
        )
        match action:
            case "submit":
                self.submit()
            case "pods":
                self.create_pods()
            case "finish":
                self.finish()
            case "stop":
                self.progress_stopping()
            case "node":
                self.add_node()
            case "lose" if len(self.nodes) > 2:
                self.lose_node()
            case "delete" if self.gangs:
                self.remove_gang(dice.choice(sorted(self.gangs)))
            case _:
                self.plan()
        return action

    # What must hold

    def assert_holds(self):
        self.check_nodes()
        self.check_neighbours()
        self.check_whole()

    def check_nodes(self):
        """Bound pods and planned pods never exceed what a node has, nor go where they may not."""
        taken: Counter = Counter()
        for pod in self.pods.values():
            for resource, amount in [*pod.requests.items(), ("pods", 1)]:
                taken[pod.node, resource] += amount
        for gang in self.gangs.values():
            if gang.state not in ("admitted", "stopping"):
                continue
            here = Counter((pod.pod_set, pod.node) for pod in self.pods.values() if pod.gang == gang.uid)
            for entry in gang.assignment:
                wanted = next(pod_set for pod_set in gang.pod_sets if pod_set.name == entry.name)
                for where, count in entry.nodes.items():
                    if where not in self.nodes:
                        continue
                    fact = self.nodes[where]
                    assert untolerated(wanted.tolerations, fact.taints) is None
                    assert all(fact.labels.get(key) == value for key, value in wanted.node_selector.items())
                    missing = max(0, count - here[entry.name, where])
                    for resource, amount in [*wanted.requests.items(), ("pods", 1)]:
                        taken[where, resource] += amount * missing
        for (where, resource), amount in taken.items():
            assert amount <= self.nodes[where].allocatable.get(resource, 0), (where, resource, amount)

    def check_neighbours(self):
        """Pods that keep others away have their nodes to themselves; a host port is taken once."""
        here: dict[str, list] = {name: [] for name in self.nodes}
        for pod in self.pods.values():
            here[pod.node].append(pod)
        for gang in self.gangs.values():
            if gang.state not in ("admitted", "stopping"):
                continue
            bound = Counter((pod.pod_set, pod.node) for pod in self.pods.values() if pod.gang == gang.uid)
            for entry in gang.assignment:
                wanted = next(pod_set for pod_set in gang.pod_sets if pod_set.name == entry.name)
                for where, count in entry.nodes.items():
                    if where in here:
                        fact = PodFact(
                            uid="", namespace=gang.namespace, labels=wanted.labels, affinity=wanted.affinity,
                            host_ports=wanted.host_ports,
                        )  # fmt: skip
                        here[where] += [fact] * max(0, count - bound[entry.name, where])
        for pods in here.values():
            for index, one in enumerate(pods):
                for other in pods[:index] + pods[index + 1 :]:
                    apart = one.affinity and one.namespace == other.namespace
                    assert not (apart and one.labels == other.labels)
                    assert not set(one.host_ports) & set(other.host_ports)

    def check_whole(self):
        """An admitted gang has every pod planned; a waiting one holds nothing."""
        for gang in self.gangs.values():
            if gang.state == "admitted" and gang.supply == "fit":
                planned = {entry.name: sum(entry.nodes.values()) for entry in gang.assignment}
                assert planned == {pod_set.name: pod_set.count for pod_set in gang.pod_sets}

    def rebuilt(self) -> Engine:
        """A new engine told the same facts, in another order, and which gang yielded to which; that is no fact."""
        known = {key_of(fact): fact for fact in self.engine._state.facts()}
        facts = [*self.nodes.values(), *self.pods.values()]
        facts += [fact for key, fact in known.items() if key.startswith("QuotaSubtree")]
        for gang in self.gangs.values():  # seats depend on history: the latest ones are told
            facts.append(msgspec.structs.replace(gang, seats=known[gang.key].seats) if gang.seats else gang)
        self_dice = random.Random(len(facts))
        self_dice.shuffle(facts)
        again = Engine(self.settings)
        state = self.engine._state
        again._state.yielding.adopt(state.yielding)
        again._state.served = dict(state.served)
        for fact in facts:
            again.update(fact)
        return again
