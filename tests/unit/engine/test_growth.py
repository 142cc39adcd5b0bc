"""Gangs that have more pods than they were admitted with: what quota carries for them, and who may still come."""

from shoal.engine import Engine, Settings

from .build import admitted, engine, gang, node, pod, pods, quota, subtree

TEAM = (subtree("team", "", quota("root", cpu=8)), subtree("team", "root", quota("green", cpu=4, hard=True)))
LABELS = {"team": "green"}


def running(*more, count=1):
    """A gang of that many pods runs in green, and has these pods."""
    told = engine(*TEAM, node("n", cpu=16), gang("ray", pods(count), labels=LABELS), quota=True)
    assert admitted(told.plan(0)) == ["ray"]
    for one in more:
        told.update(one)
    told.plan(1)
    return told


def carried(told: Engine) -> int:
    """CPUs that the leaf carries."""
    return told.quota_use()["team", "green"].allocated.get("cpu", 0) // 1000


def test_quota_carries_the_pods_that_are_there_beyond_the_admitted():
    assert carried(running()) == 1
    assert carried(running(pod("a", "n", "ray"))) == 1, "the one that was admitted"
    assert carried(running(pod("a", "n", "ray"), pod("b", "n", "ray"), pod("c", "n", "ray"))) == 3
    assert carried(running(pod("a", "n", "ray"), pod("b", "n", "ray", deleting=True))) == 1, "replaced, not grown"
    assert carried(running(pod("a", "n", "ray"), pod("b", "n", "ray", phase="Succeeded"))) == 1
    assert carried(running(pod("a", "n", "ray"), pod("b", of="ray", gated=True))) == 1, "held back: not one more yet"


def test_what_was_declared_for_a_pod_counts_whatever_it_turns_out_to_ask_for():
    assert carried(running(pod("a", "n", "ray", cpu=3))) == 1


def test_it_gives_back_what_it_no_longer_has():
    told = running(pod("a", "n", "ray"), pod("b", "n", "ray"))
    told.remove("Pod/b")
    told.plan(2)
    assert carried(told) == 1


def test_others_wait_for_what_it_has_grown_by():
    told = running(*(pod(name, "n", "ray") for name in "abc"))
    told.update(gang("next", pods(2), labels=LABELS, at=2))
    assert admitted(told.plan(2)) == []
    told.remove("Pod/c")
    assert admitted(told.plan(3)) == ["next"]


def test_growth_comes_as_far_as_hard_quota_goes():
    told = running(pod("a", "n", "ray"), *(pod(name, of="ray", gated=True) for name in "bcdef"))
    lacking = {name: told.let_grow(name) for name in "bcdef"}
    assert [name for name, missing in lacking.items() if missing == ()] == ["b", "c", "d"]
    assert lacking["e"] is not None and lacking["e"][0].place == "team/green"
    assert carried(told) == 4
    assert told.let_grow("b") is None, "let go before"


def test_an_engine_built_anew_carries_the_same():
    told = running(*(pod(name, "n", "ray") for name in "ab"), pod("c", of="ray", gated=True))
    again = Engine(Settings(quota=True))
    for fact in told.facts():
        again.update(fact)
    again.plan(2)
    assert carried(again) == carried(told) == 2
