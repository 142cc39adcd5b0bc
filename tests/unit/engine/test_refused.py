"""Freed quota finds the first of those it is enough for, whatever their leaf, without asking everybody."""

from shoal.engine.line.judge import Judge

from .build import SECOND, admitted, engine, gang, node, pods, quota, subtree

LEAVES = 50


def crowd(policy: str = "priority", hard: bool = False):
    """A tree whose root is full: `big` holds six of eight cpus. Behind it 200 gangs of three sizes in fifty leaves."""
    leaves = [quota(f"leaf{number:02}", cpu=2, hard=hard) for number in range(LEAVES)]
    judge = engine(
        node("n", cpu=99),
        subtree("team", "", quota("root", cpu=8)),
        subtree("team", "root", *leaves, quota("vip", cpu=6)),
        quota=True,
        policy=policy,
    )
    judge.update(gang("big", pods(6), labels={"team": "vip"}, at=1))
    judge.update(gang("other", pods(2), labels={"team": "leaf00"}, at=2))
    assert admitted(judge.plan(3 * SECOND)) == ["big", "other"]
    for number in range(200):
        labels = {"team": f"leaf{number % LEAVES:02}"}
        judge.update(gang(f"g{number:03}", pods(3 - number % 3), labels=labels, at=10 + number))
    assert admitted(judge.plan(300 * SECOND)) == []
    return judge


def judged(monkeypatch) -> list[str]:
    names: list[str] = []
    judge = Judge.judge

    def spy(self, gang, *rest, **more):
        names.append(gang.name)
        return judge(self, gang, *rest, **more)

    monkeypatch.setattr(Judge, "judge", spy)
    return names


def test_the_oldest_that_fit_start_and_few_are_asked(monkeypatch):
    judge = crowd()
    names = judged(monkeypatch)
    judge.remove("AppWrapper/default/big")
    assert admitted(judge.plan(400 * SECOND)) == ["g000", "g001", "g002"], "3 + 2 + 1 of 6 cpus, in order of age"
    assert len(names) <= 8, "not all two hundred"
    assert judge.plan(401 * SECOND).is_empty


def test_nothing_changed_no_gang_is_asked(monkeypatch):
    judge = crowd()
    names = judged(monkeypatch)
    judge.plan(400 * SECOND)
    assert names == []


def test_an_urgent_newcomer_of_a_refused_kind_goes_first():
    judge = crowd()
    judge.update(gang("urgent", pods(3), labels={"team": "leaf07"}, at=900, priority=5))
    judge.plan(901 * SECOND)
    judge.remove("AppWrapper/default/big")
    assert admitted(judge.plan(902 * SECOND))[0] == "urgent"


def test_behind_hard_leaves_only_their_own_quota_counts(monkeypatch):
    """Three of a size cannot pass a hard leaf of two; those of one or two wait at the root."""
    judge = crowd(hard=True)
    names = judged(monkeypatch)
    judge.remove("AppWrapper/default/big")
    started = admitted(judge.plan(400 * SECOND))
    assert started[0] == "g001" and "g000" not in started
    assert len(names) <= 30


def test_a_larger_tree_calls_everybody():
    judge = crowd()
    judge.update(subtree("team", "", quota("root", cpu=11)))
    assert admitted(judge.plan(400 * SECOND)) == ["g000"]


def test_orders_that_change_with_time_ask_again(monkeypatch):
    judge = crowd(policy="fair-share")
    judge.remove("AppWrapper/default/big")
    assert len(admitted(judge.plan(400 * SECOND))) >= 2
