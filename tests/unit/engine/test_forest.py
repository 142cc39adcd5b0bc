"""MCAD quota trees, as worked examples: who sits where, who borrows, who has to leave."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.mcad.forest import Consumer, QuotaForest, Seating
from shoal.engine.model import Seat

from .build import quota, requests, subtree


class Quota:
    """A forest spoken to by short names."""

    def __init__(self, *subtrees, preemptable=True, **more):
        self.forest = QuotaForest(**more)
        self.preemptable = preemptable
        for fact in subtrees:
            self.forest.set_subtree(fact)

    def ask(self, name, group, cpu=0, memory=0, gpu=0, priority=0):
        """Victims' names, or None when refused."""
        groups = group if isinstance(group, dict) else {self.forest.trees[0]: group}
        asked = self.forest.allocate(Consumer(name, groups, requests(cpu, memory, gpu), priority, self.preemptable))
        return list(asked.victims) if isinstance(asked, Seating) else None

    def seat(self, name, tree=None):
        seat = self.forest.seats(name).get(tree or self.forest.trees[0])
        return None if seat is None else seat.node

    def allocated(self, tree=None, resource="cpu"):
        nodes = self.forest.tree(tree or self.forest.trees[0]).nodes
        scale = 1000 if resource == "cpu" else 1
        return {name: node.allocated.get(resource, 0) // scale for name, node in nodes.items()}


def company():
    return Quota(
        subtree("co", "", quota("R", cpu=12)),
        subtree("co", "R", quota("ml", cpu=6), quota("web", cpu=4, hard=True), quota("misc", cpu=2)),
        subtree("co", "ml", quota("train", cpu=4), quota("tune", cpu=2)),
        subtree("co", "web", quota("api", cpu=3), quota("batch", cpu=2)),
    )


def test_one_tree_step_by_step():
    co = company()
    assert co.ask("t1", "train", 3) == [] and co.seat("t1") == "train"
    assert co.ask("t2", "train", 2) == [] and co.seat("t2") == "ml", "train has 1 left, it borrows at ml"
    co.forest.release("t1")
    assert co.seat("t2") == "train", "slides down when there is room"
    assert co.ask("t3", "train", 3, priority=5) == []
    assert (co.seat("t3"), co.seat("t2")) == ("train", "ml"), "higher priority pushes up"
    assert co.ask("u1", "tune", 2) == []
    assert (co.seat("u1"), co.seat("t2")) == ("tune", "R"), "a borrower gives way whatever its priority"
    assert co.ask("m1", "misc", 4) == [] and co.seat("m1") == "R"
    assert co.ask("w1", "api", 3) == ["t2"] and co.seat("w1") == "api", "oldest borrower first, and it suffices"
    assert co.ask("w2", "batch", 2) is None, "a hard node can neither be shifted nor passed"
    assert co.ask("w3", "batch", 1) == ["m1"] and co.seat("w3") == "batch"
    assert co.ask("w4", "api", 2, priority=5) == ["w1"] and co.seat("w4") == "api"
    assert co.allocated() == {"R": 8, "ml": 5, "train": 3, "tune": 2, "web": 3, "api": 2, "batch": 1, "misc": 0}
    assert {name: co.seat(name) for name in ("t3", "u1", "w3", "w4")} == {
        "t3": "train",
        "u1": "tune",
        "w3": "batch",
        "w4": "api",
    }


def team(**more):
    return Quota(
        subtree("team", "", quota("team-root", cpu=8, memory="32Gi", gpu=4)),
        subtree(
            "team",
            "team-root",
            quota("blue", cpu=4, memory="16Gi", gpu=2),
            quota("green", cpu=4, memory="16Gi", gpu=2),
            quota("ops", cpu=2, memory="8Gi", hard=True),
            quota("default", cpu=0, memory=0, gpu=0),
        ),
        **more,
    )


def test_over_one_resource_means_borrowing_all_of_it():
    tree = team()
    assert tree.ask("b1", "blue", 4, "16Gi", 4) == [] and tree.seat("b1") == "team-root"
    assert tree.ask("g1", "green", 2, "8Gi", 1) == ["b1"], "although priorities are equal"


def test_without_preemption_a_borrower_stays():
    tree = team(preemptable=False)
    tree.ask("b1", "blue", 4, "16Gi", 4)
    assert tree.ask("g1", "green", 2, "8Gi", 1) is None
    assert tree.seat("b1") == "team-root"


def test_borrowers_leave_oldest_first_even_those_that_hold_nothing_scarce():
    tree = team()
    assert tree.ask("d1", {}, 3, "4Gi") == [] and tree.seat("d1") == "team-root", "unlabelled work belongs to default"
    tree.ask("b1", "blue", 4, "16Gi", 4)
    assert tree.ask("g1", "green", 2, "8Gi", 1) == ["d1", "b1"]


def test_on_request_only_needed_victims_leave():
    tree = team(minimal_victims=True)
    tree.ask("d1", {}, 3, "4Gi")
    tree.ask("b1", "blue", 4, "16Gi", 4)
    assert tree.ask("g1", "green", 2, "8Gi", 1) == ["b1"]


def test_a_hard_node_lends_nothing_and_yields_to_priority_within():
    tree = team()
    assert tree.ask("o0", "ops", 1, "1Gi", 1) is None, "a resource it does not name is zero"
    assert tree.ask("o1", "ops", 2, "8Gi") == []
    assert tree.ask("o2", "ops", "500m", "1Gi") is None
    assert tree.ask("o3", "ops", "500m", "1Gi", priority=10) == ["o1"]


def test_an_attempt_that_can_never_succeed_leaves_no_trace():
    tree = team()
    tree.ask("b1", "blue", 4, "16Gi", 2)
    assert tree.ask("b2", "blue", 1, "4Gi", priority=50) == []
    assert (tree.seat("b1"), tree.seat("b2")) == ("team-root", "blue"), "pushed up, still running"
    before = picture(tree.forest)
    assert tree.ask("b3", "blue", 9, priority=50) is None
    assert picture(tree.forest) == before


def two_trees():
    """`team` measures cpu, `project` memory; each has plenty of what the other measures."""
    return Quota(
        subtree("project", "", quota("proj-root", memory=8, cpu=99)),
        subtree("project", "proj-root", quota("p", memory=5, cpu=99, hard=True), quota("q", memory=3, cpu=99)),
        subtree("team", "", quota("team-root", cpu=10, memory=99)),
        subtree("team", "team-root", quota("a", cpu=4, memory=99), quota("b", cpu=6, memory=99, hard=True)),
    )


def test_two_trees_are_asked_in_order_of_name():
    both = two_trees()
    assert both.ask("j1", {"team": "a", "project": "p"}, cpu=3, memory=3) == []
    assert both.forest.seats("j1") == {"project": Seat("p", 1), "team": Seat("a", 1)}
    assert both.ask("j2", {"team": "a", "project": "q"}, cpu=3, memory=2) == []
    assert (both.seat("j2", "team"), both.seat("j2", "project")) == ("team-root", "q"), "a is full"
    assert both.ask("j3", {"team": "b", "project": "p"}, cpu=6, memory=4, priority=2) == ["j1"]
    assert both.seat("j2", "team") == "a", "j1 left both trees before team was asked, so j2 slid down"
    assert both.allocated("project", "memory")["proj-root"] == 6
    assert both.allocated("team")["team-root"] == 9
    before = picture(both.forest)
    assert both.ask("j4", {"team": "b", "project": "q"}, cpu=1, memory=1) is None, "b is hard and full"
    assert picture(both.forest) == before, "its seat at q is taken back"


def test_a_leaf_that_does_not_exist_is_refused_and_named():
    tree = team()
    refused = tree.forest.allocate(Consumer("x", {"team": "purple"}, requests(1)))
    assert refused[0].place == "team/purple" and "no leaf 'purple'" in refused[0].message
    inner = tree.forest.allocate(Consumer("x", {"team": "team-root"}, requests(1)))
    assert "no leaf 'team-root'" in inner[0].message


def test_a_refusal_says_what_is_short_and_where():
    tree = team()
    tree.ask("o1", "ops", "1500m")
    (short,) = tree.forest.allocate(Consumer("x", {"team": "ops"}, requests(1)))
    assert (short.place, short.resource, short.missing, short.available) == ("team/ops", "cpu", 500, 500)


def test_trees_change_while_in_use_and_no_gang_is_evicted():
    tree = team()
    tree.ask("b1", "blue", 4, "16Gi", 2)
    tree.forest.set_subtree(
        subtree("team", "team-root", quota("blue", cpu=1), quota("green", cpu=1), quota("default", cpu=0))
    )
    assert tree.seat("b1") == "blue" and tree.allocated()["blue"] == 4
    assert tree.ask("b2", "blue", 1) == [] and tree.seat("b2") == "team-root"
    tree.forest.set_subtree(subtree("team", "team-root", quota("default", cpu=0)))
    assert tree.seat("b1") == "team-root", "its leaf is gone: it sits at the root"


def test_odd_trees_are_named_and_the_rest_is_used():
    forest = QuotaForest()
    forest.set_subtree(subtree("t", "", quota("root", cpu=4), quota("second", cpu=4)))
    forest.set_subtree(subtree("t", "root", quota("leaf", cpu=4)))
    forest.set_subtree(subtree("t", "nowhere", quota("lost", cpu=4)))
    forest.set_subtree(subtree("t", "loop-b", quota("loop-a", cpu=4)))
    forest.set_subtree(subtree("t", "loop-a", quota("loop-b", cpu=4)))
    assert isinstance(forest.allocate(Consumer("x", {"t": "leaf"}, requests(1))), Seating)
    text = "\n".join(forest.warnings)
    assert all(name in text for name in ("'second'", "'lost'", "'loop-a'", "'loop-b'"))


def test_no_tree_is_no_constraint():
    assert QuotaForest().allocate(Consumer("x", {}, requests(1000))) == Seating({})


def picture(forest):
    """Everything a tree knows, order included."""
    return {
        name: {
            node.name: (dict(node.allocated), {uid: node.seated[uid] for uid in node.in_order()})
            for node in forest.tree(name).nodes.values()
        }
        | {"": (forest.tree(name).next_order, sorted(forest.tree(name).consumers))}
        for name in forest.trees
    }


LEAVES = {"co": ["train", "tune", "api", "batch", "misc"], "team": ["blue", "green", "ops", "default"]}


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_undo_restores_every_seat_and_order(seed):
    """Random asks and releases on two trees; after each ask, undo and refusals leave the forest as it was."""
    dice = random.Random(seed)
    forest = company().forest
    for fact in team().forest.subtrees:
        forest.set_subtree(fact)
    running = []
    for step in range(30):
        if running and dice.random() < 0.25:
            forest.release(running.pop(dice.randrange(len(running))))
            continue
        groups = {tree: dice.choice(leaves) for tree, leaves in LEAVES.items()}
        asked = Consumer(
            f"c{step}",
            groups,
            requests(dice.randint(0, 5), f"{dice.randint(0, 8)}Gi", dice.randint(0, 2)),
            dice.choice([0, 0, 1, 5]),
            dice.random() < 0.8,
        )
        before = picture(forest)
        answer = forest.allocate(asked)
        if not isinstance(answer, Seating):
            assert picture(forest) == before
            continue
        after = picture(forest)
        forest.undo()
        assert picture(forest) == before
        again = forest.allocate(asked)
        assert again == answer and picture(forest) == after
        running = [name for name in running if name not in answer.victims] + [asked.uid]
        for tree in forest.trees:
            assert sorted(forest.tree(tree).consumers) == sorted(running)
            _check_sums(forest.tree(tree))


def _check_sums(tree):
    """Allocation of a node is what sits in its subtree, and within quota (all came in through `allocate`)."""
    for node in tree.nodes.values():
        below = [uid for uid, seat in tree.seats.items() if node in seat.path()]
        for resource in tree.dimensions:
            total = sum(tree.consumers[uid].request.get(resource, 0) for uid in below)
            assert node.allocated.get(resource, 0) == total <= node.quota.get(resource, 0)


@pytest.mark.parametrize("order", range(6))
def test_rebuilt_from_stored_seats_in_any_order_it_is_the_same(order):
    co = company()
    for name, group, cpu, priority in [
        ("t1", "train", 3, 0),
        ("t2", "train", 2, 0),
        ("m1", "misc", 4, 1),
        ("u1", "tune", 1, 0),
    ]:
        co.ask(name, group, cpu, priority=priority)
    tree = co.forest.tree("co")
    again = company().forest
    stored = [(tree.consumers[uid], co.forest.seats(uid)) for uid in sorted(tree.consumers)]
    random.Random(order).shuffle(stored)
    for consumer, seats in stored:
        again.restore(consumer, seats)
    assert picture(again) == picture(co.forest)
