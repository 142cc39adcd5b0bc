"""Planted lies: a secret that got out, a key that was held up, a stranger that was called."""

from __future__ import annotations

import base64
import os
import socket
from typing import Any

import pytest

from tests.checker.gang_rules import judge
from tests.checker.gang_world import Change
from tests.checker.safety import leaks, only_calling, strange_sockets, unanswered

SECOND = 1_000_000
WORD = "correct-horse"


def wrapper(name: str, status: dict[str, Any] | None = None, **template: Any) -> dict[str, Any]:
    item = {"generictemplate": {"apiVersion": "v1", "metadata": {"name": name}, **template}}
    metadata = {"name": name, "namespace": "d", "uid": f"u-{name}", "generation": 1}
    return {"metadata": metadata, "spec": {"resources": {"GenericItems": [item]}}, "status": status or {}}


def secret() -> Change:
    data = {"password": base64.b64encode(WORD.encode()).decode()}
    return Change(1, "secrets", None, {"metadata": {"name": "s"}, "data": data})


@pytest.mark.parametrize(
    "collection, obj",
    [
        ("events", {"metadata": {"name": "e"}, "message": f"refused: {WORD}"}),
        ("pods", {"metadata": {"name": "p"}, "status": {"message": base64.b64encode(WORD.encode()).decode()}}),
        ("appwrappers", wrapper("w", {"message": f'Invalid value: "{WORD}"'})),
        ("configmaps", {"metadata": {"name": "c", "annotations": {"shoal.dev/note": WORD}}}),
    ],
)
def test_i47_a_secret_in_what_others_read_is_found(collection: str, obj: dict[str, Any]) -> None:
    assert "tells a secret" in leaks([secret(), Change(2, collection, None, obj)])[0]


def test_i47_a_secret_that_is_only_wrapped_counts_too_and_its_own_place_does_not() -> None:
    honest = wrapper("w", {"message": "the Secret was refused"}, kind="Secret", stringData={"password": WORD})
    assert judge([Change(1, "appwrappers", None, honest)]) == []
    told = {**honest, "status": {"message": f"refused {WORD}"}}
    assert [one[:4] for one in judge([Change(1, "appwrappers", None, told)])] == ["I47:"]
    assert leaks([secret()], [f"DEBUG sent {WORD}", "fine"]) == [f"I47: the log tells a secret: DEBUG sent {WORD}"]
    assert leaks([secret()], ["fine"]) == []


def test_i50_who_is_answered_late_or_never_is_found() -> None:
    prompt = wrapper("prompt", {"conditions": [{"type": "Init"}]})
    story = [Change(1, "appwrappers", None, wrapper(name), at=0) for name in ("prompt", "late", "never")]
    story.append(Change(4, "appwrappers", wrapper("prompt"), prompt, at=SECOND // 50))
    late = wrapper("late", {"conditions": [{"type": "Init"}]})
    story.append(Change(5, "appwrappers", wrapper("late"), late, at=3 * SECOND))
    assert unanswered(story, end=9 * SECOND) == [
        "I50: late heard nothing for 3.0 s",
        "I50: never never heard anything",
    ]


def test_i48_and_i51_listeners_and_calls_off_the_known_places_are_found() -> None:
    with socket.socket() as there, socket.socket() as caller:
        there.bind(("127.0.0.1", 0))
        there.listen()
        with pytest.raises(AssertionError, match="I51"), only_calling(lambda address: False):
            caller.connect(there.getsockname())
        assert strange_sockets(os.getpid(), set()) == []
    with socket.socket() as there:
        there.bind(("0.0.0.0", 0))
        there.listen()
        assert strange_sockets(os.getpid(), set()) == [f"I48: listens at 0.0.0.0:{there.getsockname()[1]}"]
        assert strange_sockets(os.getpid(), {"0.0.0.0"}) == []


def test_i51_calls_to_known_places_pass() -> None:
    with socket.socket() as there, socket.socket() as caller:
        there.bind(("127.0.0.1", 0))
        there.listen()
        with only_calling(lambda address: address == there.getsockname()) as strangers:
            caller.connect(there.getsockname())
        assert strangers == []
