"""What every store of history promises, whatever the database: `tests/unit/history` holds SQLite to it, and
`make test-long PART=postgres` Debian's PostgreSQL."""

from __future__ import annotations

from shoal.controllers.planning.history.log_store import KeptLog, LogQuery, LogStore
from shoal.controllers.planning.history.records import GangFacts, Sighting
from shoal.controllers.planning.history.store import HistoryQuery, HistoryStore

S = 1_000_000
T0 = 1_700_000_000 * S


def look(uid: str, stage: str, at: int, **more: object) -> Sighting:
    facts = GangFacts(
        kind="RayJob", name=str(more.pop("name", uid)), user=str(more.pop("user", "ann")), cluster_queue="all",
        outcome=str(more.pop("outcome", "")), limit=int(more.pop("limit", 0)),  # type: ignore[call-overload]
    )  # fmt: skip
    found: dict[str, object] = {
        "namespace": "team-a", "queue": "main", "queued_at": T0, "pods": 2,
        "amounts": {"cpu": 2000, "nvidia.com/gpu": 2},
    }  # fmt: skip
    return Sighting(uid=uid, stage=stage, at=T0 + at * S, facts=facts, **{**found, **more})  # type: ignore[arg-type]


def a_gang_waits_runs_is_requeued_and_ends(store: HistoryStore) -> None:
    """Every look twice: the same again changes nothing."""
    walk = [
        look("a", "waiting", 0),
        look("a", "running", 10, started_at=T0 + 10 * S),
        look("a", "waiting", 70, preempted=True),
        look("a", "running", 100, started_at=T0 + 100 * S),
        look("a", "ended", 3700, outcome="Succeeded"),
    ]
    for one in walk:
        store.write([one])
        assert store.write([one]) == []
    second, first = store.runs(HistoryQuery())
    assert (first.round, first.outcome, first.queued_at, first.started_at) == (1, "Preempted", T0, T0 + 10 * S)
    assert (second.round, second.outcome) == (2, "Succeeded")
    assert (second.queued_at, second.started_at, second.ended_at) == (T0 + 70 * S, T0 + 100 * S, T0 + 3700 * S)
    (total,) = store.totals(HistoryQuery(), T0 + 9000 * S)
    assert (total.gangs, total.runs, total.requeues, total.failed) == (1, 2, 1, 0)
    assert (total.waited, total.longest_wait, total.ran) == (40.0, 30.0, 3660.0)
    assert total.gpu_seconds == 2 * 3660.0
    assert store.durations("team-a", "ann", "main") == [3600.0]


def totals_count_only_what_lies_in_the_window(store: HistoryStore) -> None:
    store.write([look("a", "waiting", 0), look("a", "running", 100), look("a", "ended", 200, outcome="Failed")])
    store.write([look("b", "waiting", 0, user="bob"), look("b", "running", 100, user="bob")])
    window = HistoryQuery(since=T0 + 150 * S, until=T0 + 1000 * S)
    found = {one.user: one for one in store.totals(window, T0 + 300 * S)}
    assert (found["ann"].ran, found["ann"].failed) == (50.0, 1)
    assert found["bob"].ran == 150.0  # it goes on
    assert store.totals(HistoryQuery(since=T0 + 250 * S, user="ann"), T0 + 300 * S) == []
    assert [one.user for one in store.runs(HistoryQuery(queue="main", user="bob"))] == ["bob"]


def what_is_gone_ends_as_deleted(store: HistoryStore) -> None:
    store.write([look("a", "waiting", 0), look("b", "waiting", 0), look("b", "running", 5)])
    store.write([Sighting(uid="a", stage="ended", at=T0 + 50 * S)])
    assert store.close_missing(["c"], T0 + 60 * S) == 1
    ends = {one.uid: (one.outcome, one.ended_at, one.name) for one in store.runs(HistoryQuery())}
    assert ends == {"a": ("Deleted", T0 + 50 * S, "a"), "b": ("Deleted", T0 + 60 * S, "b")}
    assert store.write([Sighting(uid="unknown", stage="ended", at=T0)]) == []


def it_stays_bounded(store: HistoryStore) -> None:
    """`store` keeps 10 rows and one day."""
    store.write([look(f"gang-{number}", "waiting", number) for number in range(20)])
    store.write([look(f"gang-{number}", "ended", 100 + number, outcome="Succeeded") for number in range(15)])
    assert store.prune(T0 + 200 * S) == 10
    assert len(store.runs(HistoryQuery())) == 10
    store.prune(T0 + 3 * 86_400 * S)
    assert {one.uid for one in store.runs(HistoryQuery())} == {f"gang-{number}" for number in range(15, 20)}


def odd_texts_are_kept_apart(store: HistoryStore) -> None:
    """Names are data: nothing in them is a statement, and NUL does not stop a write."""
    name = "x'; DROP TABLE shoal_runs; --\x00%s ? \u202e"
    store.write([look("a", "waiting", 0, name=name, user='ann"', priority=2**70)])
    (found,) = store.runs(HistoryQuery(user='ann"'))
    assert found.name == name.replace("\x00", "")


def logs_are_kept_apart_by_gang_and_go_with_the_oldest(store: HistoryStore) -> None:
    logs = LogStore(store, days=1)
    for uid, pod, text in (("first", "a", b"one\x00\n"), ("second", "b", b"two"), ("second", "b", b"three\xff")):
        logs.write(KeptLog(
            kind="RayJob", namespace="team-a", name="train", gang_uid=uid, role="submitter", pod=pod, pod_uid=pod,
            container="c", ended_at=T0 + (S if uid == "second" else 0), cut=7, text=text,
        ))  # fmt: skip
    assert logs.known() == {("a", "c"), ("b", "c")}
    (newest,) = logs.read(LogQuery(namespace="team-a", name="train"))
    assert (newest.gang_uid, newest.text, newest.cut) == ("second", b"three\xff", 7)
    (first,) = logs.read(LogQuery(namespace="team-a", name="train", kind="RayJob", gang_uid="first"))
    assert first.text == b"one\x00\n"
    assert logs.read(LogQuery(namespace="team-b", name="train")) == []
    assert logs.prune(T0 + 86_400 * S + 1) == 1
    assert logs.known() == {("b", "c")}


ALL = (
    logs_are_kept_apart_by_gang_and_go_with_the_oldest,
    a_gang_waits_runs_is_requeued_and_ends,
    totals_count_only_what_lies_in_the_window,
    what_is_gone_ends_as_deleted,
    it_stays_bounded,
    odd_texts_are_kept_apart,
)
