"""Answers of a server, in whatever pieces the network hands them over."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kube.answers import Answer, Malformed

SIZED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\nhello world"
CHUNKED = (
    b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\nWarning: one\r\nwarning: two\r\n\r\n"
    b"6\r\nhello \r\n5;note=x\r\nworld\r\n0\r\nTrailer: x\r\n\r\n"
)
REMARKED = b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED


@pytest.mark.parametrize("text", [SIZED, CHUNKED, REMARKED])
@given(cuts=st.lists(st.integers(0, 200), max_size=8))
def test_an_answer_is_the_same_however_it_is_cut(text: bytes, cuts: list[int]) -> None:
    answer = Answer()
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, end in pairwise(places):
        assert not answer.done or start == len(text)
        answer.feed(text[start:end])
    assert (answer.status // 100, answer.body(), answer.done, answer.reusable) == (2, b"hello world", True, True)


def test_several_values_of_a_header_stand_on_lines_of_their_own() -> None:
    answer = Answer()
    answer.feed(CHUNKED)
    assert answer.headers["warning"] == "one\ntwo"


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    answer = Answer()
    answer.feed(b"HTTP/1.1 200 OK\r\n\r\nas long as ")
    answer.feed(b"it takes")
    assert not answer.done
    answer.end()
    assert (answer.done, answer.reusable, answer.body()) == (True, False, b"as long as it takes")


@pytest.mark.parametrize("text", [SIZED, CHUNKED])
@given(data=st.data())
def test_an_answer_cut_off_is_never_taken_for_whole(text: bytes, data: st.DataObject) -> None:
    answer = Answer()
    answer.feed(text[: data.draw(st.integers(1, len(text) - 1))])
    answer.end()
    assert not answer.done


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", "it said so"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", "the old protocol closes"),
        (b"HTTP/1.1 204 No Content\r\n\r\nmore", "something followed that the client did not ask for"),
    ],
)
def test_a_connection_is_not_used_again_when(text: bytes, why: str) -> None:
    answer = Answer()
    answer.feed(text)
    assert answer.done, why
    assert not answer.reusable, why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "does not speak HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "without a colon"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "content-length that is no number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "content-length that is no number"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "unknown transfer-encoding"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "size is no number"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "size is no number"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n", "longer than it said"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000, "does not end"),
    ],
)
def test_what_is_not_http_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        Answer().feed(text)
