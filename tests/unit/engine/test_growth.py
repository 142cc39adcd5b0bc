"""Gangs that have more pods than they were admitted with: what quota carries for them, and who may still come."""

from shoal.engine import Engine, EngineSettings

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
    told = running(pod("a", "n", "ray"))
    for since, name in enumerate("fedcb"):
        told.update(pod(name, of="ray", gated=True, grows_since=10 - since))
    plan = told.plan(2)
    lacking = {one.pod: one.shortfalls for one in plan.grows}
    assert [name for name, missing in lacking.items() if missing == ()] == ["b", "c", "d"], "the oldest first"
    assert lacking["e"][0].place == "team/green" and not plan.is_empty
    assert {(one.gang, one.uid) for one in plan.grows} == {("AppWrapper/default/ray", "uid-ray")}
    assert carried(told) == 4
    assert told.plan(3).grows == (), "said once"


def test_growth_comes_when_there_is_quota_again_and_is_said_again_when_it_was_not_stored():
    growing = [pod(name, of="ray", gated=True, grows_since=1) for name in "bcde"]
    told = running(pod("a", "n", "ray"), *growing)
    told.remove("Pod/b")
    assert [(one.pod, one.shortfalls) for one in told.plan(3).grows] == [("e", ())]
    told.update(growing[3])
    assert [(one.pod, one.shortfalls) for one in told.plan(4).grows] == [("e", ())]
    assert carried(told) == 4


def test_gangs_that_wait_whole_come_before_gangs_that_want_more():
    told = running(pod("a", "n", "ray"))
    told.update(gang("next", pods(3), labels=LABELS, at=2))
    told.update(pod("b", of="ray", gated=True, grows_since=1))
    plan = told.plan(2)
    assert admitted(plan) == ["next"]
    assert [one.shortfalls != () for one in plan.grows] == [True]


def test_a_pod_that_waits_behind_a_gate_of_somebody_else_is_not_let_come():
    told = running(pod("a", "n", "ray"), pod("b", of="ray", gated=True))
    assert told.plan(2).grows == ()


def test_a_rebuilt_engine_carries_the_same():
    told = running(*(pod(name, "n", "ray") for name in "ab"), pod("c", of="ray", gated=True))
    again = Engine(EngineSettings(quota=True))
    for fact in told.facts():
        again.update(fact)
    again.plan(2)
    assert carried(again) == carried(told) == 2
