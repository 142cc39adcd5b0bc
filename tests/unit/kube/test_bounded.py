"""What a server that is not trusted may answer: each kind of excess ends with an error, at a bounded cost."""

from __future__ import annotations

import json

import pytest

from shoal.controllers.multicluster import member
from shoal.kube import cache
from shoal.kube.answers import Answer
from shoal.kube.bounded import within_depth
from shoal.kube.http import HttpTransport
from tests.attacks.member import ANSWERS, deep_events, endless_line, liar, listed, refused
from tests.faults import proven

FAR_TOO_MUCH = [what for what in ANSWERS if what not in ("a byte now and then", "a length of a hundred gigabytes")]


def without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    made, began = Answer.__init__, HttpTransport.__init__
    monkeypatch.setattr(member, "BoundedTransport", lambda inner, limits: inner)
    monkeypatch.setattr(Answer, "__init__", lambda self, most=0: made(self))
    monkeypatch.setattr(HttpTransport, "__init__", lambda self, server, most=0: began(self, server))
    monkeypatch.setattr(cache.Cache, "_weigh", goes_on)


def goes_on(self: cache.Cache[object], key: object, size: int) -> None:
    if len(self) > 20_000:
        pytest.fail("the cache goes on for ever")


@pytest.mark.parametrize("what", FAR_TOO_MUCH)
@proven(without=without_limits)
async def test_f208_an_answer_beyond_its_limits_is_not_taken(what: str) -> None:
    """F208: a member cluster answers with far too much: endless, unpacking to gigabytes, nested without end, page after
    page. Holds: the request ends with an error, and the hub has paid for a bounded part of it."""
    async with liar() as one:
        assert "MiB" in await refused(one, ANSWERS[what])


@proven(without=without_limits)
async def test_f208_a_watch_beyond_its_limits_ends() -> None:
    """F208: a member's watch sends a line without end, or objects without bottom. Holds: the watch ends with an
    error, and the hub has paid for a bounded part of it."""
    async with liar() as one:
        assert "a line of more than" in await endless_line(one)
        assert "nested deeper" in await deep_events(one)


@proven(without=without_limits)
async def test_f208_a_cache_takes_no_more_than_its_limit() -> None:
    """F208: a member has ever more objects under the hub's mark. Holds: so many bytes of them are kept, no more are
    asked for, and the cluster is shown as one that sends too much."""
    async with liar() as one:
        assert "no more are kept" in await listed(one)


async def test_slow_and_oversized_answers_end_in_time() -> None:
    async with liar() as one:
        assert "in time" in await refused(one, ANSWERS["a byte now and then"])
        assert "more than" in await refused(one, ANSWERS["a length of a hundred gigabytes"])


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"a": {"b": ["{", "}}}", "[[[[[[[[", '"{', "\\"]}},
        {"text": "{" * 500},
        {"text": '\\"{[' * 500},
        [[[[[1]]]]],
        [[[[[[1]]]]]],
        {"a": [{"b": [{"c": [1]}]}]},
    ],
)
def test_depth_is_counted_outside_of_texts(value: object) -> None:
    assert within_depth(json.dumps(value).encode(), 5) == (depth(value) <= 5)


def depth(value: object) -> int:
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if below is None else 1 + max((depth(one) for one in below), default=0)
