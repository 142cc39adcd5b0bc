"""What a user is told: what is short, where, who holds it, the place in the queue, what would help."""

from shoal.engine.model import NewNodes, QuotaIncrease

from .build import admitted, engine, gang, node, pod, pods, quota, subtree


def explained(judge, name):
    return judge.explain(f"AppWrapper/default/{name}", now=10)


def test_the_shortest_list_of_gangs_whose_end_would_help():
    judge = engine(
        node("n", cpu=8),
        gang("one", pods(1), at=1),
        gang("two", pods(2), at=2),
        gang("five", pods(5), at=3),
        gang("late", pods(4), at=4),
        gang("later", pods(7), at=5),
    )
    assert admitted(judge.plan(9)) == ["one", "two", "five"]
    late = explained(judge, "late")
    assert late.release == ("AppWrapper/default/five",)
    assert late.message == "4 cpu needed, 0 free"
    assert late.holders[0] == "AppWrapper/default/five"
    assert (late.position, late.queue_length) == (1, 2)
    assert late.release_measure == "least" and not late.starts_by_itself
    later = explained(judge, "later")
    assert later.position == 2 and later.release == (), "whatever ends, late is served first and too little is left"
    assert later.new_nodes == NewNodes(amounts={"cpu": 11000}), "enough for late as well"


def test_no_list_is_given_where_none_would_help():
    judge = engine(node("n", cpu=2), gang("small"), gang("huge", pods(9), at=1))
    judge.plan(1)
    assert explained(judge, "huge").release == ()


def test_what_ended_gangs_still_hold_makes_no_gang_too_large():
    """The cluster of a RayJob stays after its job, with its pods."""
    left = pod("left", on="a", of="ended", cpu=3)
    judge = engine(node("a", cpu=4), left, gang("small", pods(1, cpu=2)), gang("large", pods(1, cpu=5)))
    judge.plan(0)
    assert (explained(judge, "small").too_large, explained(judge, "large").too_large) == (False, True)


def team(*gangs):
    return engine(
        node("n", cpu=64),
        subtree("team", "", quota("root", cpu=10)),
        subtree("team", "root", quota("a", cpu=4, hard=True), quota("b", cpu=6), quota("default", cpu=0)),
        *gangs,
        quota=True,
    )


def test_the_least_increase_of_one_quota():
    judge = team(
        gang("first", pods(3), labels={"team": "a"}),
        gang("second", pods(2), labels={"team": "a"}, at=1),
        gang("other", pods(5), labels={"team": "b"}, at=2),
    )
    assert admitted(judge.plan(9)) == ["first", "other"]
    why = explained(judge, "second")
    assert why.place == "team/a" and why.shortfalls[0].missing == 1000
    assert why.least_increase == QuotaIncrease("team/a", {"cpu": 1000})
    assert why.holders == ("AppWrapper/default/first",), "only those who hold that quota"
    assert why.release == ("AppWrapper/default/first",)
    assert why.message == "2 cpu needed, 1 left of the hard limit of 4 at team/a"


def test_a_label_that_names_no_leaf_cannot_be_helped_by_quota():
    judge = team(gang("lost", labels={"team": "nobody"}))
    judge.plan(1)
    why = explained(judge, "lost")
    assert why.least_increase is None and why.release == ()
    assert "no leaf 'nobody'" in why.message


def test_explaining_changes_nothing():
    judge = team(
        *(gang(f"g{n}", pods(2), labels={"team": "ab"[n % 2]}, at=n) for n in range(8)),
        gang("x", pods(1), labels={"team": "default"}, at=9),
    )
    judge.plan(9)
    seats = {fact.key: fact.seats for fact in judge.facts() if hasattr(fact, "seats")}
    for key in seats:
        first = judge.explain(key, 10)
        assert judge.explain(key, 10) == first
    assert {fact.key: fact.seats for fact in judge.facts() if hasattr(fact, "seats")} == seats
    assert judge.plan(10).is_empty


def test_who_runs_or_is_unknown_has_nothing_to_explain():
    judge = engine(node("n"), gang("a"))
    judge.plan(1)
    assert explained(judge, "a") is None and explained(judge, "nobody") is None


def test_the_front_of_the_line_is_found_however_long_it_is():
    line = [gang(f"w{number:03}", pods(9 + number % 3), at=number) for number in range(100)]
    judge = engine(node("n", cpu=1), gang("urgent", pods(5), priority=9, at=500), *line)
    judge.plan(600)
    keys = [f"AppWrapper/default/{name}" for name in ("urgent", "w000", "w001", "w002")]
    assert judge.front(4, 600) == keys
    judge.remove(keys[1])
    assert judge.front(2, 600) == [keys[0], keys[2]]
