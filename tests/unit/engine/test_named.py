"""Gangs whose pods name their hosts: found on plain numbers, in the very places that the arrays of all nodes give."""

import random

import pytest

from shoal.engine.line.state import LineState
from shoal.engine.model import Toleration
from shoal.engine.nodes import fit
from shoal.engine.nodes.fit import Placement, place
from shoal.engine.nodes.ledger import Ledger
from shoal.engine.nodes.named import place_on_hosts
from tests.faults import proven

from .build import admitted, engine, gang, node, pod, pods

HOSTNAME = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def on_hosts(*hosts, **more):
    expressions = [{"key": HOSTNAME, "operator": "In", "values": list(hosts)}, *more.get("expressions", ())]
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}}


def some_room(dice):
    ledger = Ledger()
    for index in range(dice.randint(1, 8)):
        host = f"n{dice.randint(0, 9)}" if dice.random() < 0.2 else f"n{index}"
        more = {"labels": {HOSTNAME: host, "disk": dice.choice("hs")}}
        if dice.random() < 0.2:
            more["taints"] = [("night", "", "NoSchedule")]
        ledger.set_node(
            node(f"n{index}", cpu=dice.randint(0, 8), memory=dice.randint(0, 12), gpu=dice.choice((0, 0, 2)),
                 pods=dice.randint(1, 6), unschedulable=dice.random() < 0.1, ready=dice.random() > 0.1, **more)
        )  # fmt: skip
    for index in range(dice.randint(0, 5)):
        ledger.set_pod(
            pod(f"p{index}", on=f"n{dice.randint(0, 9)}", cpu=dice.randint(1, 3), gpu=dice.choice((0, 0, 1)))
        )
    ledger.settle()
    for index in range(dice.randint(0, 3)):
        ledger.room.take(f"n{index}", {"cpu": 1000, "nvidia.com/gpu": dice.randint(0, 1)}, 1, planned=True)
    return ledger.room


def some_gang(dice):
    parts = []
    for name in ("head", "work", "more")[: dice.randint(1, 3)]:
        hosts = [f"n{dice.randint(0, 9)}" for _ in range(dice.randint(1, 4))]
        slow = [{"key": "disk", "operator": "In", "values": ["h"]}] if dice.random() < 0.2 else []
        parts.append(
            pods(dice.randint(0, 4), cpu=dice.randint(0, 3), memory=dice.choice((0, 0, 3)), name=name,
                 gpu=dice.choice((0, 0, 0, 1)), affinity=on_hosts(*hosts, expressions=slow),
                 node_selector={"disk": "s"} if dice.random() < 0.2 else {},
                 tolerations=(Toleration("night", "Exists"),) if dice.random() < 0.4 else ())
        )  # fmt: skip
    return gang("g", *parts)


@pytest.mark.parametrize("block", range(6))
def test_plain_numbers_give_the_places_that_arrays_give(block, monkeypatch):
    quick = 0
    for seed in range(block * 200, block * 200 + 200):
        dice = random.Random(seed)
        room, one = some_room(dice), some_gang(dice)
        named = place_on_hosts(one, room)
        quick += named is not None
        with monkeypatch.context() as without:
            without.setattr(fit, "place_on_hosts", lambda gang, room: None)
            assert named is None or place(one, room) == Placement(named), seed
            plain = place(one, room)
        assert place(one, room) == plain, seed
    assert quick > 20


def without_rows(patch):
    patch.setattr(LineState, "_keep_rows", lambda self, gang_class: None)


@proven(without=without_rows)
def test_f764_a_gang_that_finds_its_host_full_starts_once_there_is_room():
    """F764: a gang whose pods name their host finds it full, and the host has room later. Holds: what is free there is
    watched from the refusal on, and the gang starts in the very next plan."""
    here = engine(node("a", cpu=2), node("b", cpu=8), pod("x", on="a", cpu=2))
    here.update(gang("g", pods(1, cpu=2, affinity=on_hosts("a"))))
    assert admitted(here.plan(1)) == []
    here.update(pod("y", on="b", cpu=1))
    assert admitted(here.plan(2)) == []
    here.remove("Pod/x")
    assert admitted(here.plan(3)) == ["g"]


def test_a_gang_that_starts_at_once_leaves_no_row_behind():
    here = engine(node("a", cpu=2))
    here.update(gang("g", pods(1, cpu=2, affinity=on_hosts("a"))))
    assert admitted(here.plan(1)) == ["g"]
    assert not any(here._state.ledger.room.shapes)


def test_hosts_are_found_by_the_name_that_they_have_now():
    here = engine(node("a", cpu=2, labels={HOSTNAME: "x"}), node("b", cpu=2, labels={HOSTNAME: "y"}))
    here.update(gang("first", pods(1, cpu=2, affinity=on_hosts("x"))))
    plan = here.plan(1)
    assert [admit.assignment[0].nodes for admit in plan.admits] == [{"a": 1}]
    here.update(node("b", cpu=2, labels={HOSTNAME: "z"}))
    here.update(gang("second", pods(1, cpu=2, affinity=on_hosts("y"))))
    here.update(gang("third", pods(1, cpu=2, affinity=on_hosts("z"))))
    assert admitted(here.plan(2)) == ["third"]
